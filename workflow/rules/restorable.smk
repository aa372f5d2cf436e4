# Which runs the archive holds, and which are to be archived.

from troll.analysis.data.archive import archived
from troll.training.manifest import source_digest

ARCHIVE = f"{ROOT}/archive"


def archive_of(checkpoint_dir):
    return f"{ARCHIVE}/{checkpoint_dir}.zip"


def evaluation_of(checkpoint_dir):
    """What grades depend on besides the model and the problems."""
    return {
        **EXPERIMENT.evaluation.model_dump(),
        "max_tokens": most("max_response_tokens")[checkpoint_dir],
        "suites": {
            name: suite.model_dump()
            for name, suite in suites_of(checkpoint_dir).items()
        },
    }


def restorable():
    """Directories of runs, and of base models that no other run needs, that the archive can fill."""
    source = source_digest()

    def held(checkpoint_dir, config):
        made_here = Path(ROOT, checkpoint_dir, "checkpoint").exists()
        return not made_here and archived(
            Path(archive_of(checkpoint_dir)),
            config.model_dump(),
            evaluation_of(checkpoint_dir),
            source,
        )

    runs = {
        run: f"runs/{run.run_id}"
        for run in RUNS
        if held(f"runs/{run.run_id}", resolve(EXPERIMENT, run))
    }
    needed = {(run.model, run.task) for run in RUNS if run not in runs}
    bases = [
        f"{BASE}/{model}/{task}"
        for model, task in BASES
        if (model, task) not in needed
        and held(f"{BASE}/{model}/{task}", resolve_base(EXPERIMENT, model, task))
    ]
    return [*runs.values(), *bases]


try:
    RESTORABLE = restorable() if EXPERIMENT.archive else []
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)


def archivable(runs):
    """Directories of these runs and their base models whose archives are to be written."""
    if not EXPERIMENT.archive:
        return []
    return [place for place in checkpoint_dirs_of(runs) if place not in RESTORABLE]


def archives_of(runs):
    return [archive_of(place) for place in archivable(runs)]
