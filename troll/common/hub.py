"""Models of the Hugging Face hub: downloaded or from a mirror, pinned by the lock file, linked, not copied.

A mirror (``TROLL_MODEL_MIRROR``) is a directory with ``<owner>/<name>/`` as ``save_pretrained`` or a download
writes it. A model that it lacks is downloaded at the revision in the lock file or, the first time, at the
hub's current revision. With ``HF_HUB_OFFLINE=1`` the model must already be in the hub's cache, where
`troll fetch` puts it.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troll.common import lock_file
from troll.common.digests import sha256_of_file
from troll.common.errors import UserError
from troll.common.files import write_text
from troll.common.progress import say
from troll.common.tokenizers import with_fixed_date

MIRROR = "TROLL_MODEL_MIRROR"

# Weights only once, as safetensors if possible; no weights of other frameworks; no code, which is never run.
_TEXT = ("*.json", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken")
_SAFE, _PICKLED = ("*.safetensors",), ("pytorch_model*.bin",)
_BIG = 2**30
_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Snapshot:
    """A model on this machine."""

    id: str  # ``owner/name``
    files: Mapping[str, Path]  # path of each file, by its name in the repository
    # ``id``, ``source`` (hub or mirror), ``revision`` (None for a mirror), ``files`` (bytes and SHA-256)
    provenance: Mapping[str, Any]


def snapshot(model_id: str, *, weights: bool = True) -> Snapshot:
    """Returns the model's files, checked against the lock file, to which the first download adds them."""
    directory, revision = in_mirror(model_id), ""
    if directory is not None:
        here = sorted(path.name for path in directory.iterdir() if path.is_file())
        names = _wanted(model_id, here, weights)
    else:
        revision = lock_file.pinned(lock_file.MODELS + model_id).get("revision") or _resolve(model_id)
        names = _wanted(model_id, _listing(model_id, revision, weights), weights)
        directory = _download(model_id, revision, names)
    files = {name: (directory / name).resolve() for name in names}
    facts = {name: _facts(path) for name, path in files.items()}
    if revision:
        lock_file.pin(lock_file.MODELS + model_id, revision, "files", facts)
    else:
        lock_file.check(lock_file.MODELS + model_id, "", "files", facts)
    source = {"source": "hub", "revision": revision} if revision else {"source": "mirror", "revision": None}
    return Snapshot(model_id, files, {"id": model_id, **source, "files": facts})


def mirror() -> Path | None:
    """Returns the directory of the mirror; None if the environment names none."""
    return lock_file.named_mirror(MIRROR)


def in_mirror(model_id: str) -> Path | None:
    """Returns the model's directory in the mirror; None if there is no mirror or it lacks the model."""
    root = mirror()
    if root is None or not (directory := root / model_id).is_dir():
        return None
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory}: has no config.json; delete it, or put the complete model there")
    return directory


def config_of(model_id: str) -> Path | None:
    """Returns the path of a model's config.json in the mirror or the hub's cache; None if in neither."""
    from huggingface_hub import try_to_load_from_cache

    if (directory := in_mirror(model_id)) is not None:
        return directory / "config.json"
    cached = try_to_load_from_cache(model_id, "config.json")
    return Path(cached) if isinstance(cached, str) else None


def link(model: Snapshot, directory: Path, chat_template: str | None = None) -> None:
    """Links a model's files into an empty directory; ``chat_template`` replaces the model's own.

    A template that shows the date of today is replaced by one with a fixed date (`troll.common.tokenizers`).
    """
    own = _template_in(model.files)
    template = with_fixed_date(chat_template if chat_template is not None else own or "")
    replaced = template != (own or "")
    for name, path in model.files.items():
        if not (replaced and name == _TEMPLATE):
            (directory / name).symlink_to(path)
    if replaced:
        write_text(directory / _TEMPLATE, template)


def _template_in(files: Mapping[str, Path]) -> str | None:
    """Returns the chat template among a model's files: of its own file, or of the tokenizer's settings."""
    if _TEMPLATE in files:
        return files[_TEMPLATE].read_text(encoding="utf-8")
    try:
        settings = json.loads(files["tokenizer_config.json"].read_text(encoding="utf-8"))
    except (KeyError, ValueError):  # loading the tokenizer reports what is wrong with the file
        return None
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else None


def chat_template(model_id: str) -> str:
    """Returns the chat template of a model's tokenizer."""
    import tempfile

    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as directory:
        link(snapshot(model_id, weights=False), Path(directory))
        try:
            template = AutoTokenizer.from_pretrained(directory).chat_template
        except Exception as error:  # transformers has no common class for its errors
            raise UserError(
                f"{model_id}: its tokenizer cannot be loaded ({type(error).__name__}: {error})"
            ) from None
    if not isinstance(template, str):
        raise UserError(f"{model_id}: its tokenizer has no chat template")
    return template


def _matching(names: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def _wanted(model_id: str, names: Iterable[str], weights: bool) -> list[str]:
    """Returns the files at the top level of a repository that loading needs."""
    here = [name for name in names if "/" not in name and not name.startswith(".")]
    if not weights:
        return _matching(here, _TEXT)
    weight_files = _matching(here, _SAFE) or _matching(here, _PICKLED)
    if not weight_files:
        raise UserError(f"{model_id}: has no weights, neither {_SAFE[0]} nor {_PICKLED[0]}")
    return [*_matching(here, _TEXT), *weight_files]


def _facts(path: Path) -> dict[str, int | str]:
    size = path.stat().st_size
    if size > _BIG:
        say(f"{path.name}: computing the digest of {size / _BIG:.1f} GiB")
    return {"bytes": size, "sha256": sha256_of_file(path)}


def _asking_the_hub(model_id: str) -> AbstractContextManager[None]:
    remedy = "fetch it where the hub can be reached (troll fetch FILE), or name a local mirror in "
    return lock_file.asking(f"model {model_id}", remedy + MIRROR)


def _resolve(model_id: str) -> str:
    """Returns the hub's current revision."""
    from huggingface_hub import HfApi

    with _asking_the_hub(model_id):
        revision = HfApi().model_info(model_id).sha
    return lock_file.named_revision(f"model {model_id}", revision)


def _listing(model_id: str, revision: str, weights: bool) -> list[str]:
    """Returns the names of the repository's files: from the lock file if complete, else from the hub."""
    pinned = list(lock_file.pinned(lock_file.MODELS + model_id).get("files", {}))
    if pinned and (not weights or _matching(pinned, (*_SAFE, *_PICKLED))):
        return pinned
    from huggingface_hub import HfApi

    with _asking_the_hub(model_id):
        return list(HfApi().list_repo_files(model_id, revision=revision))


def _download(model_id: str, revision: str, names: list[str]) -> Path:
    """Downloads files, or resumes their download, and returns their directory in the hub's cache."""
    from huggingface_hub import snapshot_download

    with _asking_the_hub(model_id):
        return Path(snapshot_download(model_id, revision=revision, allow_patterns=names))
