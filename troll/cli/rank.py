"""`troll rank`: a trust region of one's own, through the protocol of the leaderboard."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import AROUND_A_RUN


def register_rank(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command(rich_help_panel=AROUND_A_RUN)(rank)


def rank(
    rule: Annotated[str, typer.Argument(help="file and function: my_rules.py:soft_wall")],
    space: Annotated[
        list[str] | None,
        typer.Option(help="values of a setting to try, name=1,2,3; may be repeated"),
    ] = None,
    protocol: Annotated[Path, typer.Option(help="of the board")] = Path("workflow/config/ranking.yaml"),
    board: Annotated[
        Path | None, typer.Option(help="results/NAME with a board that the same protocol made")
    ] = None,
    cores: Annotated[int, typer.Option(help="processors; 0 for all", min=0)] = 0,
) -> None:
    """Rank a trust region of your own beside the tuned baseline.

    It gets what every rule of the protocol gets: the contract tests, the same number of trials, fresh seeds
    at the best of them, until they can hardly show a difference any more. The baseline's runs are made once,
    and rules that were run by the same protocol are not made again. Interrupt it when you like: the same
    command goes on.

    Reads results/ranking*; writes results/ranking-NAME*, the whole table as board.md there.

    Example: troll rank my_rules.py:soft_wall --space coefficient=0.1,1,10
    """
    from troll.operations.rank import rank as rank_rule

    typer.echo("\n".join(rank_rule(rule, space or [], protocol, board, cores)))
