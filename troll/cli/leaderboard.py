"""Commands of the leaderboard: every rule tuned with the same budget, then compared on fresh seeds."""

from pathlib import Path
from typing import Annotated

import typer

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.common.progress import say

ProtocolFile = Annotated[Path, typer.Argument(help="the protocol: rules, their spaces, seeds")]
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

leaderboard = typer.Typer(
    help="Tune every rule alike, then compare on fresh seeds.",
    no_args_is_help=True,
)


@leaderboard.command()
def run(
    protocol: ProtocolFile,
    rule: Rules = None,
    cores: Annotated[int, typer.Option(help="processors; 0 for all", min=0)] = 0,
) -> None:
    r"""Run trials, in all rounds, and fresh seeds, and make the board.

    All of the steps below, in one command.

    Runs that are in the tables or finished are not made again. Interrupt it when you like: the same command
    goes on.

    Writes results/NAME-trials, results/NAME-round-N where the protocol has rounds,
    results/NAME-TASK and the board in results/NAME.

    Example: troll leaderboard run workflow/config/leaderboard.yaml --rule clip \
    --rule troll
    """
    from troll.analysis.leaderboard.inputs import choose, trial_scores
    from troll.analysis.leaderboard.protocol import among
    from troll.common.files import write_text
    from troll.operations.leaderboard import make_board, read_rounds, run_fresh, run_rounds
    from troll.operations.protocol_checks import checked_protocol
    from troll.operations.workflow import in_checkout

    in_checkout("leaderboard run")
    whole = checked_protocol(protocol)
    known = among(whole, rule or whole.rules)
    out, count = Path("results", known.name), cores or available_cores()
    files = out / "experiments"
    tried = run_rounds(known, files, count, protocol)
    best = choose(trial_scores(read_rounds(tried, known), known), known)
    finals = run_fresh(known, best, files, count, protocol)
    outcome = make_board(protocol, tried, finals, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    say(f"the board: {out / 'board.md'}")
    if outcome:
        typer.echo(outcome)


@leaderboard.command()
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

    Example: troll leaderboard trials workflow/config/leaderboard.yaml \
    --out trials.yaml
    """
    from troll.analysis.leaderboard.inputs import kept_for, trial_scores
    from troll.analysis.leaderboard.protocol import among, round_experiment, trials_experiment
    from troll.operations.leaderboard import read_rounds, write_experiment
    from troll.operations.protocol_checks import checked_protocol

    whole = checked_protocol(protocol)
    known, done = among(whole, rule or whole.rules), len(results or [])
    if not results:
        if known.tuned_in:
            raise UserError(
                f"{protocol}: the first round is that of {known.tuned_in}, which is not run again; "
                f"--results {known.tuned_in} writes the next one"
            )
        write_experiment(out, trials_experiment(known), protocol)
        return
    if done > len(known.rounds):
        raise UserError(f"{protocol}: no round is left after {done}; continue with `troll leaderboard final`")
    scores = trial_scores(read_rounds(results, known), known, rounds=done - 1)
    write_experiment(out, round_experiment(known, done, kept_for(scores, known, done)), protocol)


@leaderboard.command()
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

    Example: troll leaderboard final workflow/config/leaderboard.yaml \
    --results results/leaderboard-trials --out final
    """
    from troll.analysis.data.results import read_results
    from troll.analysis.leaderboard.inputs import choose, trial_scores, tried_in
    from troll.analysis.leaderboard.protocol import among, final_experiments
    from troll.analysis.leaderboard.ranking import seeds_of_rules, seeds_there
    from troll.operations.leaderboard import read_rounds, write_experiments
    from troll.operations.protocol_checks import checked_protocol

    known = checked_protocol(protocol)
    runs = read_rounds(results, known)
    there = tried_in(runs, known, results[0])
    known = among(known, rule or there)
    finals = [read_results(path) for path in fresh or []]
    counts = seeds_of_rules(known, finals)
    if finals and all(count == seeds_there(known, finals, name) for name, count in counts.items()):
        raise UserError(
            f"{protocol}: every rule has its fresh seeds; continue with `troll leaderboard board`"
        )
    experiments = final_experiments(known, choose(trial_scores(runs, known), known), counts=counts)
    files = {out / f"{task}.yaml": experiment for task, experiment in experiments.items()}
    write_experiments(files, protocol)


@leaderboard.command()
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

    Example: troll leaderboard board workflow/config/leaderboard.yaml \
    --trials results/leaderboard-trials --final results/leaderboard-locks \
    --final results/leaderboard-programs --out results/leaderboard
    """
    from troll.common.files import write_text
    from troll.operations.leaderboard import make_board

    outcome = make_board(protocol, trials, final, out)
    write_text(out / "protocol.yaml", protocol.read_text(encoding="utf-8"))
    if outcome:
        typer.echo(outcome)
