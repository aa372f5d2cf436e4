"""Base models and tokenizers are made once: what is equal is taken, and what could differ is made anew."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from refusals import refused

from troll.common import numerics, processor
from troll.common.digests import damage
from troll.common.errors import UserError
from troll.common.files import only_writer, read_json
from troll.common.progress import clock
from troll.experiment.experiment import resolve_base
from troll.experiment.files import parse_experiment
from troll.training import base_model, model_cache, supervised, tokenizer
from troll.training.base_model import shared_base_model, train_base_model
from troll.training.model_cache import VARIABLE, take_or_make
from troll.training.tokenizer import make_tokenizer

MODEL = {"vocabulary": 400, "layers": 1, "width": 32, "heads": 2, "key_value_heads": 1}
MODEL |= {"supervised": {"steps": 2, "batch_size": 4}}
TASK = {"train": 16, "validation": 2, "test": 4, "settings": {"operations": [2]}}


def config_of(name="first", task=TASK, model=MODEL, **settings):
    batch = {"prompts_per_batch": 2, "responses_per_prompt": 2, "mini_batches": 2}
    file = {
        "experiment": name,
        "seeds": [0],
        "tasks": {"chains": task},
        "models": {"tiny": model},
        "trust_regions": {"clip": {"rule": "clip"}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"stale": {}},
        "training": {"max_response_tokens": 4, **batch},
        **settings,
    }
    return resolve_base(parse_experiment(file, "test"), "tiny", "chains")


@pytest.fixture
def shared(tmp_path, tiny_base, monkeypatch):
    """Asks for base models; knows how often one was trained, and what was said."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    # That of a checkout whose source is committed, or else it may change while the tests run.
    for module in (base_model, tokenizer):
        monkeypatch.setattr(module, "uncommitted_source", lambda: None)
    found = SimpleNamespace(
        trained=0, said=[], place=tmp_path / "place", tokenizer=tiny_base.parent / "tokenizer"
    )
    monkeypatch.setattr(base_model, "say", found.said.append)

    class Counted(supervised.Trainer):
        def train(self, **settings):
            found.trained += 1
            return super().train(**settings)

    monkeypatch.setattr(supervised, "Trainer", Counted)

    def ask(out, config=None, tokenizer_path=found.tokenizer):
        shared_base_model(config or config_of(), tokenizer_path, tmp_path / out)
        return read_json(tmp_path / out / "manifest.json")

    found.ask = ask
    return found


def weights(directory):
    return (directory / "checkpoint/model.safetensors").read_bytes()


def test_a_second_experiment_takes_the_model_of_the_first(shared, tmp_path):
    first = shared.ask("1")
    other = config_of("second", TASK | {"train": 8, "validation": 1, "test": 2})
    second = shared.ask("2", other)
    assert shared.trained == 1
    assert weights(tmp_path / "2") == weights(tmp_path / "1")
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["checkpoint", "manifest.json"]
    # The manifest is that of the second experiment, and says whose training it was.
    assert damage(tmp_path / "2/checkpoint", second["checkpoint"]) is None
    assert second["config"] == other.model_dump() and second["config"]["experiment"] == "second"
    assert "made_by" not in first
    assert second.pop("made_by") == {name: first[name] for name in ("git_commit", "numerics", "hardware")}
    assert second == first | {"config": second["config"], "git_commit": second["git_commit"]}
    (line,) = shared.said
    assert line.startswith(f"[base] tiny/chains/base: taken from {shared.place}/chains-")
    assert line.endswith(f", trained in {clock(first['wall_s'])}")


def test_what_is_trained_leaves_what_it_leaves_without_a_place(shared, tmp_path):
    one = shared.ask("1")
    train_base_model(config_of(), shared.tokenizer, tmp_path / "2")
    two = read_json(tmp_path / "2/manifest.json")
    assert shared.trained == 2 and weights(tmp_path / "1") == weights(tmp_path / "2")
    assert [*one] == [*two] and one["checkpoint"] == two["checkpoint"]


def change(path, value):
    """A configuration with one value replaced."""
    data = config_of().model_dump()
    block = data
    for name in path[:-1]:
        block = block[name]
    assert block.get(path[-1]) != value
    block[path[-1]] = value
    return type(config_of()).model_validate(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seeds", "model"), 7),
        (("seeds", "data"), 7),
        (("model", "width"), 16),
        (("model", "initializer_range"), 0.1),
        (("model", "supervised", "steps"), 3),
        (("model", "supervised", "learning_rate"), 1e-4),
        (("task", "settings", "operations"), [3]),
        (("task", "settings", "guess"), 0.4),
    ],
    ids=lambda value: str(value),
)
def test_whatever_can_change_the_weights_is_part_of_the_identity(shared, path, value):
    before = base_model.identity_of(config_of(), shared.tokenizer)
    assert base_model.identity_of(change(path, value), shared.tokenizer) != before


def test_names_and_numbers_of_problems_are_no_part_of_it(shared):
    before = base_model.identity_of(config_of(), shared.tokenizer)
    names = [(("experiment",), "other"), (("run_id",), "other/chains/base"), (("model", "name"), "other")]
    for path, value in [*names, *((("task", split), 1) for split in ("train", "validation", "test"))]:
        assert base_model.identity_of(change(path, value), shared.tokenizer) == before, path


def test_a_changed_setting_and_another_tokenizer_train_anew(shared, tmp_path):
    make_tokenizer({"chains": {}, "functions": {}}, 400, 2000, tmp_path / "tokenizer")
    shared.ask("1")
    shared.ask("2", change(("seeds", "model"), 7))
    assert shared.trained == 2 and not shared.said
    assert weights(tmp_path / "1") != weights(tmp_path / "2")
    shared.ask("3", tokenizer_path=tmp_path / "tokenizer")
    assert shared.trained == 3


def test_numbers_that_change_for_some_rules_leave_base_models_alone(shared, monkeypatch):
    shared.ask("1")
    later = numerics.NUMERICS + 1
    before = numerics.CHANGES
    monkeypatch.setattr(numerics, "CHANGES", (*before, numerics.Change(later, "a rule", ("clip",))))
    shared.ask("2")
    assert shared.trained == 1
    monkeypatch.setattr(numerics, "CHANGES", (*before, numerics.Change(later, "everything")))
    shared.ask("3")
    assert shared.trained == 2


def test_the_last_change_is_that_of_changed_since(monkeypatch):
    rules = None, ("clip",), None, ("troll",)
    changes = tuple(numerics.Change(number, "why", of) for number, of in enumerate(rules, 1))
    for until in range(5):
        monkeypatch.setattr(numerics, "CHANGES", changes[:until])
        for rule in ("", "clip", "troll"):
            last = numerics.last_change(rule)
            assert last <= until
            for since in range(until + 1):
                assert numerics.changed_since(since, rule, until=until) == (since < last)


def test_source_that_is_in_no_commit_has_models_of_its_own(shared, monkeypatch):
    shared.ask("1")
    monkeypatch.setattr(base_model, "uncommitted_source", lambda: "a" * 64)
    shared.ask("2")
    assert shared.trained == 2
    shared.ask("3")
    assert shared.trained == 2


@pytest.mark.parametrize(
    "machine",
    [{"threads": 2}, {"gpus": ["NVIDIA H100"]}, {"capability": "DEFAULT"}, {"blas": "OpenBLAS"}],
    ids=str,
)
def test_a_machine_that_rounds_otherwise_trains_anew(shared, monkeypatch, machine):
    before, known = base_model.identity_of(config_of(), shared.tokenizer), base_model.hardware()
    monkeypatch.setattr(base_model, "hardware", lambda: known | machine)
    assert base_model.identity_of(config_of(), shared.tokenizer) != before
    monkeypatch.setattr(base_model, "hardware", lambda: known | {"processor": "of another name", "cores": 99})
    assert base_model.identity_of(config_of(), shared.tokenizer) == before


def test_processors_with_the_code_for_avx2_are_alike_but_for_their_maker(monkeypatch):
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")
    for name, value in processor._AVX2.items():
        monkeypatch.setenv(name, value)

    def of(**known):
        monkeypatch.setattr(processor, "first_processor", lambda: known)
        return processor.arithmetic()

    amd = {"vendor_id": "AuthenticAMD", "flags": "avx2 avx512f"}
    zen = of(**amd, **{"model name": "EPYC"})
    assert zen == of(**amd, **{"model name": "Ryzen"}) != of(**(amd | {"vendor_id": "GenuineIntel"}))
    old = {"vendor_id": "GenuineIntel", "flags": "sse4_2"}
    assert of(**old, **{"model name": "a"}) != of(**old, **{"model name": "b"})
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert of(**amd, **{"model name": "EPYC"}) != zen


def test_a_damaged_model_is_noticed_and_trained_again(shared, tmp_path, capsys):
    shared.ask("1")
    (stored,) = shared.place.glob("*/files/model.safetensors")
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    shared.ask("2")
    assert shared.trained == 2 and weights(tmp_path / "2") == weights(tmp_path / "1")
    assert "the contents of model.safetensors have changed; it is made again" in capsys.readouterr().err
    shared.ask("3")
    assert shared.trained == 2


def test_rehearsals_have_base_models_of_their_own(shared):
    rehearsed = config_of(rehearsal=True)
    shared.ask("1", rehearsed)
    assert not shared.place.exists()
    assert shared.ask("2") and shared.ask("3", rehearsed)["config"]["rehearsal"] is True
    assert shared.trained == 3


def test_a_model_of_the_hub_is_refused(shared):
    config = config_of(model={"hub": {"id": "owner/name", "billions": 0.1}})
    with refused("tiny/chains/base", "hub", "troll job hub-model"):
        shared.ask("1", config)
    assert not shared.place.exists()


def test_a_tokenizer_is_learnt_once(shared, tmp_path, monkeypatch, capsys):
    learnt = []
    train = tokenizer.train_tokenizer
    monkeypatch.setattr(tokenizer, "train_tokenizer", lambda *given: learnt.append(1) or train(*given))

    def ask(out, tasks, vocabulary=300):
        make_tokenizer(tasks, vocabulary, 300, tmp_path / out, shared=True)
        return {path.name: path.read_bytes() for path in (tmp_path / out).iterdir()}

    first = ask("1", {"chains": {}})
    assert first.keys() == {"tokenizer.json", "tokenizer_config.json"}
    assert ask("2", {"chains": {"names": 0}}) == first, "a default, written out"
    assert len(learnt) == 1
    assert "taken from" in capsys.readouterr().err
    ask("3", {"chains": {}, "functions": {}})
    ask("4", {"chains": {}}, vocabulary=290)
    assert len(learnt) == 3
    with refused("'chain'", "'chains'"):
        ask("5", {"chain": {}})


def test_the_tests_do_not_write_to_the_checkout():
    assert os.environ[VARIABLE] == "0"


IDENTITY = {"seed": 1, "operations": (2, 3)}
CONTENTS = {"a.txt": "one", "below/b.txt": "two" * 1000}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    return tmp_path / "place"


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(model_cache, "say", lines.append)
    return lines


@pytest.fixture
def want(tmp_path):
    """Asks for the files, in a directory that is new each time."""
    done = SimpleNamespace(made=0, files=None)

    def ask(identity=IDENTITY):
        done.files = tmp_path / f"files {time.monotonic_ns()}"

        def make():
            done.made += 1
            for name, text in CONTENTS.items():
                (done.files / name).parent.mkdir(parents=True, exist_ok=True)
                (done.files / name).write_text(text)
            return {"wall_s": 1.5, "config": {"operations": (2, 3)}}

        taken = take_or_make("things", identity, done.files, make)
        assert contents(done.files) == CONTENTS
        return taken

    ask.done = done
    return ask


def contents(directory):
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_text() for path in paths}


def entry_in(place):
    (entry,) = place.iterdir()
    return entry


def test_what_is_there_is_taken_and_something_else_is_made(place, want):
    assert want() is None and want.done.made == 1
    taken = want()
    assert want.done.made == 1
    assert taken.path == entry_in(place) and taken.path.name.startswith("things-")
    assert taken.made == {"wall_s": 1.5, "config": {"operations": [2, 3]}}
    assert want(IDENTITY | {"seed": 2}) is None and want.done.made == 2


def test_the_copies_are_the_takers_own(place, want):
    want()
    want()
    (want.done.files / "a.txt").write_text("mine")
    assert want() is not None and want.done.made == 1


def test_without_a_place_everything_is_made_and_nothing_kept(tmp_path, monkeypatch, want):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "0")
    assert want() is want() is None and want.done.made == 2
    assert {path.name.split()[0] for path in tmp_path.iterdir()} == {"files"}
    monkeypatch.delenv(VARIABLE)
    want()
    assert want().path.parent.as_posix() == "resources/base-models"


def alter(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda entry: (entry / "files/a.txt").write_text("oNe"), "the contents of a.txt have changed"),
        (lambda entry: (entry / "files/a.txt").write_text(""), "a.txt has 0 bytes instead of 3"),
        (lambda entry: (entry / "files/below/b.txt").unlink(), "below/b.txt is missing"),
        (
            lambda entry: alter(entry / "record.json", '"wall_s": 1.5', '"wall_s": 2.5'),
            "the contents of record.json have changed",
        ),
        (lambda entry: (entry / "record.json").write_text("[]"), "the contents of record.json have changed"),
        (lambda entry: (entry / "record.json").write_text("{"), "record.json: not JSON"),
    ],
)
def test_damage_is_a_line_and_the_entry_is_made_again(place, said, want, break_it, problem):
    want()
    break_it(entry_in(place))
    assert want() is None and want.done.made == 2
    (line,) = said
    assert line.startswith(f"{entry_in(place)}: {problem}") and line.endswith("; it is made again")
    assert want() is not None and want.done.made == 2


def test_an_entry_of_another_name_is_not_taken(place, said, want):
    want()
    other = entry_in(place)
    want(IDENTITY | {"seed": 2})
    entry = next(path for path in place.iterdir() if path != other)
    (entry / "record.json").write_text((other / "record.json").read_text())
    want(IDENTITY | {"seed": 2})
    assert want.done.made == 3 and "record.json is that of another entry" in said[0]


def test_what_could_not_be_made_is_not_there(place, want, tmp_path):
    def fail():
        raise UserError("no")

    with refused("no"):
        take_or_make("things", IDENTITY, tmp_path / "x", fail)
    assert want() is None and want() is not None


@pytest.mark.parametrize("where", ["a file", "a file/place"])
def test_a_place_that_is_none_is_a_line(tmp_path, monkeypatch, said, want, where):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / where))
    if where == "a file":
        with refused(f"{VARIABLE}={tmp_path}/a file", "directory"):
            want()
        assert not want.done.made
    else:
        assert want() is None
        assert said == [
            f"{tmp_path}/a file/place: cannot be written (Not a directory), so nothing is kept there"
        ]


def test_a_full_disk_costs_the_entry_and_not_what_was_made(place, said, want, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_cache.shutil, "copytree", full)
    assert want() is None
    entry, why = entry_in(place), "No space left on device"
    assert said == [f"{entry}: cannot be written ({why}), so it is not kept there"]


def test_an_entry_can_be_taken_where_nothing_can_be_written(place, want, monkeypatch):
    want()

    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(model_cache, "only_writer", denied)
    assert want() is not None


PROGRAM = """
import os, shutil, signal, sys, time
from pathlib import Path
from troll.training import model_cache

how, out, log = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def half(source, target, **_):
    Path(target).write_bytes(Path(source).read_bytes()[:1])
    if Path(source).name == "b.txt":
        die()

if how == "in a file":
    shutil.copyfile = half
if how == "before the record":
    model_cache.write_json = die
if how == "in the record":
    Path.replace = die

def make():
    with log.open("a") as file:
        file.write("made\\n")
    time.sleep(float(sys.argv[4]))
    for name, text in {"a.txt": "one", "below/b.txt": "two" * 1000}.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    return {}

model_cache.take_or_make("things", {"seed": 1, "operations": [2, 3]}, out, make)
"""


def start(how, out, log, seconds=0.0):
    command = [sys.executable, "-c", PROGRAM, how, str(out), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["in a file", "before the record", "in the record"])
def test_a_maker_that_is_killed_while_it_keeps_leaves_nothing_that_is_taken(place, said, want, tmp_path, how):
    process = start(how, tmp_path / "killed", tmp_path / "log")
    assert process.wait(60) == -signal.SIGKILL, process.stderr.read()
    assert not (entry_in(place) / "record.json").exists()
    assert len(list(entry_in(place).iterdir())) > 1, "it was killed too early"
    assert want() is None and want.done.made == 1 and not said
    assert want() is not None
    assert sorted(path.name for path in entry_in(place).iterdir()) == [".lock", "files", "record.json"]


def test_of_several_at_a_time_one_makes_it(place, want, tmp_path):
    log = tmp_path / "log"
    processes = [start("", tmp_path / f"{number}", log, seconds=1.0) for number in range(4)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert log.read_text() == "made\n"
    assert all(contents(tmp_path / f"{number}") == CONTENTS for number in range(4))
    assert want() is not None


def test_who_waited_for_a_maker_that_was_killed_makes_it(place, tmp_path):
    log = tmp_path / "log"
    first = start("", tmp_path / "1", log, seconds=60)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start("", tmp_path / "2", log)
    assert "waiting for it to end" in second.stderr.readline()
    os.kill(first.pid, signal.SIGKILL)
    assert second.wait(60) == 0 and first.wait() == -signal.SIGKILL
    assert log.read_text() == "made\n" * 2 and contents(tmp_path / "2") == CONTENTS


def test_the_record_is_read_by_people_too(place, want):
    want()
    record = json.loads((entry_in(place) / "record.json").read_text())
    assert record["identity"] == {"seed": 1, "operations": [2, 3]}
    with only_writer(entry_in(place)):
        assert want() is not None, "taking waits for nobody"
