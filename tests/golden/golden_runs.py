"""Makes the golden runs, all in this process, which `make.py` has prepared for it."""

import hashlib
from pathlib import Path

from safetensors.numpy import load_file

from troll.algorithms.advantages import ESTIMATORS
from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.common.digests import digest_of_json, sha256_of_file, sha256_of_files
from troll.common.files import read_json, read_jsonl, read_yaml
from troll.common.numerics import NUMERICS
from troll.evaluation.grading import grade
from troll.evaluation.sampling import sample
from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import parse_experiment
from troll.tasks.registry import get_task, write_problems
from troll.tasks.sandbox.pool import sandbox_available
from troll.tasks.testbed import tokenizer_texts
from troll.tasks.types import SPLITS
from troll.training.base_model import train_base_model
from troll.training.manifest import hardware, versions
from troll.training.run import train_run
from troll.training.tokenizer import make_tokenizer

PACKAGES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "datasets", "numpy")
MODEL = "tiny"
KEPT = ("grad_norm",)  # of a run that is not kept whole
SAMPLED = ("task_id", "sample", "completion")


def experiment(*, every=True):
    """The experiment of golden.yaml, and in it ``every`` registered rule and estimator."""
    data = read_yaml(Path(__file__).with_name("golden.yaml"), "experiment file")
    if not every:
        return parse_experiment(data, "golden.yaml")
    rules, estimators = (
        {name.replace("+", "p"): {"rule": name} for name in sorted(set(registry) - set(data[key]))}
        for key, registry in (("trust_regions", TRUST_REGIONS), ("estimators", ESTIMATORS))
    )
    data["trust_regions"] |= rules
    data["estimators"] |= estimators
    block = {"tasks": ["chains"], "conditions": ["stale"]}
    data["matrix"] += [
        block | {"trust_regions": list(rules), "estimators": ["grpo"]},
        block | {"trust_regions": ["clip"], "estimators": list(estimators)},
    ]
    return parse_experiment(data, "golden.yaml")


def make(out, *, every=True):
    """Makes all golden runs below a directory, or those of golden.yaml; returns what is recorded of them."""
    golden = experiment(every=every)
    model = golden.models[MODEL]
    make_tokenizer(
        tokenizer_texts({task: settings.settings for task, settings in golden.tasks.items()}),
        model.vocabulary,
        model.supervised.demonstrations_for_tokenizer,
        out / "tokenizer",
    )
    available, reason = sandbox_available()
    left_out = {task: reason for task in golden.tasks if get_task(task).kind == "code" and not available}
    whole = golden.groups()["whole"]
    models, runs = {}, {}
    for task in golden.tasks:
        if task not in left_out:
            models[f"base model of {task}"] = _base_model(resolve_base(golden, MODEL, task), out)
    for run in golden.runs():
        if run.task not in left_out:
            runs[name_of(run)] = _run(resolve(golden, run), out, whole=run in whole)
    machine = hardware()
    return {
        "numerics": NUMERICS,
        "made_with": {
            "capability": machine["capability"],
            "maker": machine.get("vendor", ""),
            **{name: versions()[name] for name in PACKAGES},
        },
        "left_out": left_out,
        "models": models,
        "runs": runs,
    }


def name_of(run):
    how = "" if run.condition == "stale" else f", {run.condition}"
    return f"{run.trust_region} with {run.estimator} on {run.task}{how}"


def _base_model(config, out):
    task, directory = config.task, out / "base" / config.task.name
    data = out / "data" / task.name
    sizes = {split: getattr(task, split) for split in SPLITS}
    write_problems({"name": task.name, **sizes, "settings": task.settings}, data)
    train_base_model(config, out / "tokenizer", directory)
    found = {
        "configuration": _digest(config.model_dump()),
        "metrics": {"final_loss": [read_json(directory / "manifest.json")["final_loss"]]},
        "digests": {
            "problems": _short(sha256_of_files([data / f"{split}.jsonl" for split in SPLITS], data)),
            "tokenizer": _short(sha256_of_file(out / "tokenizer" / "tokenizer.json")),
            "weights": _weights(directory),
        },
    }
    return _with_grades(found, config, directory, data, seed=0)


def _run(config, out, *, whole):
    directory, data = out / "runs" / config.run_id, out / "data" / config.task.name
    directory.mkdir(parents=True)
    train_run(config, out / "base" / config.task.name / "checkpoint", data, directory)
    rows = list(read_jsonl(directory / "metrics.jsonl"))
    for row in rows:
        del row["time"]
    logged = sorted({name for row in rows for name in row} - {"step", "rollout_batch"})
    found = {
        "configuration": _digest(config.model_dump()),
        "logged": _digest(logged),
        "metrics": {name: [row.get(name) for row in rows] for name in (logged if whole else KEPT)},
        "digests": {"all metrics": _digest(rows), "weights": _weights(directory)},
    }
    return _with_grades(found, config, directory, data, config.seeds.evaluation) if whole else found


def _digest(value):
    return _short(digest_of_json(value))


def _short(digest):
    """So much of a digest that no two are equal by chance."""
    return digest[:16]


def _weights(directory):
    """Digest of the tensors' names, shapes and bytes: a file's header may change without a number."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(directory / "checkpoint" / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode() + tensor.tobytes())
    return _short(digest.hexdigest())


def _with_grades(found, config, directory, data, seed):
    """With the digest of the samples on the test split, and by problem which of them passed."""
    task, samples, grades = config.task.name, directory / "samples.jsonl", directory / "grades.json"
    problems = data / "test.jsonl"
    sample(
        directory / "checkpoint",
        get_task(task).load(problems),
        samples_per_problem=8,
        max_new_tokens=24,
        seed=seed,
        out=samples,
    )
    grade(task, samples, problems, grades)
    passed = {name: row["passed"] for name, row in read_json(grades)["problems"].items()}
    digests = found["digests"] | {
        "samples": _digest([[row[key] for key in SAMPLED] for row in read_jsonl(samples)])
    }
    flags = {name: "".join("01"[flag] for flag in flags) for name, flags in passed.items()}
    return found | {"digests": digests, "passed": flags}
