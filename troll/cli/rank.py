"""`troll rank`: rules, all tuned alike, compared on fresh seeds."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import Cores
from troll.common.errors import UserError

app = typer.Typer()


@app.command()
def rank(
    what: Annotated[
        str, typer.Argument(metavar="RULE|PROTOCOL", help="my_rules.py:soft_wall, or a protocol.yaml")
    ],
    space: Annotated[
        list[str] | None, typer.Option(help="values of a setting of RULE to try, name=1,2,3; may be repeated")
    ] = None,
    protocol: Annotated[
        Path | None, typer.Option(help="protocol for RULE; default workflow/config/ranking.yaml")
    ] = None,
    board: Annotated[
        Path | None, typer.Option(help="results/NAME with a board made by the same protocol")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="one of the rules of PROTOCOL; may be repeated; default all")
    ] = None,
    cores: Cores = 0,
) -> None:
    """Rank your own trust region, or run a whole protocol.

    RULE gets what every rule of the protocol gets: the contract tests, the same number of trials (runs that
    try settings), and fresh seeds with the best settings. PROTOCOL runs all trials of its rules, the fresh
    seeds, and the board (the table of results).

    You can interrupt it at any time: the same command continues, and no run is made twice. The board is in
    results/ranking-NAME for a rule, and in results/NAME for a protocol.

    Example: troll rank my_rules.py:soft_wall --space coefficient=0.1,1,10
    """
    if Path(what).suffix in (".yaml", ".yml"):
        if space or protocol or board:
            raise UserError(f"rank: {what} is a protocol; --space, --protocol and --board go with a rule")
        from troll.operations.leaderboard import run_protocol

        lines = run_protocol(Path(what), rule or (), cores)
    else:
        if rule:
            raise UserError("rank: --rule chooses rules of a protocol; name one: troll rank PROTOCOL.yaml")
        from troll.operations.rank import PROTOCOL
        from troll.operations.rank import rank as rank_rule

        lines = rank_rule(what, space or (), protocol or PROTOCOL, board, cores)
    for line in lines:
        typer.echo(line)
