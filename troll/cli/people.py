"""Commands for people around a run: what a file means, how far it is, what is missing."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import AROUND_A_RUN
from troll.common.errors import UserError

File = Annotated[Path, typer.Argument(help="an experiment file")]
Results = Annotated[Path, typer.Option(help="directory that holds results by experiment")]
DEFAULT_RESULTS = Path("results")


def check(
    experiment: File,
    results: Results = DEFAULT_RESULTS,
    names: Annotated[bool, typer.Option("--names", help="only the names of the runs, one a line")] = False,
) -> None:
    """Check an experiment file and show what it will do.

    Reads the claims files that it names too. Times are those of earlier runs in results/, where this machine
    made any.

    Example: troll check workflow/config/testbed.yaml
    """
    from troll.experiment.files import load_experiment
    from troll.experiment.looks import with_further_seeds
    from troll.operations.claims_ahead import claims_in_words, claims_of
    from troll.operations.hub_context import hub_context_problems
    from troll.operations.plan import kept_aggregations, plan

    checked = load_experiment(experiment)
    checked = with_further_seeds(checked, results / checked.experiment)
    claims = claims_of(checked)
    for problem in hub_context_problems(checked):
        raise UserError(f"{experiment}: {problem}")
    if names:
        lines = [run.run_id for run in checked.runs()]
    else:
        lines = [*plan(checked, results), *kept_aggregations(checked), claims_in_words(claims, checked)]
    typer.echo("\n".join(lines))


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise UserError(f"--seeds: must be a list of distinct integers, such as 0,1,2 (got {text!r})")
    return [int(part) for part in parts]


def status(
    experiment: File,
    results: Results = DEFAULT_RESULTS,
    seeds: Annotated[str | None, typer.Option(help="other seeds than the file's: 0,1,2")] = None,
    only: Annotated[list[str] | None, typer.Option(help="a group of its runs; may be repeated")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="stay, and show changes as they come")] = False,
    every: Annotated[float, typer.Option(help="with --watch: seconds between updates", min=0.2)] = 2.0,
) -> None:
    """Show the state of every run of an experiment.

    Done, running with step and time left, failed with reason and log, stopped, trained, missing. It reads
    files only, so that it works on a cluster's login node too.

    Example: troll status workflow/config/testbed.yaml --watch
    """
    from troll.experiment.files import read_experiment
    from troll.experiment.looks import with_further_seeds
    from troll.operations.status import show, status_of

    planned = read_experiment(experiment)
    if seeds is not None:
        planned = planned.model_copy(update={"seeds": _seeds(seeds)})

    def lines() -> list[str]:
        with_seeds = (
            planned if seeds is not None else with_further_seeds(planned, results / planned.experiment)
        )
        return show(status_of(with_seeds, results, only or []), planned.experiment)

    if not (watch and sys.stdout.isatty()):
        typer.echo("\n".join(lines()))
        return
    from rich.live import Live
    from rich.text import Text

    # An interrupt is how watching ends.
    with suppress(KeyboardInterrupt), Live(auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(Text("\n".join(lines()), no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(every)


def doctor(
    experiment: Annotated[
        Path | None, typer.Argument(help="an experiment file; without it only the machine is checked")
    ] = None,
    results: Results = DEFAULT_RESULTS,
    offline: Annotated[bool, typer.Option("--offline", help="do not try to reach the hub")] = False,
) -> None:
    """Check this machine: what is missing, and how to fix it.

    Exits with 1 if the experiment cannot run here.

    Example: troll doctor workflow/config/testbed.yaml
    """
    from troll.experiment.files import load_experiment
    from troll.operations.doctor import examine, show

    planned = load_experiment(experiment) if experiment is not None else None
    findings = list(examine(planned, results, ask_hub=not offline))
    typer.echo("\n".join(show(findings, planned.experiment if planned else None)))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def schema(
    out: Annotated[Path | None, typer.Option(help="*.json: for editors; *.md: for people")] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="print the settings of one trust region: its name or my_rules.py:soft_wall"),
    ] = None,
) -> None:
    """Write what an experiment file may hold, or print the settings of one trust region.

    Example: troll schema --rule my_rules.py:soft_wall
    """
    from troll.common.files import write_text
    from troll.operations.schema import reference, schema_text, setting_table

    if rule is not None:
        from troll.algorithms.trust_regions import TRUST_REGIONS

        for line in setting_table({rule: TRUST_REGIONS.find(rule, {})}):
            typer.echo(line)
    if out is None and rule is None:
        raise UserError("schema: nothing to do; give --out FILE.json, --out FILE.md or --rule NAME")
    if out is None:
        return
    makers = {".json": schema_text, ".md": reference}
    if out.suffix not in makers:
        raise UserError(f"--out: {out} should end in {' or '.join(makers)}")
    write_text(out, makers[out.suffix]())


def register_support(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for function in (check, status, doctor, schema):
        app.command(rich_help_panel=AROUND_A_RUN)(function)
