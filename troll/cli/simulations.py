"""Commands that simulate: how reliable intervals, verdicts and protocols are."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.leaderboard import ProtocolFile, leaderboard
from troll.common.errors import UserError


def coverage(
    out: Annotated[Path, typer.Option(help="directory for the tables coverage and looks")],
    trials: Annotated[int, typer.Option(min=1, help="simulated experiments of each kind")] = 2000,
) -> None:
    """Simulate how reliable intervals and verdicts are.

    How often intervals cover the truth, and how often looking again and again misleads.

    Example: troll coverage --out results/statistics
    """
    from troll.analysis.coverage import coverage_table
    from troll.analysis.render.formats import to_markdown
    from troll.analysis.sequential import error_rates
    from troll.common.files import write_text

    rates = error_rates(trials)
    write_text(out / "looks.csv", rates.round(6).to_csv(index=False, lineterminator="\n"))
    write_text(out / "looks.md", to_markdown(rates))

    frame = coverage_table(trials)
    write_text(out / "coverage.csv", frame.round(6).to_csv(index=False, lineterminator="\n"))
    write_text(out / "coverage.md", to_markdown(frame))


@leaderboard.command("error-rates")
def error_rates(
    protocol: ProtocolFile,
    against: Annotated[
        Path | None, typer.Option(help="another protocol, without a ranking: its power with as many runs")
    ] = None,
    draws: Annotated[int, typer.Option(help="simulated comparisons of each effect", min=100)] = 20_000,
) -> None:
    r"""Simulate how often a protocol that ranks rules errs and finds.

    Prints a table: the effect by which a rule is better than the baseline on
    every task, how often it is read above and below, its runs, what the tuning
    loses and how it spreads; with AGAINST also how often that one reads it above
    with as many runs, corrected over its whole board.

    Example: troll leaderboard error-rates workflow/config/ranking.yaml \
    --against workflow/config/leaderboard.yaml
    """
    from troll.analysis.leaderboard.error_rates import rates_table
    from troll.analysis.leaderboard.protocol import read_protocol
    from troll.analysis.render.formats import to_markdown

    ranked = read_protocol(protocol)
    if ranked.ranking is None:
        raise UserError(f"{protocol}: ranking: is missing; only protocols that rank rules are simulated")
    other = read_protocol(against) if against else None
    if other is not None and other.ranking is not None:
        raise UserError(f"--against: {against}: has a ranking of its own; name a protocol without one")
    typer.echo(to_markdown(rates_table(ranked, other, draws=draws)))


def register_simulations(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(coverage)
