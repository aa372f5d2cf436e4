# What is done with public data sets where this machine has them. Elsewhere nothing is downloaded unless the experiment
# says so, and the report tells that it was left out.

from troll.tasks.datasets.mirror import mirror

PUBLIC = EXPERIMENT.public_data


def public_skipped():
    """Why parts of the experiment's work on public data are left out here, by name."""
    if PUBLIC is None:
        return {}
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.sandbox.pool import sandbox_available

    wanted = [*PUBLIC.benchmarks, *(["audit"] if PUBLIC.audit != "none" else [])]
    try:
        absent = PUBLIC.source == "mirror" and mirror() is None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if absent:
        reason = "TROLL_DATA_MIRROR names no copy of the public data sets"
        return dict.fromkeys(wanted, reason)
    code = [
        name for name in wanted if name == "audit" or DATA_SETS[name].kind == "code"
    ]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else dict.fromkeys(code, reason)


PUBLIC_SKIPPED = public_skipped()


def with_audit():
    return (
        PUBLIC is not None and PUBLIC.audit != "none" and "audit" not in PUBLIC_SKIPPED
    )


def benchmark_config(wildcards):
    """As many problems as are wanted, or as there are."""
    from troll.tasks.datasets.catalogue import DATA_SETS

    known, wanted = DATA_SETS[wildcards.benchmark].parts["test"].rows, PUBLIC.problems
    if wanted != "all" and known is not None:
        wanted = min(wanted, known)
    return as_json({"name": wildcards.benchmark, "test": wanted})


def benchmark_answers():
    """(label, directory) of everything that is graded: the oracle, and base models of tasks of the same kind."""
    from troll.tasks.registry import get_task

    found = []
    for name in PUBLIC.benchmarks if PUBLIC else []:
        if name in PUBLIC_SKIPPED:
            continue
        found.append(("oracle", f"{ROOT}/public/{name}/oracle"))
        for model, task in BASES:
            if get_task(task).kind == get_task(name).kind:
                label = f"base of {task} ({model})"
                found.append((label, f"{ROOT}/public/{name}/base/{model}/{task}"))
    return found


def public_outputs():
    """What the report shows of public data; nothing where the experiment does not ask for it."""
    table = [f"{ROOT}/public/benchmarks.csv"] if PUBLIC else []
    return table + ([f"{ROOT}/audit/audit.csv"] if with_audit() else [])
