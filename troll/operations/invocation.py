"""One invocation of Snakemake: reads the experiment, prepares the jobs, and summarises the outcome.

All use of Snakemake's own objects is in this module; `troll.operations.targets` needs none of them.
"""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

from troll.analysis.claims.packaged import DEFAULT
from troll.common.digests import sha256_of_file
from troll.common.errors import UserError
from troll.common.files import unwritable
from troll.common.gpus import visible_gpus
from troll.experiment.experiment import Experiment
from troll.experiment.files import parse_experiment, read_configuration
from troll.operations import progress_line
from troll.operations.places import verbatim
from troll.operations.public_data import PublicWork, skipped_parts
from troll.operations.targets import Targets, skipped_tasks
from troll.operations.workflow import mark_running

if TYPE_CHECKING:
    from troll.operations.progress_line.handler import LogHandler

_MOST_REASONS = 5


@dataclass(frozen=True, eq=False)
class Invocation:
    """What Snakemake was called with, and the targets that result on this machine."""

    workflow: Any
    directory: Path  # of the workflow
    source: Path  # the experiment file as given, or ``--config`` without a file
    targets: Targets
    public: PublicWork
    line: "LogHandler | None"  # the progress line; None if Snakemake's own log is shown
    started: float  # seconds since the epoch
    slurm_reasons: Mapping[str, str]  # why SLURM ended jobs, by the job's log; filled while jobs run

    @property
    def deployed(self) -> bool:
        """Whether Snakemake provides the software of jobs, by conda or containers."""
        return bool(self.workflow.deployment_settings.deployment_method)

    def shell_prefix(self) -> str:
        """Returns the start of every job's command; a change of it does not make Snakemake repeat a job."""
        experiment = self.targets.experiment
        # These are not parameters of jobs, because a change of them is no reason to train a run again.
        variables = {
            "TROLL_WORKFLOW": str(self.directory),
            "TROLL_TRACKING": experiment.tracking,
            "TROLL_NOT_FINITE": experiment.not_finite,
        }
        if self.source.exists():  # recorded in manifests
            # Absolute paths are private and mean nothing on other machines.
            name = self.source.name if self.source.is_absolute() else self.source
            variables["TROLL_EXPERIMENT_FILE"] = f"{sha256_of_file(self.source)} {name}"
        # With a progress line on the terminal, messages of jobs go to Snakemake's log.
        if self.line is not None:
            variables[progress_line.TERMINAL] = str(self.line.settings.log)
        exports = "".join(f"export {name}={quote(value)}; " for name, value in variables.items())
        # Without conda or containers, jobs use the `troll` next to the Python that runs Snakemake.
        path = "" if self.deployed else f"PATH={quote(str(Path(sys.executable).parent))}:$PATH; "
        return verbatim(f"set -euo pipefail; {exports}{path}")

    def begin_jobs(self, set_prefix: Callable[[str], None], fork_prefix: Callable[[], str]) -> None:
        """Prepares the jobs, once, before the first one.

        ``set_prefix`` is Snakemake's `shell.prefix`. ``fork_prefix`` starts a process with the libraries
        loaded, from which local jobs are forked where that does not change results, and returns the shell
        code with which commands find it.
        """
        local = self.workflow.local_exec
        if self.workflow.is_main_process and not local:
            try:
                check_interpreter(sys.executable)
            except UserError as error:
                _end(error)
        if self.workflow.is_main_process and local and not self.deployed:
            set_prefix(self.shell_prefix() + verbatim(fork_prefix()))
        one_timer(getattr(self.workflow, "scheduler", None))

    def begin_jobs_of_a_module(
        self, set_prefix: Callable[[str], None], fork_prefix: Callable[[], str]
    ) -> None:
        """Adds `begin_jobs` to the `onstart` of a Snakefile that uses this workflow as a module.

        Snakemake does not call a module's own `onstart`. This sets a private attribute, as there is no public
        interface; with a Snakemake version that lacks it, jobs are ordinary processes.
        """
        users = getattr(self.workflow, "_onstart", None)
        if users and not self.workflow.modifier.is_main_snakefile():

            def start(log: Any) -> None:
                users(log)
                self.begin_jobs(set_prefix, fork_prefix)

            self.workflow._onstart = start

    def words_of_success(self) -> str:
        """Returns the summary for the user: the verdicts that this invocation has written, and the page.

        Empty for the first comparison of `make results`, which `troll.operations.run` reports in one line.
        """
        if self.line is not None:
            self.line.end()
        if progress_line.STAGE in os.environ:
            return ""
        from troll.operations.last_screen import LINES, last_screen_of
        from troll.operations.progress_line.words import decided, verdicts_in

        root, page = Path(self.targets.root), Path(self.targets.root, "page.html")
        new_page = page if self._new(page) else None
        words = [
            f"{path.with_suffix('.md')}: {decided(verdicts_in(path)) or 'no claim has runs'}"
            for path in sorted(root.glob("groups/*/claims.json"))
            if self._new(path)
        ]
        if self._new(root / "claims.json"):
            words = words[:3]
            lines = LINES - len(words) - 1  # one line is left for the path of Snakemake's log
            words += last_screen_of(self.targets.experiment, root, page=new_page, lines=lines)
        elif new_page:
            words.append(f"everything on one page: {new_page}")
        return "".join(f"{line}\n" for line in words)

    def words_of_failure(self) -> str:
        """Returns the message for the user after a failure."""
        if self.line is not None:
            self.line.end()
        reasons = [f"error: {reason} (log: {log})" for log, reason in self.slurm_reasons.items()]
        more = [f"and {len(reasons) - _MOST_REASONS} more"] if len(reasons) > _MOST_REASONS else []
        last = f"what is done, and what failed: troll status {quote(str(self.source))}"
        return "".join(f"{line}\n" for line in (*reasons[:_MOST_REASONS], *more, last))

    def _new(self, path: Path) -> bool:
        return path.exists() and path.stat().st_mtime >= self.started


def begin(workflow: Any, config: Mapping[str, Any]) -> Invocation:
    """Reads the experiment from Snakemake's ``config``; an error in it is printed and ends this process."""
    started = time.time()
    source = Path(workflow.configfiles[-1] if workflow.configfiles else "--config")
    if source.is_relative_to(Path.cwd()):  # Snakemake has made the path absolute
        source = source.relative_to(Path.cwd())
    try:
        _check_directory(workflow)
        experiment = _read(workflow, config, source)
        writes = workflow.is_main_process and not workflow.output_settings.dryrun
        root = Path("results", experiment.experiment)
        if writes and (closed := unwritable(root)):
            raise UserError(
                f"{closed} cannot be written; chmod -R u+w results, or link results to another directory"
            )
        if writes:
            mark_running()
        line = progress_line.install(workflow, experiment, root)
        reasons: Mapping[str, str] = {}
        if workflow.is_main_process and find_spec("snakemake_executor_plugin_slurm"):
            from troll.operations import slurm_executor

            reasons = slurm_executor.install()
        skipped = skipped_tasks(experiment)
        for task, reason in skipped.items():
            print(f"warning: task {task} is skipped: {reason}", file=sys.stderr)
        targets = Targets(experiment, skipped)
        if not targets.runs:
            raise UserError(f"{source}: none of its tasks can be run on this machine")
        if workflow.is_main_process and (taken := len(targets.taken)):
            print(
                f"{taken} of {len(targets.runs)} runs are taken from {targets.released}; to make them again, "
                "`make results ... REPEAT=1`, `troll run ... --repeat` or `snakemake ... -C repeat=true`",
                file=sys.stderr,
            )
        if workflow.is_main_process and (count := len(targets.finished)):
            print(
                f"{count} of {len(targets.runs)} runs have ended in {root}/runs; they are made again only if "
                "their settings or inputs have changed",
                file=sys.stderr,
            )
        if targets.budgeted and workflow.is_main_process:
            _tell_costs(experiment, source)
        count_gpus(workflow, targets.most_gpus)
        for mark in targets.stale_marks if writes else ():
            mark.unlink(missing_ok=True)
        public = PublicWork(targets, skipped_parts(experiment.public_data))
    except UserError as error:
        _end(error)
    directory = _rules(workflow).absolute().parent
    return Invocation(workflow, directory, source, targets, public, line, started, reasons)


def count_gpus(workflow: Any, most: int) -> None:
    """Limits the GPUs of all local jobs together to those that are visible.

    ``--resources gpu=N`` sets another limit. Not lower than ``most``, the GPUs of the largest job, because
    Snakemake lowers the request of a job that exceeds a limit; such a job says itself that GPUs are missing.
    Jobs of a scheduler (``--jobs``) have no limit here.
    """
    if not most or not workflow.is_main_process or workflow.nodes is not None:
        return
    if "gpu" not in workflow.global_resources and (visible := len(visible_gpus())):
        workflow.register_resource("gpu", max(visible, most))


def _tell_costs(experiment: Experiment, source: Path) -> None:
    """Prints what the groups that are asked for will cost; raises a UserError if they cannot fit the GPUs."""
    from troll.operations.costs import cost_lines
    from troll.operations.gpu_fit import refuse_impossible

    # Snakemake knows its targets only after it has read the rules.
    groups = experiment.groups()
    only = [word for word in sys.argv[1:] if word in groups] if "all" not in sys.argv else []
    print("\n".join(cost_lines(experiment, Path("results"), only)), file=sys.stderr)
    refuse_impossible(experiment, experiment.runs(only), source)


def one_timer(scheduler: Any) -> None:
    """Limits a Snakemake scheduler to one pending timer.

    If the jobs per timespan are limited, as by default, Snakemake starts a timer after every evaluation of
    the ready jobs, and evaluates again when it expires. Each finished job adds an evaluation with its own
    timer, so after n jobs there are n evaluations per timespan (Snakemake 9.27, `JobScheduler.schedule`). One
    timer finds the same jobs, at most a timespan later.
    """
    start = getattr(scheduler, "_schedule_reevalutation", None)
    if start is None:
        return
    due = -math.inf

    def start_if_none(delay: float) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or now + delay < due:
            due = now + delay
            start(delay)

    scheduler._schedule_reevalutation = start_if_none


def check_interpreter(executable: str) -> None:
    """Refuses a Python whose path needs quoting in a shell.

    Snakemake does not quote it in the commands of cluster jobs (9.27, `RealExecutor.format_job_exec`), all of
    which would fail.
    """
    if quote(executable) != executable:
        raise UserError(
            f"{executable}: cluster jobs cannot start a Python whose path needs quoting in a shell; "
            "create the environment elsewhere: make env VENV=~/troll-env"
        )


def _end(error: UserError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)


def _rules(workflow: Any) -> Path:
    """Returns the directory of the workflow's rules."""
    return Path(workflow.current_basedir.get_path_or_uri(secret_free=False))


def _check_directory(workflow: Any) -> None:
    # Snakemake takes braces in the paths of environments and input files for wildcards.
    if set(str(_rules(workflow))) & set("{}"):
        shown = workflow.current_basedir.get_path_or_uri(secret_free=True)
        raise UserError(f"{shown}: Snakemake cannot run from a path with braces; move the checkout")


def _read(workflow: Any, config: Mapping[str, Any], source: Path) -> Experiment:
    """Reads the experiment, and checks its claims too."""
    for file in workflow.configfiles:  # raises on errors that Snakemake's own reader accepts
        read_configuration(Path(file))
    experiment = _parsed(workflow, config, source)
    # The reader is slow to import, and the package's own claims need no check.
    if workflow.is_main_process and experiment.claims != [DEFAULT]:
        from troll.operations.claims_ahead import claims_of

        claims_of(experiment)
    return experiment


def _parsed(workflow: Any, config: Mapping[str, Any], source: Path) -> Experiment:
    """Parses the experiment; an error names its source: the file, ``--config``, or both together."""
    from snakemake.utils import update_config

    try:
        return parse_experiment(config, str(source))
    except UserError as error:
        problem = str(error).removeprefix(f"{source}: ")
    # Blocks are merged key by key. If the file alone has the same error, it is the file's.
    alone: dict[str, Any] = {}
    for file in workflow.configfiles:
        update_config(alone, read_configuration(Path(file)))
    try:
        parse_experiment(alone, "")
    except UserError as error:
        if str(error).removeprefix(": ") == problem:
            raise UserError(f"{source}: {problem}") from None
    raise UserError(f"{_blamed(workflow, config, source, problem)}: {problem}")


def _blamed(workflow: Any, config: Mapping[str, Any], source: Path, problem: str) -> str:
    overrides, found = workflow.config_settings.config, re.match(r"\w*", problem)
    key = found[0] if found else ""
    of_file = key in config and key not in overrides
    if of_file or not (overrides and workflow.configfiles):
        return str(source)
    return "--config" if key in overrides else f"{source} and --config"
