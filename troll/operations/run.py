"""Runs an experiment with Snakemake, as the only run in this directory.

A killed Snakemake leaves its lock behind. To tell such a leftover from a run that is alive, this module takes
a file lock, which the operating system releases when its process ends.

An experiment with ``more_seeds`` runs in stages, each with its own Snakemake process: first the seeds of the
file in every setting, and the verdicts; then, look by look, further seeds in the settings in which a claim is
undecided; finally tables, figures and the page. The stages are a loop instead of Snakemake checkpoints,
because their number depends on verdicts and on the time. They share only looks.json, in which plain
`snakemake` finds the same seeds.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from troll.analysis.claims.further import affordable, look_record, next_looks
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.replication import replication_of
from troll.common.errors import UserError
from troll.common.hub import MIRROR
from troll.common.processor import available_cores
from troll.experiment.directories import RELEASED, RESULTS
from troll.experiment.experiment import Experiment
from troll.experiment.files import read_configuration, read_experiment
from troll.experiment.looks import read_looks, with_further_seeds, write_looks
from troll.operations import first_look
from troll.operations.last_screen import concerning, last_screen, verdicts
from troll.operations.plan import earlier_runs, estimate
from troll.operations.progress_line import STAGE
from troll.operations.workflow import noted

_SNAKEMAKE = [sys.executable, "-m", "snakemake"]
_SCHEDULING = ["--scheduler", "greedy", "--max-jobs-per-timespan", "1000/3s"]
"""Jobs are alike, so the default scheduler's integer program, solved every second, is not worth its time."""
_TABLES_S = 60.0
"""Seconds of the time limit that are reserved for tables, figures and page."""
_UNKNOWN_S = 60.0
"""Seconds assumed for a run that no earlier run helps to estimate."""


def _cores(text: str) -> int:
    if text == "all":
        return available_cores()
    with contextlib.suppress(ValueError):
        if (count := int(text)) > 0:
            return count
    raise UserError(
        f"--cores: must be a positive integer or all, as in `make results CORES=2` (got {text!r})"
    )


def _minutes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (count := float(text)) < math.inf:
            return count
    raise UserError(f"--minutes: must be a positive number, as in `make results MINUTES=60` (got {text!r})")


def main(
    path: Path,
    targets: Sequence[str] = ("all",),
    *,
    cores: str = "all",
    minutes: str | None = None,
    seeds: Sequence[int] | None = None,
    repeat: bool = False,
    options: Sequence[str] = (),
) -> None:
    """Checks the experiment file, takes the lock, removes a leftover lock of Snakemake, and runs Snakemake.

    The file is read here first because Snakemake's reader would run code in it. ``minutes``, ``seeds`` and
    ``repeat`` override the file's.
    """
    started = time.monotonic()
    if not any(Path(name).exists() for name in ("Snakefile", "workflow/Snakefile")):
        raise UserError("run: no Snakefile is here; run this in the root of a checkout")
    count, limit = _cores(cores), None if minutes is None else _minutes(minutes)
    read_configuration(path)
    experiment = read_experiment(path) if staged(targets, seeds, options) else None
    rest = snakemake_arguments(path, targets, count, seeds, options, repeat=repeat)
    directory = Path(".snakemake")
    keep_caches(directory / "cache")
    handle = acquire_lock(directory)
    if any((directory / "locks").glob("*")):
        unlocked = subprocess.run(
            [*_SNAKEMAKE, "--unlock", *rest], check=False, stderr=subprocess.PIPE, text=True
        )
        if unlocked.returncode:
            sys.exit(unlocked.stderr.rstrip())
    if experiment is None or experiment.more_seeds is None:
        os.execv(sys.executable, [*_SNAKEMAKE, *rest])
    limit = limit or experiment.more_seeds.minutes
    show_first(path, rest, handle)
    run_until_decided(experiment, rest, handle, count, started + 60 * limit, started)


def snakemake_arguments(
    path: Path,
    targets: Sequence[str],
    cores: int,
    seeds: Sequence[int] | None,
    options: Sequence[str],
    *,
    repeat: bool = False,
) -> list[str]:
    """Returns the arguments of Snakemake; ``options`` may override the others."""
    overrides = [] if seeds is None else [f"seeds=[{','.join(map(str, seeds))}]"]
    overrides += ["repeat=true"] if repeat else []
    rest = [*options]
    if overrides and "--config" in rest:  # Snakemake uses only the last --config
        rest[rest.index("--config") + 1 : rest.index("--config") + 1] = overrides
    elif overrides:
        rest += ["--config", *overrides]
    start = ["--cores", str(cores), *_SCHEDULING, "--rerun-incomplete", "--configfile", str(path)]
    return [*start, *rest, "--", *targets]


def staged(targets: Sequence[str], seeds: Sequence[int] | None, options: Sequence[str]) -> bool:
    """Whether seeds may be added: the target is ``all``, no seeds are given, and it is not a dry run."""
    named = seeds is not None or any(word.startswith("seeds=") for word in options)
    dry = any(re.match("-n|--dry-?run", word) for word in options)
    return list(targets) == ["all"] and not (named or dry)


def show_first(experiment: Path, rest: list[str], handle: int) -> None:
    """Points to the released results, and makes a first comparison, which takes a minute or two."""
    if (index := RESULTS / RELEASED / "README.md").exists():
        say(f"released results to read in the meantime: {index}")
    reason = first_look.reason_against(experiment)
    if reason is not None:
        if reason:
            say(reason)
        return
    arguments = [str(first_look.EXPERIMENT) if word == str(experiment) else word for word in rest]
    stage = {"title": "first comparison", "last": False, "first": False}
    snakemake(arguments, handle, stage, {MIRROR: str(first_look.MODELS.resolve())})
    say(first_look.outcome())


def acquire_lock(directory: Path) -> int:
    """Takes the lock in Snakemake's directory; processes that inherit the returned handle hold it too."""
    remedy = "make it writable, or link it to another directory"
    try:
        directory.mkdir(exist_ok=True)
        handle = os.open(directory / "results.lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            "another `make results` is running in this directory; wait for it, or stop it"
        ) from None
    except OSError as error:
        if os.path.lexists(directory) and not directory.is_dir():
            raise UserError(
                f"{directory} is not a directory; move it away, as Snakemake keeps its logs there"
            ) from None
        raise UserError(f"{directory} cannot be written ({error.strerror}); {remedy}") from None
    if not os.access(directory, os.W_OK):  # an existing lock file can be opened all the same
        raise UserError(f"{directory} cannot be written; {remedy}")
    os.set_inheritable(handle, True)  # Snakemake keeps the lock when it replaces this process
    return handle


def keep_caches(instead: Path) -> None:
    """Puts the caches of Snakemake and of the hub into ``instead`` if the usual directory is not writable.

    This happens in containers that run as a user without a home. Snakemake fails without a cache.
    """
    try:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        usual.mkdir(parents=True, exist_ok=True)
        writable = os.access(usual, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        writable = False
    if not writable:
        os.environ["XDG_CACHE_HOME"] = str(instead.resolve())


def run_until_decided(
    experiment: Experiment, rest: list[str], handle: int, cores: int, until: float, started: float
) -> None:
    """Trains further seeds until all claims are decided or the time is up, then makes all targets."""
    root = Path("results", experiment.experiment)
    before = read_looks(root)
    further: dict[str, list[int]] = dict(before.get("further_seeds", {}))
    looks = list(before.get("looks", []))
    begun = time.time()
    ends = begun + until - time.monotonic() - _TABLES_S
    while True:
        stage = {"title": f"look {len(looks) + 1}", "until": ends, "last": False, "first": not looks}
        # The mark of collected runs makes Snakemake judge again instead of keeping a release's verdicts.
        snakemake([*rest[:-1], str(root / "runs/collected"), "claims"], handle, stage)
        judged = verdicts(experiment, root)
        runs = with_further_seeds(experiment, root).runs()
        planned = {(run.group_id, run.seed) for run in runs}
        looks.append(look_record(judged, (time.monotonic() - started) / 60, len(runs)))
        left = cores * (until - time.monotonic() - _TABLES_S)
        chosen, ended = next_runs(experiment, judged, left)
        new = [run for run in chosen if run not in planned]
        if chosen and not new:
            ended = "the missing seeds have been run, but have no value to compare"
        for setting, seed in new:
            further[setting] = sorted({*further.get(setting, []), seed})
        write_looks(root, further, looks, ended)
        if ended:
            break
        say(f"undecided claims get {len(new)} further runs")
    snakemake(rest, handle, {"title": "tables and figures", "last": False, "first": False})
    say("")
    logs = [path for path in sorted(Path(".snakemake/log").glob("*.log")) if path.stat().st_mtime >= begun]
    for line in last_screen(
        concerning(judged, experiment),
        replication_of(root),
        page=root / "page.html",
        ended=f"{seed_counts(experiment, root)}; {ended}",
        log=f"full logs: {logs[-1]} and those of {len(logs) - 1} earlier stages beside it" if logs else "",
    ):
        say(line)


def next_runs(
    experiment: Experiment, judged: Sequence[ClaimVerdict], left: float
) -> tuple[list[tuple[str, int]], str]:
    """Returns the runs, (setting, seed), of the next stage; if there are none, also the reason."""
    wants = next_looks(judged, experiment.seeds)
    if not wants:
        decided = all(
            entry.seen is None or entry.seen.decided or not entry.decision.settings for entry in judged
        )
        return [], "every claim is decided" if decided else "all planned seeds have been run"
    seen = list(earlier_runs(Path("results")))
    by_setting = {run.group_id: run for run in experiment.runs()}
    seconds = {}
    for setting, seed in {run for want in wants for run in want.runs}:
        run = by_setting[setting]
        known = estimate(experiment, run, experiment.training_of(run), seen)
        seconds[setting, seed] = _UNKNOWN_S if known is None else known
    chosen = affordable(wants, seconds, left)
    return chosen, "" if chosen else "the minutes are used up; the same command continues from here"


def seed_counts(experiment: Experiment, root: Path) -> str:
    """Says how many runs there are, and how many seeds the settings have."""
    runs = with_further_seeds(experiment, root).runs()
    counts = sorted(set(Counter(run.group_id for run in runs).values()))
    told = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{len(runs)} runs, {told} seeds in a setting"


def snakemake(
    arguments: list[str], handle: int, stage: Mapping[str, object], variables: Mapping[str, str] | None = None
) -> None:
    """Runs one stage, described by ``stage`` to the progress line; if it fails, exits with its status.

    An interrupt from the keyboard reaches Snakemake directly; a SIGTERM is passed on to it.
    """
    environment = {**os.environ, STAGE: json.dumps(stage), **(variables or {})}
    with noted(signal.SIGINT, signal.SIGTERM) as asked:
        process = subprocess.Popen([*_SNAKEMAKE, *arguments], pass_fds=(handle,), env=environment)
        while process.poll() is None and signal.SIGTERM not in asked:
            time.sleep(0.1)
        process.terminate()  # has no effect if it has ended
        status = process.wait()
    if not status and asked:  # a signal arrived as Snakemake finished: do not begin the next stage
        sys.exit(128 + asked[0])
    if status:
        sys.exit(status if status > 0 else 128 - status)


def say(line: str) -> None:
    """Prints a line to stderr, as Snakemake does."""
    print(line, file=sys.stderr, flush=True)
