# Where finished runs and base models lie (runs/<model>/<task>/..., base/<model>/<task>), and what evaluating one takes.


def task_of(wildcards):
    """The task of a place: runs/<model>/<task>/... or base/<model>/<task>."""
    return wildcards.checkpoint_dir.split("/")[2]


@cache
def most(setting):
    """The largest value of a training setting by place: of a run its own, of a base model that of the runs from it."""
    found = {}
    for run in RUNS:
        value = getattr(EXPERIMENT.training_of(run), setting)
        for checkpoint_dir in (f"runs/{run.run_id}", f"{BASE}/{run.model}/{run.task}"):
            found[checkpoint_dir] = max(value, found.get(checkpoint_dir, 0))
    return found


def max_tokens_of(wildcards):
    """The longest response that the place's model was trained to give."""
    return most("max_response_tokens")[wildcards.checkpoint_dir]


def suites_of(checkpoint_dir):
    """Further data sets that the models of a place's task are evaluated on."""
    suites = EXPERIMENT.tasks[checkpoint_dir.split("/")[2]].evaluate_on
    return {name: suite for name, suite in suites.items() if name not in SKIPPED}


def suite_config(wildcards):
    """What is sampled of each further data set."""
    suites = suites_of(wildcards.checkpoint_dir)
    return as_json(
        {name: suite.model_dump(exclude={"test"}) for name, suite in suites.items()}
    )


def suite_problems(wildcards):
    return [
        f"{ROOT}/suites/{name}/test.jsonl"
        for name in suites_of(wildcards.checkpoint_dir)
    ]


def grades_of(checkpoint_dir):
    """Files that say that a place is graded."""
    names = [
        "grades.json",
        *(["suites/graded.json"] if suites_of(checkpoint_dir) else []),
    ]
    return [f"{directory_of(checkpoint_dir)}/{name}" for name in names]


def directory_of(checkpoint_dir):
    """Where a finished run or base model lies: made here, or restored from the archive."""
    return (
        f"{ROOT}/{'restored/' if checkpoint_dir in RESTORABLE else ''}{checkpoint_dir}"
    )


def checkpoint_dirs_of(runs):
    """Places of some runs and of the base models that they start from."""
    bases = dict.fromkeys(f"{BASE}/{run.model}/{run.task}" for run in runs)
    return [*(f"runs/{run.run_id}" for run in runs), *bases]


def files_of(runs):
    """Everything that the table of these runs is made from."""
    manifests = [f"{directory_of(f'runs/{run.run_id}')}/manifest.json" for run in runs]
    return manifests + [
        path
        for checkpoint_dir in checkpoint_dirs_of(runs)
        for path in grades_of(checkpoint_dir)
    ]


def files_of_group(wildcards):
    """What the tables of a group are made from."""
    if not GROUPS[wildcards.group]:
        raise WorkflowError(
            f"group {wildcards.group}: none of its tasks can be run on this machine"
        )
    return files_of(GROUPS[wildcards.group])


def hub_of(wildcards):
    """The hub's model that a place is of; none for one made from scratch."""
    return EXPERIMENT.models[wildcards.checkpoint_dir.split("/")[1]].hub


def sampling_gpus(wildcards):
    """A model of the hub that trains on GPUs is sampled on one, or on those that share it."""
    shared = EXPERIMENT.evaluation.engine_options.get("tensor_parallel_size", 1)
    return shared if hub_of(wildcards) and most("gpus")[wildcards.checkpoint_dir] else 0


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
    return sampling_request(hub_of(wildcards), sampling_gpus(wildcards), attempt)


def sampling_memory(wildcards, attempt):
    return sampling(wildcards, attempt).memory_mb


def sampling_minutes(wildcards):
    return sampling(wildcards).minutes


def sample_seed(wildcards):
    """Seeds of evaluation do not depend on the method, so that methods can be compared sample by sample."""
    kind, name = wildcards.checkpoint_dir.split("/", 1)
    return run_seeds(EXPERIMENT.run(name)).evaluation if kind == "runs" else 0
