# The one place where the experiment file becomes targets.

import json
import sys
from pathlib import Path
from shlex import quote

from troll.errors import UserError
from troll.experiments import BASE, parse_experiment, resolve, resolve_base
from troll.tasks import testbed

# Without conda or containers, `troll` is the one beside the Python that runs Snakemake, activated or not.
if not workflow.deployment_settings.deployment_method:
    here = quote(str(Path(sys.executable).parent))
    shell.prefix(f"set -euo pipefail; PATH={here}:$PATH; ")

_source = workflow.configfiles[-1] if workflow.configfiles else "--config"
try:
    EXPERIMENT = parse_experiment(config, str(_source))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

ROOT = f"results/{EXPERIMENT.experiment}"


wildcard_constraints:
    model=r"[^/]+",
    task=r"[^/]+",
    trust_region=r"[^/]+",
    estimator=r"[^/]+",
    condition=r"[^/]+",
    seed=r"\d+",
    place=r"(runs|base)/.+",


def skipped_tasks():
    """Tasks that this machine cannot run, with the reason; every table repeats it."""
    from troll.tasks.registry import get_task
    from troll.tasks.sandbox import sandbox_available

    code = [task for task in EXPERIMENT.tasks if get_task(task).kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else {task: reason for task in code}


SKIPPED = skipped_tasks()
for _task, _reason in SKIPPED.items():
    print(f"warning: task {_task} is skipped: {_reason}", file=sys.stderr)

RUNS = [run for run in EXPERIMENT.runs() if run.task not in SKIPPED]
BASES = [(model, task) for model, task in EXPERIMENT.bases() if task not in SKIPPED]


def as_json(value):
    return json.dumps(value, sort_keys=True)


def run_config(wildcards):
    """Everything that defines a run; a change of it, and of nothing else, repeats the run."""
    return as_json(resolve(EXPERIMENT, EXPERIMENT.run(run_id(wildcards))))


def run_id(wildcards):
    return "{model}/{task}/{trust_region}/{estimator}/{condition}/seed{seed}".format(
        **wildcards
    )


def base_config(wildcards):
    return as_json(resolve_base(EXPERIMENT, wildcards.model, wildcards.task))


def task_config(wildcards):
    settings = EXPERIMENT.tasks[wildcards.task]
    return as_json(
        {"name": wildcards.task, **settings.model_dump(exclude={"training"})}
    )


def tokenizer_config(wildcards):
    """All testbed tasks, whatever an experiment trains on: its base models are then those of every other."""
    model = EXPERIMENT.models[wildcards.model]
    return as_json(
        {
            "tasks": {name: {} for name in testbed.NAMES},
            "vocabulary": model.vocabulary,
            "demonstrations": model.supervised.demonstrations_for_tokenizer,
        }
    )


def task_of(wildcards):
    """The task of a place: runs/<model>/<task>/... or base/<model>/<task>."""
    return wildcards.place.split("/")[2]


def max_tokens_of(wildcards):
    """The longest response that the place's model was trained to give."""
    kind, name = wildcards.place.split("/", 1)
    runs = (
        [EXPERIMENT.run(name)]
        if kind == "runs"
        else [run for run in RUNS if f"{run.model}/{run.task}" == name]
    )
    return max(EXPERIMENT.training_of(run).max_response_tokens for run in runs)


def sample_seed(wildcards):
    """Seeds of evaluation do not depend on the method, so that methods can be compared sample by sample."""
    kind, name = wildcards.place.split("/", 1)
    return (
        resolve(EXPERIMENT, EXPERIMENT.run(name))["seeds"]["evaluation"]
        if kind == "runs"
        else 0
    )


def places():
    """Everything that is evaluated: every run's final model, and the base models that they start from."""
    runs = [f"runs/{run.run_id}" for run in RUNS]
    return runs + [f"{BASE}/{model}/{task}" for model, task in BASES]


def has_variants():
    """Whether the experiment varies settings of one rule: names such as troll-kl0.01 beside troll."""
    from troll.analysis.summaries import variant_of

    return any(variant_of(run.trust_region) for run in RUNS)


def published_names(kind):
    """The tables or figures that put the paper's numbers beside the runs."""
    from troll.analysis import artefacts

    known = artefacts.TABLES if kind == "table" else artefacts.FIGURES
    return [name for name in known if name.startswith("published_")]


def step_cost_options():
    """Options of `troll cost-step`; none where the experiment does not ask for it."""
    step = EXPERIMENT.cost.step if EXPERIMENT.cost else None
    return [f"--{key} {value}" for key, value in step] if step else []


def first_run_of(task):
    return next(f"runs/{run.run_id}" for run in RUNS if run.task == task)


def base_of(task):
    return next(f"{BASE}/{run.model}/{task}" for run in RUNS if run.task == task)


def approximation_figures():
    if not EXPERIMENT.approximation:
        return []
    places = [
        "zipf",
        *(f"task/{task}" for task in dict.fromkeys(run.task for run in RUNS)),
    ]
    return [f"{ROOT}/approximation/{place}/approximation.png" for place in places]


def final_outputs():
    return [f"{ROOT}/report.html", f"{ROOT}/page.html", *ARTEFACTS]
