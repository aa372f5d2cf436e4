"""Runs an experiment with Snakemake, as the only run in this directory.

A killed Snakemake leaves its lock behind. To tell such a leftover from a run that is alive, this module takes
a file lock, which the operating system releases when its process ends.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from troll.common.errors import UserError
from troll.common.hub import MIRROR
from troll.common.progress import say
from troll.experiment.directories import RELEASED, RESULTS
from troll.experiment.files import read_configuration, read_experiment
from troll.operations import first_look
from troll.operations.progress_line import STAGE
from troll.operations.workflow import is_running, noted

_SNAKEMAKE = [sys.executable, "-m", "snakemake"]
_SCHEDULING = ["--scheduler", "greedy", "--max-jobs-per-timespan", "1000/3s"]
"""Jobs are alike, so the default scheduler's integer program, solved every second, is not worth its time."""
_CONFIG = re.compile(r"-C|--config(?:=(.+))?", re.DOTALL)
"""Snakemake's option for keys of the experiment file, and a key that is written behind it."""
_DRY_RUN = re.compile(r"-[A-Za-z]*n[A-Za-z]*|--dry-?run")
"""Snakemake's dry run, alone or among other one-letter options."""


def main(
    path: Path,
    targets: Sequence[str] = ("all",),
    *,
    cores: int,
    seeds: Sequence[int] | None = None,
    repeat: bool = False,
    options: Sequence[str] = (),
) -> None:
    """Checks the experiment file, takes the lock, removes a leftover lock of Snakemake, and runs Snakemake.

    The file is read here first because Snakemake's reader would run code in it. ``seeds`` and
    ``repeat`` override the file's.
    """
    if not any(Path(name).exists() for name in ("Snakefile", "workflow/Snakefile")):
        raise UserError("run: no Snakefile is here; run this in the root of a checkout")
    if any(re.match("--configfiles?(=|$)", word) for word in options):  # Snakemake would read that one alone
        raise UserError(
            f"run: {path} and --configfile: name one experiment file; --config KEY=VALUE changes keys"
        )
    read_configuration(path)
    rest = snakemake_arguments(path, targets, cores, seeds, options, repeat=repeat)
    directory = Path(".snakemake")
    keep_caches(directory / "cache")
    handle = acquire_lock(directory)
    # A plain `snakemake` may be at work, whose locks are no leftovers: Snakemake says whether they clash.
    if any((directory / "locks").glob("*")) and not is_running():
        unlocked = subprocess.run(
            [*_SNAKEMAKE, "--unlock", *rest], check=False, stderr=subprocess.PIPE, text=True
        )
        if unlocked.returncode:
            sys.exit(unlocked.stderr.rstrip())
    if wants_first_look(targets, seeds, options):
        read_experiment(path)  # an error in the file comes before the first comparison
        show_first(path, rest, handle)
    os.execv(sys.executable, [*_SNAKEMAKE, *rest])


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
    given = [(place, found[1]) for place, word in enumerate(rest) if (found := _CONFIG.fullmatch(word))]
    if overrides and given:  # Snakemake uses only the last --config
        place, value = given[-1]
        rest[place : place + 1] = ["--config", *overrides, *([value] if value else [])]
    elif overrides:
        rest += ["--config", *overrides]
    start = ["--cores", str(cores), *_SCHEDULING, "--rerun-incomplete", "--configfile", str(path)]
    return [*start, *rest, "--", *targets]


def wants_first_look(targets: Sequence[str], seeds: Sequence[int] | None, options: Sequence[str]) -> bool:
    """Whether this may start with a first comparison: target ``all``, the file's seeds, no dry run."""
    named = seeds is not None or any(word.startswith("seeds=") for word in options)
    dry = any(map(_DRY_RUN.fullmatch, options))
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
    snakemake(arguments, handle, {STAGE: "first comparison", MIRROR: str(first_look.MODELS.resolve())})
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


def snakemake(arguments: list[str], handle: int, variables: Mapping[str, str]) -> None:
    """Runs Snakemake in a process of its own with further environment variables.

    If it fails, this process exits with its status. An interrupt from the keyboard reaches Snakemake
    directly; a SIGTERM is passed on to it.
    """
    environment = {**os.environ, **variables}
    with noted(signal.SIGINT, signal.SIGTERM) as received:
        process = subprocess.Popen([*_SNAKEMAKE, *arguments], pass_fds=(handle,), env=environment)
        while process.poll() is None and signal.SIGTERM not in received:
            time.sleep(0.1)
        process.terminate()  # has no effect if it has ended
        status = process.wait()
    if not status and received:  # a signal arrived as Snakemake finished: do not begin the next run
        sys.exit(128 + received[0])
    if status:
        sys.exit(status if status > 0 else 128 - status)
