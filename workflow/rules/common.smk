# The one place where the experiment file becomes targets.

import json
import os
import re
import sys
import time
from functools import cache
from pathlib import Path
from shlex import quote

from snakemake.utils import update_config

from troll.analysis.captions import write_captions
from troll.analysis.claims.packaged import DEFAULT, claims_file
from troll.analysis.registry import stems
from troll.common.digests import sha256_of_file
from troll.common.errors import UserError
from troll.experiment.files import parse_experiment, read_configuration
from troll.experiment.looks import with_further_seeds
from troll.experiment.experiment import BASE, resolve, resolve_base, run_seeds
from troll.experiment.resources import (
    FIXED,
    base_request,
    sampling_request,
    training_request,
)
from troll.common.files import unwritable
from troll.operations.doctor import VLLM_ENVIRONMENT
from troll.operations import progress_line
from troll.operations.outputs import entries_of, made, rule_of
from troll.operations.scheduling import check_interpreter, one_timer
from troll.tasks import testbed
from troll import warm

# Snakemake reads names in braces out of the paths of environments and of input files, whoever chose them.
if re.search(r"[{}]", workflow.current_basedir.get_path_or_uri(secret_free=False)):
    print(
        f"error: {workflow.current_basedir.get_path_or_uri(secret_free=True)}: Snakemake cannot work from a directory"
        " whose path has braces; move the checkout",
        file=sys.stderr,
    )
    sys.exit(1)

_source = Path(workflow.configfiles[-1] if workflow.configfiles else "--config")
if _source.is_relative_to(Path.cwd()):  # as it was written
    _source = _source.relative_to(Path.cwd())


def _blamed(problem):
    """Whose mistake it is: the file's, that of --config, or of both together."""
    overrides, key = workflow.config_settings.config, re.match(r"\w*", problem)[0]
    of_file = key in config and key not in overrides
    if of_file or not (overrides and workflow.configfiles):
        return _source
    return "--config" if key in overrides else f"{_source} and --config"


def _parsed():
    try:
        return parse_experiment(config, str(_source))
    except UserError as error:
        problem = str(error).removeprefix(f"{_source}: ")
    # A block is merged key by key: what is wrong in the file alone, too, is the file's.
    alone = {}
    for file in workflow.configfiles:
        update_config(alone, read_configuration(Path(file)))
    try:
        parse_experiment(alone, "")
    except UserError as error:
        if str(error) == f": {problem}":
            raise UserError(f"{_source}: {problem}") from None
    raise UserError(f"{_blamed(problem)}: {problem}")


try:
    for (
        _file
    ) in workflow.configfiles:  # as it stands: Snakemake's own reading is less strict
        read_configuration(Path(_file))
    EXPERIMENT = _parsed()
    # Seeds that were named beforehand are all there is: none are added, and none of an earlier run count.
    if "seeds" in workflow.config_settings.config:
        EXPERIMENT = EXPERIMENT.model_copy(update={"more_seeds": None})
    EXPERIMENT = with_further_seeds(EXPERIMENT, Path("results", EXPERIMENT.experiment))
    CLAIMS = [str(claims_file(name)) for name in EXPERIMENT.claims]
    # The reader takes a while to import. The package's own claims are known to be right.
    if workflow.is_main_process and EXPERIMENT.claims != [DEFAULT]:
        from troll.analysis.claims.verdicts import read_claims

        read_claims([Path(name) for name in CLAIMS])
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)

ROOT = f"results/{EXPERIMENT.experiment}"
CAPTIONS = write_captions(Path(".snakemake/captions").absolute())
_closed = unwritable(Path(ROOT))
if _closed and workflow.is_main_process and not workflow.output_settings.dryrun:
    print(
        f"error: {_closed} cannot be written; chmod -R u+w results, or link results to another place",
        file=sys.stderr,
    )
    sys.exit(1)

SHOWN = progress_line.install(workflow, EXPERIMENT, Path(ROOT))


def verbatim(text):
    """A text without names in braces for Snakemake: paths of users may hold braces."""
    return text.replace("{", "{{").replace("}", "}}")


# Snakemake takes braces in the names of input files for wildcards, whoever names them: files of claims with braces in their
# path are known by their digests instead.
CLAIMS_FILES = [path for path in CLAIMS if not re.search(r"[{}]", path)]
CLAIMS_DIGESTS = [
    sha256_of_file(Path(path)) for path in CLAIMS if path not in CLAIMS_FILES
]


# Not a parameter of the rule: where metrics are followed is no reason to train a run again.
_prefix = f"set -euo pipefail; export TROLL_TRACKING={EXPERIMENT.tracking}; "
# Nor is this: it decides what becomes of a run that could not go on.
_prefix += f"export TROLL_NOT_FINITE={EXPERIMENT.not_finite}; "
if (
    _source.exists()
):  # for the manifests, and no parameter either: a comment in the file repeats nothing
    # Where somebody keeps their files tells others nothing.
    _named = _source.name if _source.is_absolute() else _source
    _prefix += (
        f"export TROLL_EXPERIMENT_FILE={quote(f'{sha256_of_file(_source)} {_named}')}; "
    )
# Nor where the workflow lies, whose scripts are no part of the package: a checkout may be moved, and used as a module.
_here = Path(workflow.current_basedir.get_path_or_uri(secret_free=False)).absolute()
_prefix += f"export TROLL_WORKFLOW={quote(str(_here.parent))}; "
# What jobs say of themselves goes to Snakemake's log file where the terminal has one line for all of them.
if SHOWN.log:
    _prefix += f"export {progress_line.TERMINAL}={quote(str(SHOWN.log))}; "
# Without conda or containers, `troll` is the one beside the Python that runs Snakemake, activated or not.
if not workflow.deployment_settings.deployment_method:
    _prefix += f"PATH={quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(verbatim(_prefix))


def fork_jobs():
    """Jobs on this machine are forked from a process that has loaded the libraries, where that gives the same."""
    if (
        workflow.is_main_process
        and workflow.local_exec
        and not workflow.deployment_settings.deployment_method
    ):
        shell.prefix(verbatim(_prefix + warm.shell_prefix()))


def start():
    """What is done once, before the first job."""
    if workflow.is_main_process and not workflow.local_exec:
        try:
            check_interpreter(sys.executable)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
    fork_jobs()
    one_timer(getattr(workflow, "scheduler", None))


onstart:
    start()


# Snakemake calls no `onstart` of a module: it is added to that of the Snakefile that uses this one. There is no
# public way to; where another version has none at all, jobs are ordinary processes.
_users_onstart = getattr(workflow, "_onstart", None)
if _users_onstart and not workflow.modifier.is_main_snakefile():

    def _start(log):
        _users_onstart(log)
        start()

    workflow._onstart = _start


wildcard_constraints:
    model=r"[^/]+",
    task=r"[^/]+",
    trust_region=r"[^/]+",
    estimator=r"[^/]+",
    condition=r"[^/]+",
    seed=r"\d+",
    checkpoint_dir=r"(runs|base)/.+",


SUITES = {
    name: suite
    for task in EXPERIMENT.tasks.values()
    for name, suite in task.evaluate_on.items()
}


def skipped_tasks():
    """Tasks that this machine cannot run, with the reason; every table repeats it."""
    from troll.tasks.registry import get_task
    from troll.tasks.sandbox.pool import sandbox_available

    names = dict.fromkeys([*EXPERIMENT.tasks, *SUITES])
    code = [task for task in names if get_task(task).kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else {task: reason for task in code}


SKIPPED = skipped_tasks()
for _task, _reason in SKIPPED.items():
    print(f"warning: task {_task} is skipped: {_reason}", file=sys.stderr)

RUNS = [run for run in EXPERIMENT.runs() if run.task not in SKIPPED]
if not RUNS:
    print(
        f"error: {_source}: none of its tasks can be run on this machine",
        file=sys.stderr,
    )
    sys.exit(1)
BASES = [(model, task) for model, task in EXPERIMENT.bases() if task not in SKIPPED]
GROUPS = {
    group: [run for run in runs if run.task not in SKIPPED]
    for group, runs in EXPERIMENT.groups().items()
}
PRETRAINED = [name for name, model in EXPERIMENT.models.items() if model.pretrained]
# What is small enough for a processor has no budget of GPUs.
_budgeted = any(model.hub for model in EXPERIMENT.models.values()) or any(
    EXPERIMENT.training_of(run).gpus for run in RUNS
)
if _budgeted and PRETRAINED and workflow.is_main_process:
    from troll.experiment.budget import budget_lines

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
    """For people: the verdicts that this invocation has written, and where everything is to be seen.

    Of several stages, troll/operations/run.py says it after the last.
    """
    if progress_line.STAGE in os.environ:
        return ""
    from troll.operations.last_screen import LINES, last_screen_of
    from troll.operations.progress_line.words import decided, verdicts_in

    root, page = Path(ROOT), Path(ROOT, "page.html")
    page = page if _new(page) else None
    words = []
    for path in sorted(root.glob("groups/*/claims.json")):
        if _new(path):
            known = decided(verdicts_in(path)) or "no claim has runs"
            words.append(f"{path.with_suffix('.md')}: {known}")
    if _new(root / "claims.json"):
        words = words[:3]
        # Snakemake's log is named after these lines.
        words += last_screen_of(
            EXPERIMENT, root, page=page, lines=LINES - len(words) - 1
        )
    elif page:
        words.append(f"everything on one page: {page}")
    return "".join(f"{line}\n" for line in words)


def _new(path):
    return path.exists() and path.stat().st_mtime >= _STARTED


def one_of(names):
    """A pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


def as_json(value):
    return json.dumps(value, sort_keys=True)


def run_config(wildcards):
    """Everything that defines a run; a change of it, and of nothing else, repeats the run."""
    return as_json(resolve(EXPERIMENT, EXPERIMENT.run(run_id(wildcards))).model_dump())


def run_id(wildcards):
    return "{model}/{task}/{trust_region}/{estimator}/{condition}/seed{seed}".format(
        **wildcards
    )


def gpus_of(wildcards):
    return EXPERIMENT.training_of(EXPERIMENT.run(run_id(wildcards))).gpus


def training(wildcards, attempt=1):
    """What the job of a run asks for."""
    model = EXPERIMENT.models[wildcards.model].pretrained
    return training_request(model, gpus_of(wildcards), attempt)


def threads_of(wildcards):
    return training(wildcards).threads


def memory_of(wildcards, attempt):
    return training(wildcards, attempt).memory_mb


def base_config(wildcards):
    return as_json(
        resolve_base(EXPERIMENT, wildcards.model, wildcards.task).model_dump()
    )


def task_config(wildcards):
    settings = EXPERIMENT.tasks[wildcards.task]
    sizes = settings.model_dump(exclude={"training", "evaluate_on"})
    return as_json({"name": wildcards.task, **sizes})


def tokenizer_config(wildcards):
    """The texts, size and number of demonstrations of a model's tokenizer."""
    model = EXPERIMENT.models[wildcards.model]
    tasks = testbed.tokenizer_texts(
        {name: task.settings for name, task in EXPERIMENT.tasks.items()}
    )
    return as_json(
        {
            "tasks": tasks,
            "vocabulary": model.vocabulary,
            "demonstrations": model.supervised.demonstrations_for_tokenizer,
        }
    )


def planned(runs):
    """Coordinates of runs, for tables that say what was not run."""
    return [vars(run) | {"rule": rule_of(EXPERIMENT, run)} for run in runs]


def claims_options(wildcards):
    """The files of claims as options; a function, because Snakemake takes braces in a text for wildcards."""
    return [f"--ledger {quote(path)}" for path in CLAIMS]


def named_claims():
    """The files of claims as the experiment file names them, for whoever judges again."""
    return [
        f"--ledger {quote(name)}"
        for name in EXPERIMENT.claims
        if EXPERIMENT.claims != [DEFAULT]
    ]


def looks():
    """Seeds at the first and the last look, where seeds are added after looking."""
    more = EXPERIMENT.more_seeds
    return {"first": len(set(EXPERIMENT.seeds)), "most": more.most} if more else None


def tasks_of(runs):
    return list(dict.fromkeys(run.task for run in runs))


def outputs_of(directory, runs, group=None):
    """One file of each table and figure below a directory."""
    tables, figures = (
        entries_of(kind, EXPERIMENT, runs, group) for kind in ("table", "figure")
    )
    return [
        *(f"{directory}/tables/{entry.name}.csv" for entry in tables),
        *(f"{directory}/figures/{stem}.png" for stem in stems(figures, tasks_of(runs))),
    ]


def step_cost_options():
    """Options of the cost of a step; none where the experiment does not ask for it."""
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
        *(f"task/{task}" for task in tasks_of(RUNS)),
    ]
    return [
        f"{ROOT}/approximation/{checkpoint_dir}/approximation.png"
        for checkpoint_dir in places
    ]


def final_outputs():
    # With the mark by its name: Snakemake misses only what is asked for.
    return [f"{ROOT}/page.html", COLLECTED, *ARTEFACTS]
