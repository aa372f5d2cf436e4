# Where finished runs and base models lie (runs/<model>/<task>/..., base/<model>/<task>), and what evaluating one takes.

from troll.experiment.keys import largest_values, planned_keys, suites_of

KEYS = planned_keys(EXPERIMENT, RUNS, SKIPPED)


def run_id_of(checkpoint_dir):
    """The name of a place in tables: runs stand there without the directory that holds them."""
    return checkpoint_dir.removeprefix("runs/")


def checkpoint_dirs_of(runs):
    """Places of some runs and of the base models that they start from."""
    bases = dict.fromkeys(f"{BASE}/{run.model}/{run.task}" for run in runs)
    return [*(f"runs/{run.run_id}" for run in runs), *bases]


COLLECTED = f"{ROOT}/runs/collected"


def mark_of(checkpoint_dir):
    """What says that a place was appended to the tables."""
    return Path(ROOT, checkpoint_dir, "appended")


# Looked for first: whoever appends meanwhile leaves the mark after the row.
MARKED = {
    place
    for place in checkpoint_dirs_of(RUNS)
    if EXPERIMENT.archive and mark_of(place).exists()
}
try:  # runs and base models in the released tables that are what is planned
    HELD = made(EXPERIMENT, Path(ROOT), SKIPPED)
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
# Marks say nothing of runs that the tables do not hold (any more), say after `git checkout`.
LACKING = [place for place in checkpoint_dirs_of(RUNS) if run_id_of(place) not in HELD]
if (
    EXPERIMENT.archive
    and LACKING
    and workflow.is_main_process
    and not workflow.output_settings.dryrun
):
    for _mark in (COLLECTED, *map(mark_of, LACKING)):
        Path(_mark).unlink(missing_ok=True)


def task_of(wildcards):
    """The task of a place: runs/<model>/<task>/... or base/<model>/<task>."""
    return wildcards.checkpoint_dir.split("/")[2]


@cache
def most(setting):
    """The largest value of a training setting by place."""
    return largest_values(EXPERIMENT, RUNS, setting)


def max_tokens_of(wildcards):
    """The longest response that the place's model was trained to give."""
    return most("max_response_tokens")[wildcards.checkpoint_dir]


def suite_config(wildcards):
    """What is sampled of each further data set."""
    suites = suites_of(EXPERIMENT, task_of(wildcards), SKIPPED)
    return as_json(
        {name: suite.model_dump(exclude={"test"}) for name, suite in suites.items()}
    )


def suite_problems(wildcards):
    return [
        f"{ROOT}/suites/{name}/test.jsonl"
        for name in suites_of(EXPERIMENT, task_of(wildcards), SKIPPED)
    ]


def grades_of(checkpoint_dir):
    """Files that say that a place is graded."""
    suites = suites_of(EXPERIMENT, checkpoint_dir.split("/")[2], SKIPPED)
    names = ["grades.json", *(["suites/graded.json"] if suites else [])]
    return [f"{ROOT}/{checkpoint_dir}/{name}" for name in names]


def made_here(runs):
    """Places of runs and base models whose results are, or are to be, in directories here.

    Without an archive these are all. With one, those that its tables lack, and those that were appended from here.
    """
    return [
        place
        for place in checkpoint_dirs_of(runs)
        if run_id_of(place) not in HELD or place in MARKED
    ]


def files_of(runs):
    """Everything that the table of these runs is made from."""
    places = made_here(runs)
    if EXPERIMENT.archive:
        return [str(mark_of(place)) for place in places]
    graded = [path for place in places for path in grades_of(place)]
    return [f"{ROOT}/{place}/manifest.json" for place in places] + graded


def collect_options():
    """Options of `troll collect` that all tables of this experiment share."""
    archive = [f"--archive {quote(ROOT)}"] if EXPERIMENT.archive else []
    mixed = ["--allow-mixed"] if EXPERIMENT.allow_mixed else []
    return [*archive, *mixed, *named_claims()]


def plan_of(runs):
    """What is planned, as JSON: more than one argument of a command holds, so that it goes through its input."""
    places = checkpoint_dirs_of([run for run in runs if run.task not in SKIPPED])
    return as_json(
        {
            "expected": planned(runs),
            "skipped": SKIPPED,
            "looks": looks(),
            "summary": EXPERIMENT.summary,
            "keys": {name: KEYS[name] for name in map(run_id_of, places)},
        }
    )


def files_of_group(wildcards):
    """What the tables of a group are made from."""
    if not GROUPS[wildcards.group]:
        raise WorkflowError(
            f"group {wildcards.group}: none of its tasks can be run on this machine"
        )
    return files_of(GROUPS[wildcards.group])


def pretrained_of(wildcards):
    """The pretrained model that a place is of; none for one made from scratch."""
    return EXPERIMENT.models[wildcards.checkpoint_dir.split("/")[1]].pretrained


def making(wildcards, attempt=1):
    """What the job of a pretrained base model asks for."""
    model = EXPERIMENT.models[wildcards.model]
    gpus = most("gpus")[f"{BASE}/{wildcards.model}/{wildcards.task}"]
    return base_request(model.pretrained, model.supervised_steps, gpus, attempt)


def sampling_gpus(wildcards):
    """A pretrained model that trains on GPUs is sampled on one, or on those that share it."""
    shared = EXPERIMENT.evaluation.engine_options.get("tensor_parallel_size", 1)
    on_gpus = pretrained_of(wildcards) and most("gpus")[wildcards.checkpoint_dir]
    return shared if on_gpus else 0


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


def sampling(wildcards, attempt=1):
    """What a job that samples asks for."""
    return sampling_request(pretrained_of(wildcards), sampling_gpus(wildcards), attempt)


def sampling_memory(wildcards, attempt):
    return sampling(wildcards, attempt).memory_mb


def sampling_minutes(wildcards):
    return sampling(wildcards).minutes


def sample_seed(wildcards):
    """Seeds of evaluation do not depend on the method, so that methods can be compared sample by sample."""
    kind, name = wildcards.checkpoint_dir.split("/", 1)
    return run_seeds(EXPERIMENT.run(name)).evaluation if kind == "runs" else 0
