"""The steps of `troll rank PROTOCOL.yaml`, for experiments that run elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from troll.cli.options import ProtocolFile

app = typer.Typer()

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", help="one of its rules; may be repeated; by default all, and the board grows with each"
    ),
]
TriedRules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", help="one of its rules; may be repeated; by default those that have trials in RESULTS"
    ),
]


@app.command()
def trials(
    protocol: ProtocolFile,
    out: Annotated[Path, typer.Option(help="the experiment file")],
    rule: Rules = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="results/<experiment> of a round that is done, once for each, the first one first"),
    ] = None,
) -> None:
    r"""Write the experiment of all trials, or of the next round of tuning.

    Reads the protocol, and tidy/ of RESULTS; writes an experiment file.

    Example: troll release trials workflow/config/leaderboard.yaml \
    --out trials.yaml
    """
    from troll.operations.leaderboard import write_trials

    write_trials(protocol, out, rule or (), results or ())


@app.command()
def final(
    protocol: ProtocolFile,
    results: Annotated[
        list[Path], typer.Option(help="results/<experiment> of the trials; once for each round, in order")
    ],
    out: Annotated[Path, typer.Option(help="directory for an experiment file of each task")],
    rule: TriedRules = None,
    fresh: Annotated[
        list[Path] | None,
        typer.Option(help="results/<experiment> of fresh seeds so far, once for each task: the next look's"),
    ] = None,
) -> None:
    r"""Choose the best trial of each rule, and write the experiments of fresh seeds.

    Reads tidy/ of RESULTS; writes OUT/TASK.yaml. Where the protocol ranks each
    rule for itself, rules get the seeds of the first look, and with FRESH those
    of the next one, where they go on.

    Example: troll release final workflow/config/leaderboard.yaml \
    --results results/leaderboard-trials --out final
    """
    from troll.operations.leaderboard import write_finals

    write_finals(protocol, results, out, rule or (), fresh or ())


@app.command()
def board(
    protocol: ProtocolFile,
    trials: Annotated[
        list[Path], typer.Option(help="results/<experiment> of the trials; once for each round, in order")
    ],
    final: Annotated[
        list[Path], typer.Option(help="results/<experiment> of fresh seeds; once for each task")
    ],
    out: Annotated[Path, typer.Option(help="directory of the board")],
) -> None:
    r"""Make the board from finished experiments: tables and figures.

    Reads tidy/ of each; writes board, trials, levels (CSV, Markdown), the
    figures differences, budget and profile, and protocol.yaml into OUT.
    Where the protocol has contrasts, also the table and figure contrasts; what
    it says of the outcome is printed.

    Example: troll release board workflow/config/leaderboard.yaml \
    --trials results/leaderboard-trials --final results/leaderboard-locks \
    --final results/leaderboard-programs --out results/leaderboard
    """
    from troll.common.files import write_text
    from troll.operations.leaderboard import make_board

    outcome = make_board(protocol, trials, final, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    if outcome:
        typer.echo(outcome)
