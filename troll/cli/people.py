"""The user commands before and during runs: run, check, doctor, fetch, rehearse, status."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from troll.cli.options import DEFAULT_RESULTS, Cores, File, Only, ResultsRoot, core_count, seed_list
from troll.common.errors import UserError

app = typer.Typer()

_DEFAULT = "workflow/config/testbed.yaml"


class _WithTargets(TyperCommand):
    """Parses words after `--` as targets, even if no experiment file precedes them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Splits off the targets and parses the other words."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["targets"] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(cls=_WithTargets, context_settings={"ignore_unknown_options": True})
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT] [OPTIONS]...",
            help="an experiment file (default: testbed.yaml), then options of Snakemake",
        ),
    ] = None,
    cores: Cores = "all",
    seeds: Annotated[str | None, typer.Option(help="seeds instead of the file's: 0,1,2")] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="also make the runs again that results/released has")
    ] = False,
) -> None:
    """Run an experiment: models, training, evaluation, tables, page.

    You can interrupt it at any time: the same command resumes. Targets of Snakemake come after `--`.

    Example: troll run workflow/config/testbed.yaml --cores 2
    """
    from troll.operations.run import main

    experiment, *options = words or [_DEFAULT]
    if experiment.startswith("-"):
        if any(word.endswith((".yaml", ".yml")) for word in options):
            raise UserError(f"run: name the experiment file before {experiment}, an option of Snakemake")
        experiment, options = _DEFAULT, [experiment, *options]
    main(
        Path(experiment),
        context.meta["targets"] or ["all"],
        cores=core_count(cores),
        seeds=None if seeds is None else seed_list(seeds),
        repeat=repeat,
        options=options,
    )


@app.command()
def check(
    experiment: Annotated[Path | None, typer.Argument(help="an experiment file")] = None,
    results: ResultsRoot = DEFAULT_RESULTS,
    names: Annotated[bool, typer.Option("--names", help="only list the names of the runs")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="only estimate GPU-hours, disk and memory")] = False,
    only: Only = None,
    rule: Annotated[
        str | None,
        typer.Option(help="instead show the settings of a trust region: its name, or my_rules.py:soft_wall"),
    ] = None,
) -> None:
    """Check an experiment file and show what it will do.

    Also checks the claims files that it names. Times come from earlier runs of this machine in results/.
    --cost estimates GPU-hours and disk by group, and memory by model; runs that cannot fit are refused.

    Example: troll check workflow/config/testbed.yaml
    """
    if (experiment is None) == (rule is None):
        raise UserError("check: name an experiment file, or a trust region: --rule my_rules.py:soft_wall")
    if rule is not None:
        from troll.algorithms.trust_regions import TRUST_REGIONS
        from troll.operations.schema import setting_table

        lines = [*setting_table({rule: TRUST_REGIONS.find(rule)})]
    elif experiment is not None and cost and not names:
        from troll.operations.costs import show_costs

        show_costs(experiment, results, only or ())
        return
    elif only:
        raise UserError("check: --only goes with --cost")
    elif experiment is not None:
        from troll.operations.plan import plan_of

        lines = plan_of(experiment, results, names=names)
    typer.echo("\n".join(lines))


@app.command()
def doctor(
    experiment: Annotated[
        Path | None, typer.Argument(help="an experiment file; without one, only the machine is checked")
    ] = None,
    results: ResultsRoot = DEFAULT_RESULTS,
    offline: Annotated[bool, typer.Option("--offline", help="do not contact the hub")] = False,
) -> None:
    """Check this machine: what is missing, and how to fix it.

    Exits with status 1 if the experiment cannot run here.

    Example: troll doctor workflow/config/testbed.yaml
    """
    from troll.experiment.files import load_experiment
    from troll.operations.doctor import examine, show

    planned = load_experiment(experiment) if experiment is not None else None
    findings = list(examine(planned, results, ask_hub=not offline))
    typer.echo("\n".join(show(findings, planned.experiment if planned else None)))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


@app.command()
def fetch(experiment: File, only: Only = None) -> None:
    """Download the models and data of an experiment.

    Records their revisions and digests in the lock file.

    Run it on a machine that can reach the hub; if interrupted, it resumes. Jobs on machines that cannot reach
    the hub then need HF_HUB_OFFLINE=1, and the same HF_HOME and lock file.

    Example: troll fetch workflow/config/paper.yaml --only paper_sizes
    """
    from troll.experiment.files import load_experiment
    from troll.operations.fetch import fetch as download

    download(load_experiment(experiment), only or [])


@app.command()
def rehearse(
    experiment: File,
    only: Only = None,
    full: Annotated[bool, typer.Option("--full", help="all runs, not only a pairwise cover")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="keep runs and models")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="only check sources, partitions and figures")
    ] = False,
    cores: Cores = "all",
    profile: Annotated[
        Path, typer.Option(help="Snakemake profile with the partitions that jobs must fit")
    ] = Path("workflow/profiles/slurm"),
    results: ResultsRoot = DEFAULT_RESULTS,
) -> None:
    """Run a small copy of an experiment, to find what would fail.

    Runs are shrunk by fixed rules, models replaced by random ones, and missing data by built-in rows; results
    go to results/rehearsal-NAME. Exits with status 1 if a check fails.

    Example: troll rehearse workflow/config/paper.yaml --only paper_sizes
    """
    _keep_offline()
    from troll.experiment.files import load_experiment
    from troll.operations.rehearsal.report import failed
    from troll.operations.rehearsal.run import rehearse as run

    checks = run(
        load_experiment(experiment),
        results,
        only=only or (),
        full=full,
        keep=keep,
        plan_only=plan_only,
        cores=core_count(cores),
        profile=profile,
    )
    if failed(checks):
        raise typer.Exit(1)


def _keep_offline() -> None:
    """Makes libraries offline, which read HF_HUB_OFFLINE at import; the command itself may ask the hub."""
    name, before = "HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE")
    os.environ[name] = "1"
    import datasets  # noqa: F401

    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


@app.command()
def status(
    experiment: File,
    results: ResultsRoot = DEFAULT_RESULTS,
    seeds: Annotated[str | None, typer.Option(help="seeds instead of the file's: 0,1,2")] = None,
    only: Only = None,
    runs: Annotated[bool, typer.Option("--runs", help="list every run, however many there are")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="keep running and show changes")] = False,
    every: Annotated[float, typer.Option(help="seconds between updates with --watch", min=0.2)] = 2.0,
    page: Annotated[
        bool, typer.Option("--page", help="make tables, figures, verdicts and page of the runs that are done")
    ] = False,
) -> None:
    """Show the states of an experiment's runs.

    A run is done, running (with step and remaining time), pending (with SLURM's reason), failed (with reason
    and log), stopped, trained or missing. A run that was made with other settings than the file has now is
    missing: the workflow makes it again. Many runs are counted by group and state. This reads files, and asks
    `squeue` if there is one. --page writes to results/<experiment>/finished, also while the workflow runs.

    Example: troll status workflow/config/testbed.yaml --watch
    """
    from troll.common.progress import clock
    from troll.experiment.files import read_experiment
    from troll.operations.slurm_queue import read_queue
    from troll.operations.status import show, status_of, with_queue
    from troll.operations.time_left import time_left

    planned = read_experiment(experiment)
    if seeds is not None:
        planned = planned.model_copy(update={"seeds": seed_list(seeds)})
    if page:
        from troll.operations.finished import write_finished

        if watch:
            raise UserError("status: --page and --watch: use one of them")
        parts = [f" --only {name}" for name in only or ()] + ([f" --seeds {seeds}"] if seeds else [])
        again = f"troll status {experiment}{''.join(parts)} --page"
        written, ended, of = write_finished(planned, results, only or (), command=again)
        early = "; verdicts may change until the last has ended" if ended < of else ""
        typer.echo(f"{written}: {ended} of {of} planned runs{early}")
        return

    def lines() -> list[str]:
        found, queue = status_of(planned, results, only or [], compare=True), read_queue()
        shown = show(with_queue(found, queue), planned.experiment, planned.groups(), every=runs)
        left = time_left(planned, results, found)
        if left is not None and left.runs:
            shown[0] += f"; about {clock(left.total_s)} of training left, one run after the other"
        return [*shown, *queue.problems]

    if not (watch and sys.stdout.isatty()):
        typer.echo("\n".join(lines()))
        return
    from rich.live import Live
    from rich.text import Text

    # An interrupt ends watching.
    with suppress(KeyboardInterrupt), Live(auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(Text("\n".join(lines()), no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(every)
