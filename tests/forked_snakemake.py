"""`python -m snakemake` for tests, forked from a process that has imported what it imports.

Imports are most of a dry run's time. Nothing that is imported is called, so that each Snakemake begins as any
other does. Tests of how it starts, is killed or reaches a cluster run it as a process of its own. The jobs of
all are forked from one warm server.
"""

import atexit
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

from troll import warm
from troll.warm.client import VARIABLE

# What they import while they run, each of which takes long; Snakemake its plugins.
_LATE = (
    *(
        "snakemake.cli",
        "snakemake.storage",
        "snakemake_executor_plugin_slurm",
        "snakemake.report.html_reporter",
    ),
    *("pandas", "torch", "requests", "smart_open", "dill", "tqdm"),
    *("troll.algorithms.advantages", "troll.algorithms.trust_regions", "troll.tasks.testbed.programs"),
)
_RULES = Path(__file__).parents[1] / "workflow/rules"


def imported_modules() -> list[str]:
    """What Snakemake and the workflow's rules import, here or as they run."""
    text = "\n".join(path.read_text() for path in sorted(_RULES.glob("*.smk")))
    found = re.findall(r"^\s*from (troll[\w.]*) import \(?([\w, ]*)", text, re.MULTILINE)
    # A name may be a module too; what is none is passed over.
    named = [f"{module}.{name}" for module, names in found for name in re.findall(r"\w+", names)]
    return [*_LATE, *dict.fromkeys([module for module, _ in found] + named)]


@cache
def warm_server() -> dict[str, str]:
    """The variables of commands that the warm server of these tests runs; none where it cannot be started."""
    return warm.start()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(imported_modules())
    return context


CONTEXT = _context()
"""Forks from a process that has imported what `imported_modules` names."""


def named_server() -> dict[str, str]:
    """The variable that has a workflow take the warm server of these tests, instead of its own."""
    return {name: value for name, value in warm_server().items() if name == VARIABLE}


def snakemake(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, "-m", "snakemake", *arguments], ...)` with captured text.

    Args:
        arguments: of Snakemake.
        cwd: where it runs.
        env: all its variables; by default those of this process, and for jobs the warm server's name.
        timeout: seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it was.
    """
    if env is None:
        jobs = "-n" not in arguments and "--dry-run" not in arguments
        env = os.environ | (named_server() if jobs else {})
    with tempfile.TemporaryDirectory() as directory:
        said = [Path(directory, name) for name in ("stdout", "stderr")]
        process = CONTEXT.Process(target=_main, args=(arguments, str(cwd), dict(env), said))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["snakemake", *arguments], timeout, *map(Path.read_text, said))
        assert process.exitcode is not None
        return subprocess.CompletedProcess(arguments, process.exitcode, *map(Path.read_text, said))


def _main(arguments: tuple[str, ...], directory: str, variables: dict[str, str], said: list[Path]) -> None:
    for number, path in enumerate(said, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    tempfile.tempdir = None
    sys.path.insert(0, directory)
    sys.argv = ["", *arguments]
    try:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # a forked process ends without them
