"""Further data sets: what is sampled once is not sampled again, unless its prompts are other ones."""

import pytest
from refusals import refused

from troll.common.files import read_jsonl, write_json, write_jsonl
from troll.evaluation import sampling, suites
from troll.evaluation.suites import sample_suites
from troll.experiment.settings import Suite


@pytest.fixture
def draw(checkpoint, tmp_path, monkeypatch):
    """Samples two problems of a data set, and tells how many calls of `sample` that took."""
    write_json(checkpoint.parent / "manifest.json", {"run_id": "a"})
    rows = [{"task_id": f"gsm8k/test/{n}", "prompt": word, "answer": "1"} for n, word in enumerate("ab")]
    write_jsonl(tmp_path / "data/gsm8k/test.jsonl", rows)
    called = []
    monkeypatch.setattr(suites, "sample", lambda *a, **k: called.append(1) or sampling.sample(*a, **k))

    def again():
        how = {"max_new_tokens": 3, "batch_size": 4, "seed": 1, "engine": "transformers"}
        sample_suites(checkpoint, {"gsm8k": Suite(samples=2)}, tmp_path / "data", tmp_path / "out", **how)
        return len(called)

    yield again
    (checkpoint.parent / "manifest.json").unlink()


def test_other_prompts_are_sampled_anew(draw, tmp_path, monkeypatch):
    assert draw() == draw() == 1
    path = tmp_path / "out/gsm8k.samples.jsonl"
    first = read_jsonl(path)
    encode = sampling.encode
    monkeypatch.setattr(sampling, "encode", lambda *a, **k: [[*ids, 3] for ids in encode(*a, **k)])
    assert draw() == 2
    digests = [{row["prompt_digest"] for row in rows} for rows in (first, read_jsonl(path))]
    assert len(digests[0]) == len(digests[1]) == 2 and not digests[0] & digests[1]


def test_samples_of_an_earlier_version_are_kept(draw, tmp_path):
    draw()
    path = tmp_path / "out/gsm8k.samples.jsonl"
    rows = [{key: row[key] for key in row if key != "prompt_digest"} for row in read_jsonl(path)]
    write_jsonl(path, rows)
    assert draw() == 1 and read_jsonl(path) == rows


def test_a_file_of_two_prompts_is_refused(draw, tmp_path):
    draw()
    path = tmp_path / "out/gsm8k.samples.jsonl"
    rows = list(read_jsonl(path))
    write_jsonl(path, [{**rows[0], "prompt_digest": "0"}, *rows[1:]])
    with refused(path, "task_id"):
        draw()
