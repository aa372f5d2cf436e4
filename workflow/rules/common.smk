# The one place where the experiment file becomes targets.

import json
import re
import sys
import time
from functools import cache
from pathlib import Path
from shlex import quote

from troll.errors import UserError
from troll.experiment_files import parse_experiment
from troll.experiments import BASE, resolve, resolve_base
from troll.files import unwritable
from troll.support.doctor import VLLM_ENVIRONMENT
from troll.tasks import testbed

_source = Path(workflow.configfiles[-1] if workflow.configfiles else "--config")
if _source.is_relative_to(Path.cwd()):  # as it was written
    _source = _source.relative_to(Path.cwd())
try:
    EXPERIMENT = parse_experiment(config, str(_source))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

ROOT = f"results/{EXPERIMENT.experiment}"
_closed = unwritable(Path(ROOT))
if _closed and workflow.is_main_process and not workflow.output_settings.dryrun:
    print(
        f"error: {_closed} cannot be written; chmod -R u+w results, or link results to another place",
        file=sys.stderr,
    )
    sys.exit(1)

# Not a parameter of the rule: where metrics are followed is no reason to train a run again.
_prefix = f"set -euo pipefail; export TROLL_TRACKING={EXPERIMENT.tracking}; "
# Without conda or containers, `troll` is the one beside the Python that runs Snakemake, activated or not.
if not workflow.deployment_settings.deployment_method:
    _prefix += f"PATH={quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(_prefix)


wildcard_constraints:
    model=r"[^/]+",
    task=r"[^/]+",
    trust_region=r"[^/]+",
    estimator=r"[^/]+",
    condition=r"[^/]+",
    seed=r"\d+",
    place=r"(runs|base)/.+",


SUITES = {
    name: suite
    for task in EXPERIMENT.tasks.values()
    for name, suite in task.evaluate_on.items()
}


def skipped_tasks():
    """Tasks that this machine cannot run, with the reason; every table repeats it."""
    from troll.tasks.registry import get_task
    from troll.tasks.sandbox import sandbox_available

    names = dict.fromkeys([*EXPERIMENT.tasks, *SUITES])
    code = [task for task in names if get_task(task).kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else {task: reason for task in code}


SKIPPED = skipped_tasks()
for _task, _reason in SKIPPED.items():
    print(f"warning: task {_task} is skipped: {_reason}", file=sys.stderr)

RUNS = [run for run in EXPERIMENT.runs() if run.task not in SKIPPED]
BASES = [(model, task) for model, task in EXPERIMENT.bases() if task not in SKIPPED]
GROUPS = {
    group: [run for run in runs if run.task not in SKIPPED]
    for group, runs in EXPERIMENT.groups().items()
}
HUB_MODELS = [name for name, model in EXPERIMENT.models.items() if model.hub]
if HUB_MODELS and workflow.is_main_process:
    from troll.budget import budget_lines

    print("\n".join(budget_lines(EXPERIMENT)), file=sys.stderr)


def environment(with_vllm):
    """The conda file of a kind of work, and what is called there.

    vLLM pins other versions of some packages: where it is used, all of that kind of work runs in its environment.
    """
    if not with_vllm:
        return "../../envs/train.yaml", "troll"
    beside = Path(VLLM_ENVIRONMENT, "bin", "troll")
    own = beside.exists() and not workflow.deployment_settings.deployment_method
    return "../../envs/vllm.yaml", quote(str(beside)) if own else "troll"


TRAINING_ENVIRONMENT, TRAINING_TROLL = environment(
    any(EXPERIMENT.training_of(run).vllm for run in RUNS)
)
SAMPLING_ENVIRONMENT, SAMPLING_TROLL = environment(
    EXPERIMENT.evaluation.engine == "vllm"
)


_STARTED = time.time()


def closing_words():
    """For people: the verdicts that this invocation has written, and where everything is to be seen."""
    claims = [Path(ROOT, "claims.md"), *sorted(Path(ROOT).glob("groups/*/claims.md"))]
    words = [f"{path}: {path.open().readline()}" for path in claims if _new(path)]
    if _new(page := Path(ROOT, "page.html")):
        words.append(f"everything on one page: {page}\n")
    return "".join(words)


def _new(path):
    return path.exists() and path.stat().st_mtime >= _STARTED


def one_of(names):
    """A pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


def as_json(value):
    return json.dumps(value, sort_keys=True)


def run_config(wildcards):
    """Everything that defines a run; a change of it, and of nothing else, repeats the run."""
    return as_json(resolve(EXPERIMENT, EXPERIMENT.run(run_id(wildcards))))


def run_id(wildcards):
    return "{model}/{task}/{trust_region}/{estimator}/{condition}/seed{seed}".format(
        **wildcards
    )


def gpus_of(wildcards):
    return EXPERIMENT.training_of(EXPERIMENT.run(run_id(wildcards))).gpus


def threads_of(wildcards):
    """One for each process of a tiny model, which more would slow down; four of a large one."""
    hub = EXPERIMENT.models[wildcards.model].hub
    return max(1, (4 if hub else 1) * gpus_of(wildcards))


def memory_of(wildcards, attempt):
    """Main memory in MB: 4 bytes for each weight in every process, 12 where one of them gathers a checkpoint."""
    hub = EXPERIMENT.models[wildcards.model].hub
    size = (
        1000 * (hub.billions or 8) * (4 * max(1, gpus_of(wildcards)) + 12) if hub else 0
    )
    return round((2000 + size) * attempt)


def base_config(wildcards):
    return as_json(resolve_base(EXPERIMENT, wildcards.model, wildcards.task))


def task_config(wildcards):
    settings = EXPERIMENT.tasks[wildcards.task]
    sizes = settings.model_dump(exclude={"training", "evaluate_on"})
    return as_json({"name": wildcards.task, **sizes})


def tokenizer_config(wildcards):
    """The same texts, whatever an experiment trains on: its base models are then those of every other.

    Names are an exception: they are there to fill a larger vocabulary.
    """
    model = EXPERIMENT.models[wildcards.model]
    tasks = {name: {} for name in testbed.TOKENIZER_TASKS}
    for name in tasks.keys() & EXPERIMENT.tasks.keys():
        if names := EXPERIMENT.tasks[name].settings.get("names"):
            tasks[name] = {"names": names}
    return as_json(
        {
            "tasks": tasks,
            "vocabulary": model.vocabulary,
            "demonstrations": model.supervised.demonstrations_for_tokenizer,
        }
    )


def task_of(wildcards):
    """The task of a place: runs/<model>/<task>/... or base/<model>/<task>."""
    return wildcards.place.split("/")[2]


@cache
def longest_responses():
    """The longest response by place: of a run its own, of a base model that of the runs from it."""
    found = {}
    for run in RUNS:
        longest = EXPERIMENT.training_of(run).max_response_tokens
        for place in (f"runs/{run.run_id}", f"{BASE}/{run.model}/{run.task}"):
            found[place] = max(longest, found.get(place, 0))
    return found


def max_tokens_of(wildcards):
    """The longest response that the place's model was trained to give."""
    return longest_responses()[wildcards.place]


def suites_of(place):
    """Further data sets that the models of a place's task are evaluated on."""
    suites = EXPERIMENT.tasks[place.split("/")[2]].evaluate_on
    return {name: suite for name, suite in suites.items() if name not in SKIPPED}


def suite_config(wildcards):
    """What is sampled of each further data set."""
    suites = suites_of(wildcards.place)
    return as_json(
        {name: suite.model_dump(exclude={"test"}) for name, suite in suites.items()}
    )


def suite_problems(wildcards):
    return [f"{ROOT}/suites/{name}/test.jsonl" for name in suites_of(wildcards.place)]


def grades_of(place):
    """Files that say that a place is graded."""
    names = ["grades.json", *(["suites/graded.json"] if suites_of(place) else [])]
    return [f"{ROOT}/{place}/{name}" for name in names]


def places_of(runs):
    """Places of some runs and of the base models that they start from."""
    bases = dict.fromkeys(f"{BASE}/{run.model}/{run.task}" for run in runs)
    return [*(f"runs/{run.run_id}" for run in runs), *bases]


def files_of(runs):
    """Everything that the table of these runs is made from."""
    manifests = [f"{ROOT}/runs/{run.run_id}/manifest.json" for run in runs]
    return manifests + [path for place in places_of(runs) for path in grades_of(place)]


def hub_of(wildcards):
    """The hub's model that a place is of; none for one made from scratch."""
    return EXPERIMENT.models[wildcards.place.split("/")[1]].hub


def sampling_gpus(wildcards):
    """A model of the hub is sampled on a GPU, or on those that share it."""
    shared = EXPERIMENT.evaluation.engine_options.get("tensor_parallel_size", 1)
    return shared if hub_of(wildcards) else 0


def engine_options():
    """Options of the sampling commands; none for the default engine."""
    evaluation = EXPERIMENT.evaluation
    if evaluation.engine == "transformers":
        return []
    return [
        "--engine",
        evaluation.engine,
        "--engine-options",
        as_json(evaluation.engine_options),
    ]


def sampling_memory(wildcards, attempt):
    """Main memory in MB: the weights pass through it."""
    hub = hub_of(wildcards)
    return round((2000 + (6000 * (hub.billions or 8) if hub else 0)) * attempt)


def sampling_minutes(wildcards):
    return 1440 if hub_of(wildcards) else 30


def sample_seed(wildcards):
    """Seeds of evaluation do not depend on the method, so that methods can be compared sample by sample."""
    kind, name = wildcards.place.split("/", 1)
    return (
        resolve(EXPERIMENT, EXPERIMENT.run(name))["seeds"]["evaluation"]
        if kind == "runs"
        else 0
    )


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


def group_tables(group):
    """Tables of a group: the general ones, and the published one of its name."""
    from troll.analysis.published import SECTIONS

    section = group.removeprefix("paper_").removesuffix("_matrix")
    own = (
        [f"published_{section}"] if EXPERIMENT.published and section in SECTIONS else []
    )
    return ["main", "stability", *own]


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
