"""Models of the hub: pinned by the first download, obeyed by later ones, linked, never copied."""

import json
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import GatedRepoError
from one_cell import one_cell
from refusals import check_facts, refused

from troll.common import hub, lock_file
from troll.experiment.files import parse_experiment
from troll.operations.fetch import fetch, needed_data, needed_models
from troll.tasks.datasets import hub as data_hub
from troll.tasks.datasets import load

FILES = {
    "config.json": "{}",
    "tokenizer.json": "{}",
    "model.safetensors": "weights",
    "pytorch_model.bin": "the same weights",
    "README.md": "words",
    "modeling.py": "code",
    "onnx/model.onnx": "other weights",
}


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setenv("TROLL_DATA_LOCK", str(tmp_path / "data.lock.json"))
    monkeypatch.delenv("TROLL_MODEL_MIRROR", raising=False)
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    return tmp_path / "data.lock.json"


@pytest.fixture
def fake_hub(lock, tmp_path, monkeypatch):
    """A hub with models that move on; it counts what it is asked."""
    state = SimpleNamespace(revision="aaa", files=dict(FILES), asked=[], refuses={}, offline=False)

    class Api:
        def _answer(self, model_id):
            if state.offline:
                raise ConnectionError("no route to host")
            if model_id in state.refuses:
                raise state.refuses[model_id]

        def model_info(self, model_id):
            self._answer(model_id)
            return SimpleNamespace(sha=state.revision)

        def list_repo_files(self, model_id, revision):
            self._answer(model_id)
            return list(state.files)

    def download(model_id, revision, allow_patterns):
        state.asked.append((model_id, revision, sorted(allow_patterns)))
        directory = tmp_path / "cache" / model_id / revision
        directory.mkdir(parents=True, exist_ok=True)
        for name in allow_patterns:
            (directory / name).write_text(state.files[name])
        return str(directory)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return state


WANTED = ["config.json", "model.safetensors", "tokenizer.json"]


def test_the_first_download_pins_what_later_ones_obey(fake_hub, lock):
    found = hub.snapshot("owner/model")
    assert sorted(found.files) == WANTED, "weights once, no code, nothing of other frameworks"
    entry = json.loads(lock.read_text())["models/owner/model"]
    assert entry["revision"] == "aaa" and sorted(entry["files"]) == WANTED
    assert entry["files"]["model.safetensors"]["bytes"] == len("weights")
    fake_hub.revision = "bbb"
    again = hub.snapshot("owner/model")
    assert again.provenance["revision"] == "aaa"
    assert [asked[1] for asked in fake_hub.asked] == ["aaa", "aaa"]


def test_a_pinned_model_is_taken_without_asking_the_hub(fake_hub):
    hub.snapshot("owner/model")
    fake_hub.offline = True  # the cache answers, as with HF_HUB_OFFLINE=1
    assert sorted(hub.snapshot("owner/model").files) == WANTED


def test_other_content_than_the_lock_file_names_is_refused(fake_hub, lock):
    hub.snapshot("owner/model")
    fake_hub.files["model.safetensors"] = "damaged"
    with refused("owner/model (model.safetensors)", "revision aaa", "7 bytes", "7 bytes", lock):
        hub.snapshot("owner/model")


def test_a_tokenizer_alone_comes_without_weights_and_weights_can_come_later(fake_hub):
    assert sorted(hub.snapshot("owner/model", weights=False).files) == ["config.json", "tokenizer.json"]
    assert sorted(hub.snapshot("owner/model").files) == WANTED


def test_weights_that_are_not_safe_are_the_last_resort_and_none_is_an_error(fake_hub):
    del fake_hub.files["model.safetensors"]
    assert "pytorch_model.bin" in hub.snapshot("owner/model").files
    del fake_hub.files["pytorch_model.bin"]
    with refused("owner/other", "*.safetensors", "pytorch_model*.bin"):
        hub.snapshot("owner/other")


def test_without_the_hub_the_error_says_what_to_do(fake_hub, lock):
    fake_hub.offline = True
    with refused("owner/model", "no route to host", "troll fetch"):
        hub.snapshot("owner/model")
    assert not lock.exists()


def test_a_mirror_takes_the_place_of_the_hub_and_has_to_obey_the_lock_file(fake_hub, tmp_path, monkeypatch):
    hub.snapshot("owner/model")
    directory = tmp_path / "mirror" / "owner" / "model"
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path / "mirror"))
    with refused(f"TROLL_MODEL_MIRROR={tmp_path}/mirror"):
        hub.snapshot("owner/model")
    (tmp_path / "mirror").mkdir()
    assert hub.snapshot("owner/model").provenance["source"] == "hub", "what the mirror lacks the hub may have"
    directory.mkdir(parents=True)
    with refused(directory, "config.json"):
        hub.snapshot("owner/model")
    for name in WANTED:
        (directory / name).write_text(FILES[name])
    found = hub.snapshot("owner/model")
    assert (found.provenance["source"], found.provenance["revision"]) == ("mirror", None)
    (directory / "model.safetensors").write_text("others")
    with refused("owner/model (model.safetensors)", "6 bytes", "7 bytes"):
        hub.snapshot("owner/model")


def test_links_take_no_room_and_another_template_takes_the_own_ones_place(fake_hub, tmp_path):
    fake_hub.files["chat_template.jinja"] = "own"
    out = tmp_path / "base"
    out.mkdir()
    hub.link(hub.snapshot("owner/model"), out, "other")
    assert (out / "model.safetensors").is_symlink()
    assert (out / "model.safetensors").read_text() == "weights"
    assert (out / "chat_template.jinja").read_text() == "other"
    source = hub.snapshot("owner/model").files["chat_template.jinja"]
    assert source.read_text() == "own", "the cache is left alone"


def test_two_processes_that_pin_at_once_lose_nothing(lock):
    facts = {"rows": 1, "sha256": "x"}
    lock_file.pin("owner/a", "aaa", "parts", {"test": facts})
    lock_file.pin("models/owner/b", "bbb", "files", {"config.json": {"bytes": 1, "sha256": "y"}})
    lock_file.pin("owner/a", "aaa", "parts", {"train": facts})
    assert set(json.loads(lock.read_text())) == {"owner/a", "models/owner/b"}
    with refused("owner/a", "revision aaa", lock):
        lock_file.pin("owner/a", "ccc", "parts", {"other": facts})


# --- fetch --------------------------------------------------------------------------------------------------


@pytest.fixture
def experiment():
    return parse_experiment(
        one_cell(
            tasks={"gsm8k": {"train": "all", "evaluate_on": {"math500": {}}}, "mbpp": {"train": "all"}},
            models={
                "a": {"hub": {"id": "owner/a", "chat_template_of": "owner/b"}},
                "c": {"hub": {"id": "owner/c"}},
            },
            matrix=[
                {"group": "first", "models": ["a"], "tasks": ["gsm8k"]},
                {"group": "second", "models": ["c"]},
            ],
        ),
        "x.yaml",
    )


@pytest.fixture
def fake_data(fake_hub, monkeypatch):
    """Rows of the two mathematics sets; everything is read anew."""
    rows = {
        "openai/gsm8k": {"question": "1+1?", "answer": "#### 2"},
        "HuggingFaceH4/MATH-500": {"problem": "1+1?", "answer": "2", "unique_id": "1"},
    }

    def download(part, revision):
        if fake_hub.offline:
            with data_hub._asking(part.repository):
                raise ConnectionError("no route to host")
        return [{**rows[part.repository], "unique_id": str(n)} for n in range(part.rows)]

    monkeypatch.setattr(data_hub, "_resolve", lambda _: "ddd")
    monkeypatch.setattr(data_hub, "_download", download)
    monkeypatch.setattr(
        "troll.operations.fetch.chat_template", lambda name: hub.snapshot(name, weights=False).id
    )
    load._load.cache_clear()
    yield
    load._load.cache_clear()


def test_what_is_needed_follows_from_the_runs(experiment):
    first = experiment.groups()["first"]
    assert needed_models(experiment, first) == {"owner/a": True, "owner/b": False}
    assert needed_data(experiment, first) == {"gsm8k": ["train", "test"], "math500": ["test"]}
    assert set(needed_models(experiment, experiment.runs())) == {"owner/a", "owner/b", "owner/c"}
    assert needed_data(experiment, experiment.runs())["mbpp"] == ["train", "validation", "test"]


def test_fetch_pins_everything_and_can_be_run_again(experiment, fake_hub, fake_data, lock, capsys):
    fetch(experiment, ["first"])
    first = json.loads(lock.read_text())
    assert set(first) == {"models/owner/a", "models/owner/b", "openai/gsm8k", "HuggingFaceH4/MATH-500"}
    assert set(first["openai/gsm8k"]["parts"]) == {"main/train", "main/test"}
    said = capsys.readouterr().err
    assert "[fetch] 1/6 model owner/a" in said and "7473 problems from ddd" in said
    assert "HF_HUB_OFFLINE=1" in said
    fetch(experiment, ["first"])
    assert json.loads(lock.read_text()) == first


def test_an_interrupted_fetch_has_pinned_what_it_had(experiment, fake_hub, fake_data, lock, monkeypatch):
    monkeypatch.setattr(data_hub, "_resolve", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fetch(experiment, ["first"])
    assert set(json.loads(lock.read_text())) == {"models/owner/a", "models/owner/b"}


def test_a_gated_model_does_not_hold_up_the_others(experiment, fake_hub, fake_data, lock):
    response = SimpleNamespace(status_code=403, headers={}, request=None)
    fake_hub.refuses["owner/a"] = GatedRepoError("accept its terms first", response=response)
    with refused("1 of 6", "model owner/a"):
        fetch(experiment, ["first"])
    assert {"models/owner/b", "openai/gsm8k"} <= set(json.loads(lock.read_text()))


def test_without_the_hub_fetch_tries_all_and_ends_with_one_line(
    experiment, fake_hub, fake_data, lock, capsys
):
    fake_hub.offline = True
    with refused("10 of 10", "model owner/a"):
        fetch(experiment)
    assert not lock.exists()
    table = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[fetch] missing")]
    assert len(table) == 10
    check_facts(table[0], "model owner/a", "no route to host")
    with refused("third", "first, second"):
        fetch(experiment, ["third"])
