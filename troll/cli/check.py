"""`troll check`: what an experiment file means, and what a trust region can be set to."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import DEFAULT_RESULTS, ResultsRoot
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def check(
    experiment: Annotated[Path | None, typer.Argument(help="an experiment file")] = None,
    results: ResultsRoot = DEFAULT_RESULTS,
    names: Annotated[bool, typer.Option("--names", help="only the names of the runs, one a line")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="only an estimate of GPU-hours and disk")] = False,
    rule: Annotated[
        str | None,
        typer.Option(help="the settings of a trust region instead: its name or my_rules.py:soft_wall"),
    ] = None,
) -> None:
    """Check an experiment file and show what it will do.

    Reads the claims files that it names too. Times are those of earlier runs in results/, where this machine
    made any; --cost estimates runs, GPU-hours and disk by group.

    Example: troll check workflow/config/testbed.yaml
    """
    if (experiment is None) == (rule is None):
        raise UserError("check: name an experiment file, or a trust region: --rule my_rules.py:soft_wall")
    if rule is not None:
        from troll.algorithms.trust_regions import TRUST_REGIONS
        from troll.operations.schema import setting_table

        lines = [*setting_table({rule: TRUST_REGIONS.find(rule, {})})]
    elif experiment is not None:
        from troll.operations.plan import cost_of, names_of, plan_of

        show = names_of if names else cost_of if cost else plan_of
        lines = show(experiment, results)
    typer.echo("\n".join(lines))
