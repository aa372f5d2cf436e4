"""The data sets as tasks of lm-eval: offline, with as many samples as the paper takes."""

import pytest

from troll.evaluation.lm_eval.builtin import write_tasks
from troll.tasks.datasets.catalogue import MATH_EVAL
from troll.tasks.datasets.load import load

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'troll[evaluate]'")


def evaluate(names, answer, limit, path):
    """Evaluates a model that answers each document as told, on the first problems of each set."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate as run
    from lm_eval.tasks import TaskManager

    class Oracle(LM):
        def generate_until(self, requests, disable_tqdm=False):
            return [answer(request.doc, number) for number, request in enumerate(requests)]

        def loglikelihood(self, requests, disable_tqdm=False):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    manager = TaskManager(include_path=str(path), include_defaults=False)
    loaded = manager.load(names)
    return run(lm=Oracle(), task_dict=loaded, bootstrap_iters=0, limit=limit, log_samples=True)


def test_the_math_eval_is_the_mean_over_seven_sets(real_data, tmp_path):
    write_tasks(tmp_path)

    def answer(document, number):
        wrong = number % 2
        return "\\boxed{}" if wrong else f"\\boxed{{{document['answer']}}}"

    results = evaluate(["troll_math_eval"], answer, 2, tmp_path)
    scores = {name: results["results"][f"troll_{name.replace('-', '_')}"] for name in MATH_EVAL}
    values = [row["pass@1,all"] for row in scores.values()]
    assert set(values) == {0.5}
    assert results["results"]["troll_math_eval"]["pass@1,all"] == pytest.approx(0.5)
    for name, repeats in MATH_EVAL.items():
        samples = results["samples"][f"troll_{name.replace('-', '_')}"]
        assert [len(sample["resps"][0]) for sample in samples] == [repeats] * 2
        assert samples[0]["doc"]["prompt"] == load(name).problems[0].prompt


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_an_oracle_solves_the_sets_and_a_mute_model_none(real_data, tmp_path, name):
    write_tasks(tmp_path)

    def solve(document, _):
        return f"So \\boxed{{{document['answer']}}}"

    task = f"troll_{name}"
    assert evaluate([task], solve, 5, tmp_path)["results"][task]["pass@1,all"] == 1.0
    assert evaluate([task], lambda *_: "", 5, tmp_path)["results"][task]["pass@1,all"] == 0.0


@pytest.mark.slow
def test_written_tasks_run_offline_the_packages_and_those_of_lm_eval(real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    names = write_tasks(tmp_path / "tasks")
    own = [name for name in names if name.startswith("local_")]
    assert {"troll_gsm8k", "troll_math", "troll_math500", "troll_math_eval"} <= set(names) - set(own)

    def solve(document, _):
        if "question" in document:
            return document["answer"]
        return f"Final Answer: The final answer is ${document['answer']}$. I hope it is correct."

    def box(document, _):
        return f"\\boxed{{{document['answer']}}}"

    results = evaluate(own, solve, 3, path=tmp_path / "tasks")["results"]
    assert results["local_gsm8k"]["exact_match,strict-match"] == 1.0
    for name in own[1:]:
        assert results[name]["exact_match,none"] == 1.0
    asked = evaluate(["prompted_gsm8k", "prompted_minerva_math500"], box, 3, path=tmp_path / "tasks")
    assert asked["results"]["prompted_minerva_math500"]["math_verify,none"] == 1.0
    for name, data_set in (("prompted_gsm8k", "gsm8k"), ("prompted_minerva_math500", "math500")):
        prompts = [sample["arguments"][0][0] for sample in asked["samples"][name]]
        assert set(prompts) == {problem.prompt for problem in load(data_set).problems[:3]}
    copied = evaluate(["troll_math_eval"], box, 1, path=tmp_path / "tasks")["results"]
    assert copied["troll_math_eval"]["pass@1,all"] == 1.0
