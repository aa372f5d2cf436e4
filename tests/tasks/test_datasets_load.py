"""Loading: one form, one source, and nothing that is not what it must be."""

import json
import re

import pytest
from refusals import refused

from troll.common.errors import UserError
from troll.tasks import testbed
from troll.tasks.datasets import hub, load
from troll.tasks.datasets.catalogue import DATA_SETS, MATH_EVAL
from troll.tasks.datasets.mirror import mirror_files, read_mirror
from troll.tasks.registry import check_settings, get_task, task_names

LOCAL = [
    (name, split)
    for name, item in DATA_SETS.items()
    for split, part in item.parts.items()
    if part.file is not None or name == "dapo"
]


@pytest.mark.parametrize(("name", "split"), LOCAL)
def test_every_set_has_one_form(real_data, name, split):
    loaded = load.load(name, split)
    assert loaded.provenance["source"] == "mirror"
    kind = DATA_SETS[name].kind
    # two solutions of MATH end with an empty box
    unanswered = [p.task_id for p in loaded.problems if not p.answer.strip()]
    assert unanswered == (["5341", "5343"] if (name, split) == ("math", "train") else [])
    for problem in loaded.problems:
        assert problem.prompt.strip()
        if kind == "math":
            assert (
                problem.record["answer"] == problem.answer
                and problem.record["problem"].strip() in problem.prompt
            )
        else:
            assert {"prompt", "entry_point", "canonical_solution"} <= set(problem.record)


def test_the_substitutes_are_marked_and_only_they(real_data):
    marked = {name for name, split in LOCAL if load.load(name, split).provenance["substitute"]}
    assert marked == {"dapo", "omni-math"}


def test_answers_follow_the_conventions_of_each_set(real_data):
    def answer(name, number):
        return load.load(name).problems[number].answer

    assert answer("gsm8k", 0) == "18"
    assert all(re.fullmatch(r"-?\d+", problem.answer) for problem in load.load("gsm8k").problems)
    assert answer("math", 0) == "2"
    assert answer("amc23", 0) == "27"
    assert "(1,8,19), (2,7,13), (4,5,7)" in {p.answer for p in load.load("olympiadbench").problems}
    omni = load.load("omni-math").problems
    assert not any("\\boxed" in problem.answer or "\\[" in problem.answer for problem in omni)
    assert omni[183].answer == r"\frac{5055}{2^{15}}"  # its last brace is missing in the source
    # its solution says "\boxed 2"
    assert load.load("math", "train").problems[888].answer == "2"


def test_ids_are_the_sets_own_or_row_numbers(real_data):
    def ids(name):
        return [problem.task_id for problem in load.load(name).problems]

    assert ids("gsm8k") == [str(number) for number in range(1319)]
    assert ids("aime24")[0] == "60" and ids("mbpp")[0] == "11" and ids("mbpp+")[0] == "Mbpp/2"
    assert ids("humaneval")[163] == "HumanEval/163" and ids("math500")[0] == "test/precalculus/807.json"


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda content: content[:-100], ("749638 bytes",)),
        (lambda content: content.replace(b"18", b"19", 1), ()),
    ],
)
def test_a_damaged_file_is_refused_by_name(real_data, tmp_path, monkeypatch, damage, facts):
    target = tmp_path / "gsm8k" / "test.jsonl"
    target.parent.mkdir()
    target.write_bytes(damage((real_data / "gsm8k/test.jsonl").read_bytes()))
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(tmp_path))
    with refused(target, *facts):
        load.load("gsm8k")


def test_every_file_of_the_mirror_is_what_it_must_be(real_data):
    for name, entry in mirror_files().items():
        if name.endswith(".json"):
            continue  # one array; no task reads it
        assert len(read_mirror(real_data, name)) == entry.rows


def test_a_data_set_comes_whole_from_the_mirror_or_whole_from_the_hub(tmp_path, monkeypatch):
    def asked(part):
        raise UserError(f"the hub was asked for {part.repository}")

    monkeypatch.setattr(load, "read_hub", asked)
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(tmp_path))
    for name, repository in (("gsm8k", "openai/gsm8k"), ("eurus-math", "PRIME-RL/Eurus-2-RL-Data")):
        with refused(repository):
            load.load(name)
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/train.jsonl.gz").write_bytes(b"")
    with refused(tmp_path / "gsm8k/test.jsonl", "TROLL_DATA_MIRROR"):
        load.load("gsm8k")
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(tmp_path / "none"))
    with refused(f"TROLL_DATA_MIRROR={tmp_path}/none"):
        load.load("gsm8k")


# --- hub ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """A hub with one data set that moves on, and a lock file."""
    state = {"revision": "aaa", "rows": {"aaa": [{"question": "1+1?", "answer": "#### 2"}] * 3}, "asked": []}
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    monkeypatch.setenv("TROLL_DATA_LOCK", str(tmp_path / "data.lock.json"))

    def download(_, revision):
        state["asked"].append(revision)
        return state["rows"][revision]

    monkeypatch.setattr(hub, "_resolve", lambda _: state["revision"])
    monkeypatch.setattr(hub, "_download", download)
    return state


PART = hub.HubPart("owner/set", "test", rows=3)


def test_the_first_download_pins_what_later_ones_obey(fake_hub, tmp_path):
    rows, revision = hub.read_hub(PART)
    assert (len(rows), revision) == (3, "aaa")
    lock = json.loads((tmp_path / "data.lock.json").read_text())
    expected = {"rows": 3, "sha256": hub.rows_digest(rows)}
    assert lock == {"owner/set": {"revision": "aaa", "parts": {"default/test": expected}}}
    fake_hub["revision"] = "bbb"
    assert hub.read_hub(PART)[1] == "aaa"
    # another part of the same set comes from the same revision
    assert hub.read_hub(hub.HubPart("owner/set", "train"))[1] == "aaa"
    assert fake_hub["asked"] == ["aaa"] * 3


def test_other_content_than_the_lock_names_is_refused(fake_hub):
    hub.read_hub(PART)
    fake_hub["rows"]["aaa"] = [{"question": "1+1?", "answer": "#### 3"}] * 3
    with refused("owner/set (default/test)", "revision aaa", "3 rows", "data.lock.json"):
        hub.read_hub(PART)


def test_a_set_of_another_size_is_refused_and_not_pinned(fake_hub, tmp_path):
    fake_hub["rows"]["aaa"] = fake_hub["rows"]["aaa"][:2]
    with refused("owner/set", "2 rows", 3):
        hub.read_hub(PART)
    assert not (tmp_path / "data.lock.json").exists()


def test_without_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    monkeypatch.setenv("TROLL_DATA_LOCK", str(tmp_path / "data.lock.json"))

    class Api:
        def dataset_info(self, _):
            raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    for name in ("gsm8k", "eurus-code", "dapo"):
        with refused("no route to host", "TROLL_DATA_MIRROR"):
            load.load(name)


def test_hub_rows_become_problems(fake_hub, monkeypatch):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "What is 1+1?"}]
    truth = json.dumps({"inputs": ["1 1\n"], "outputs": ["2\n"]})
    fake_hub["rows"]["aaa"] = [
        {
            "ability": "math",
            "prompt": chat,
            "reward_model": {"ground_truth": "2"},
            "extra_info": {"index": 5},
        },
        {
            "ability": "code",
            "prompt": chat,
            "reward_model": {"ground_truth": truth},
            "extra_info": {"index": 6},
        },
    ]
    load._load.cache_clear()
    (problem,) = load.load("eurus-math").problems
    assert (problem.task_id, problem.answer, problem.record["problem"]) == ("5", "2", "What is 1+1?")
    (problem,) = load.load("eurus-code").problems
    assert problem.record["inputs"] == ["1 1\n"] and problem.record["outputs"] == ["2\n"]
    assert load.load("eurus-code").provenance["revision"] == "aaa"
    load._load.cache_clear()


# --- as tasks -----------------------------------------------------------------------------------------------


def test_sets_are_tasks_beside_the_testbed():
    assert {*testbed.NAMES, *DATA_SETS} == {*task_names()}
    assert set(MATH_EVAL) <= set(task_names()) and len(MATH_EVAL) == 7


def test_splits_of_a_task_do_not_overlap_and_never_change(real_data):
    task = get_task("gsm8k")
    settings = check_settings(task, {})
    train, validation = (task.generate(split, 200, 0, settings) for split in ("train", "validation"))
    assert {p.prompt for p in train}.isdisjoint(p.prompt for p in validation)
    assert train == task.generate("train", 200, 0, settings) != task.generate("train", 200, 1, settings)
    everything = task.generate("test", 1319, 0, settings)
    assert everything == list(load.load("gsm8k").problems)
    with refused("gsm8k", "8000 train", 7217):
        task.generate("train", 8000, 0, settings)
    with refused("aime24", "train", "test"):
        get_task("aime24").generate("train", 1, 0, {})
    with refused("task dapo", "demonstrations"):
        get_task("dapo").demonstrate(1, 0, settings)


def test_written_problems_are_read_back(real_data, tmp_path):
    from troll.common.files import write_jsonl

    for name in ("gsm8k", "mbpp", "humaneval+"):
        task = get_task(name)
        problems = task.generate("test", 5, 0, {})
        write_jsonl(tmp_path / "test.jsonl", (problem.as_row() for problem in problems))
        read = task.load(tmp_path / "test.jsonl")
        assert [(p.task_id, p.prompt, p.answer) for p in read] == [
            (p.task_id, p.prompt, p.answer) for p in problems
        ]
