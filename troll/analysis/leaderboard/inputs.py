"""What a board is made from: scores of trials, round by round, and directories that hold what they should.

How much tuning a rule needs is shown by the expected best of fewer trials (`expected_best`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import comb

from troll.analysis.data.results import Results
from troll.analysis.data.summaries import Cell, cells, stopped_runs
from troll.analysis.data.tidy import RUN_COLUMNS, concatenated
from troll.analysis.leaderboard.contrasts import Tuning
from troll.analysis.leaderboard.protocol import Protocol, Trial, rate
from troll.analysis.render.formats import Style, counted, listed, percent, whole
from troll.common.errors import UserError
from troll.common.numerics import changed_since

TRIAL_STYLES = {
    "rule": Style("Trust region"),
    "trial": Style("Trial", whole),
    "learning_rate": Style("Learning rate", rate),
    "settings": Style("Settings"),
    "score": Style("Validation success (%)", percent),
    "runs": Style("Runs", whole),
    "after": Style("After (% of steps)", percent),
}
ROUND_STYLES = {"first": Style("In the first round (%)", percent), "rounds": Style("Rounds", whole)}
"""Of the columns that the table of trials has where they are tuned in rounds."""


def tried(runs: pd.DataFrame, protocol: Protocol) -> list[str]:
    """The rules of which there are runs of trials: of the last round, or of any where that has none."""
    last = runs[runs["seed"].isin(protocol.stages[-1])] if protocol.rounds else runs
    present = set((runs if last.empty else last)["trust_region"])
    names = {trial.name for variant, trial in protocol.trials_by_variant.items() if variant in present}
    return [name for name in protocol.rules if name in names]


def trial_scores(
    runs: pd.DataFrame, protocol: Protocol, only: str | None = None, rounds: int | None = None
) -> pd.DataFrame:
    """Success on validation problems at the end of each trial; all rounds count by default.

    Returns:
        Columns task, rule, trial (number), learning_rate, settings (in words), score (mean over the tuning
        seeds of its rounds, and models), runs (how many) and after: the share of a trial's optimiser steps
        that are before the last validation, 1 unless that after the last step is missing. Where the protocol
        has rounds, also first (its score after the first) and rounds (in how many it was). A run that
        collapsed counts with the success that it ended with, one that stopped at a loss that is not finite
        with 0, where the protocol lets it count; else it leaves no results, and its trial is unfinished.
    """
    last = _last_validations(runs)
    ends = _last_steps(runs, last)
    # A validation stands in the line of the step after it, that after the last step in the last line.
    last = last.assign(after=((last["step"] - 1) / ends).where(last["step"] < ends, 1.0))
    models = len(set(runs["model"]) - {""})
    stages = protocol.stages if rounds is None else protocol.stages[: rounds + 1]
    rows = []
    for task in protocol.experiment["tasks"]:
        for name in protocol.rules if only is None else [only]:
            trials = protocol.trials_of(name)
            ends_of_rule = {
                trial.variant: last[(last["task"] == task) & (last["trust_region"] == trial.variant)]
                for trial in trials
            }
            lines = _rule_lines(ends_of_rule, protocol, stages, task, models)
            for trial, line in zip(trials, lines, strict=True):
                told = {"learning_rate": trial.learning_rate, "settings": trial.described}
                rows.append({"task": task, "rule": name, "trial": trial.number, **told, **line})
    frame = pd.DataFrame(rows)
    if not protocol.rounds:
        frame = frame.drop(columns=list(ROUND_STYLES))
    frame.attrs["styles"] = TRIAL_STYLES | ROUND_STYLES
    return frame


def _last_validations(runs: pd.DataFrame) -> pd.DataFrame:
    validation = runs[(runs["source"] == "validation") & (runs["metric"] == "validation_success")]
    last = validation.sort_values("step").groupby(["run_id"], observed=True).tail(1)
    stopped = last["run_id"].astype(str).isin(stopped_runs(runs))
    steps = _last_steps(runs, last)
    return last.assign(value=last["value"].mask(stopped, 0.0), step=last["step"].mask(stopped, steps))


def _last_steps(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """The last step of the run that each of the rows is of."""
    return rows["run_id"].astype(str).map(runs.groupby(runs["run_id"].astype(str))["step"].max())


def tuning_values(runs: pd.DataFrame, scores: pd.DataFrame, protocol: Protocol) -> Tuning:
    """Success on validation problems at the end of the trials among which the choice was made."""
    last = _last_validations(runs)
    values = {}
    for (task, name), group in _finalists(scores):
        variants = [f"{name}.{number}" for number in group["trial"]]
        rows = last[(last["task"] == task) & last["trust_region"].isin(variants)]
        table = rows.astype({"trust_region": str}).pivot_table(
            index="seed", columns="trust_region", values="value"
        )
        values[task, name] = table[variants]
    return values


def _finalists(scores: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """The trials that went through all rounds, by task and rule."""
    for (task, name), group in scores.groupby(["task", "rule"], sort=False, observed=True):
        last = group if "rounds" not in group else group[group["rounds"] == group["rounds"].max()]
        yield (str(task), str(name)), last


def _rule_lines(
    ends: Mapping[str, pd.DataFrame],
    protocol: Protocol,
    stages: Sequence[Sequence[int]],
    task: str,
    models: int,
) -> list[dict[str, float]]:
    """What the table of trials says of a rule's trials on a task, from the ends of their runs, by variant."""
    lines: dict[str, dict[str, float]] = {variant: {} for variant in ends}
    kept, seeds = list(ends), set[int]()
    for number, stage in enumerate(stages):
        if number:
            kept = _best({trial: lines[trial]["score"] for trial in kept}, protocol.rounds[number - 1].keep)
        seeds |= set(stage)
        for variant in kept:
            runs = ends[variant]
            runs = runs[runs["seed"].isin(seeds)] if protocol.rounds else runs
            _check_count(len(runs), f"{variant} on {task}", len(seeds) * models)
            score, after = float(runs["value"].mean()), float(runs["after"].min())
            first = lines[variant].get("first", score)
            lines[variant] = {"score": score, "runs": len(runs), "after": after}
            lines[variant] |= {"first": first, "rounds": number + 1}
    return list(lines.values())


def _best(scores: Mapping[str, float], keep: int) -> list[str]:
    """The trials with the highest scores, in the order of the file; of equal ones the first."""
    best = sorted(scores, key=lambda variant: -scores[variant])[:keep]
    return [variant for variant in scores if variant in best]


def _check_count(runs: int, trial: str, expected: int) -> None:
    if runs > expected:
        raise UserError(
            f"trial {trial} has {runs} runs, and the protocol {expected}, one for each "
            "tuning seed and model; they belong to another protocol"
        )
    if runs < expected:
        raise UserError(f"trial {trial} has {runs} of {expected} runs; finish the trials first")


def kept_for(scores: pd.DataFrame, protocol: Protocol, number: int) -> dict[tuple[str, str], list[Trial]]:
    """The trials that go on to a further round, by task and rule, in the order of the file."""
    kept = {}
    for (task, name), group in scores[scores["rounds"] == number].groupby(["task", "rule"], sort=False):
        variants = [f"{name}.{trial}" for trial in group["trial"]]
        best = _best(dict(zip(variants, group["score"], strict=True)), protocol.rounds[number - 1].keep)
        kept[str(task), str(name)] = [protocol.trials_by_variant[variant] for variant in best]
    return kept


def choose(scores: pd.DataFrame, protocol: Protocol) -> dict[tuple[str, str], Trial]:
    """The best trial of each rule on each task; of equal ones the first in the order of the file.

    Where trials were tuned in rounds it is one of those that went through all of them.
    """
    best = {}
    for (task, name), group in _finalists(scores):
        number = int(group["trial"].iloc[int(group["score"].to_numpy().argmax())])
        best[task, name] = protocol.trials_by_variant[f"{name}.{number}"]
    return best


def first_scores(scores: pd.DataFrame) -> pd.Series:
    """The score of each trial after the first round, in which all of them ran on the same seeds."""
    return scores["first"] if "first" in scores else scores["score"]


def expected_best(scores: Sequence[float], budget: int) -> float:
    """Expected best of ``budget`` trials, drawn without replacement from those that were made.

    The unbiased estimator of Tang et al. (2020, "Showing Your Work Doesn't Always Work", eq. 5), for the
    quantity of Dodge et al. (2019, "Show Your Work").
    """
    count = len(scores)
    if not 1 <= budget <= count:
        raise UserError(f"expected_best: budget is {budget}, must be 1 to {count}")
    ordered = np.sort(np.asarray(scores, dtype=float))
    below = np.arange(count)  # trials that are no better than each
    weights = comb(below, budget - 1) / comb(count, budget)
    return float(ordered @ weights)


def tuning_table(tables: Mapping[Path, pd.DataFrame], protocol: Protocol) -> pd.DataFrame:
    """The runs of all rounds of tuning as one table."""
    if len(tables) > len(protocol.stages):
        raise UserError(
            f"{list(tables)[-1]}: is one directory too many; {protocol.name} has "
            f"{counted(len(protocol.stages), 'round')} of tuning"
        )
    for (path, table), seeds in zip(tables.items(), protocol.stages, strict=False):
        mine = table[table["trust_region"].isin(protocol.trials_by_variant)]
        tuned_seeds = sorted({int(seed) for seed in mine["seed"].dropna()})
        if tuned_seeds and not set(tuned_seeds) & set(seeds):
            raise UserError(
                f"{path}: its trials have the seeds {listed([*map(str, tuned_seeds)])}, and those of "
                f"{protocol.name} have {listed([*map(str, seeds)])} in this round: they are another "
                "protocol's, with which they are not mixed"
            )
    return concatenated([*tables.values()], RUN_COLUMNS) if len(tables) > 1 else next(iter(tables.values()))


def tuned_elsewhere(runs: pd.DataFrame, final: Sequence[Results], protocol: Protocol) -> list[str]:
    """What a board says of a first round that another protocol has made, in sentences."""
    if protocol.tuned_in is None:
        return []
    name = Path(protocol.tuned_in).name
    first = runs[runs["experiment"].astype(str) == name]
    until = max(int(results.runs["numerics"].max()) for results in final)
    said = [f"The runs of the first round are those of {name}, which were not made again."]
    if old := outdated_rules(first[first["trust_region"].isin(protocol.trials_by_variant)], until):
        said.append(
            f"Those of {listed(old)} were made with earlier numerics than the fresh seeds, and would come "
            "out differently now: they say less well which trials are best."
        )
    return said


def outdated_rules(runs: pd.DataFrame, until: int) -> list[str]:
    """The rules of which some run would come out differently with later numerics."""
    made = runs[["rule", "numerics"]].drop_duplicates().itertuples(index=False)
    return sorted({str(rule) for rule, old in made if changed_since(int(old), str(rule), until=until)})


def tried_in(runs: pd.DataFrame, protocol: Protocol, directory: Path) -> list[str]:
    """The rules of which there are trials."""
    names = tried(runs, protocol)
    if not names:
        first = next(iter(protocol.trials_by_variant))
        raise UserError(
            f"{directory}: has no trials of {protocol.name}: none of its trust regions has the name of a "
            f"trial, such as {first}; expected results/{protocol.tuning_experiments[0]}"
        )
    if protocol.baseline not in names:
        raise UserError(
            f"{directory}: has no trials of {protocol.baseline}, which all rules are compared with; run them "
            "first"
        )
    return names


def trial_runs(runs: pd.DataFrame, protocol: Protocol) -> dict[str, int]:
    """How many runs of trials each rule has, be they on the board or not."""
    names = runs.drop_duplicates("run_id")["trust_region"].astype(str)
    rules = names.map({variant: trial.name for variant, trial in protocol.trials_by_variant.items()})
    return {str(name): int(count) for name, count in rules.value_counts().items()}


def check_named_once(directories: Sequence[Path], option: str = "--final") -> None:
    """Runs that are read twice would count twice in what is corrected for the number of comparisons."""
    seen: dict[Path, Path] = {}
    for path in directories:
        place = path.resolve()
        if place in seen:
            spelt = "" if seen[place] == path else f", first as {seen[place]}"
            raise UserError(f"{option}: {path} is given twice{spelt}; name it once")
        seen[place] = path


def check_fresh(finals: Mapping[Path, Results], protocol: Protocol) -> None:
    """Makes sure that results hold fresh seeds of the protocol's rules, those of each task once."""
    tasks: dict[str, Path] = {}
    expected = [f"results/{protocol.name}-{task}" for task in protocol.experiment["tasks"]]
    for directory, results in finals.items():
        present = cells(results.items)
        fresh = [cell for cell in present if cell.trust_region in protocol.rules]
        if not fresh:
            raise UserError(
                f"{directory}: has no fresh seeds of {protocol.name}: none of its trust regions is a rule of "
                f"the protocol; expected {' or '.join(expected)}"
            )
        for task in sorted({cell.task for cell in present}):
            if task not in protocol.experiment["tasks"]:
                raise UserError(
                    f"{directory}: has runs on {task}, which is not a task of the protocol; expected "
                    f"{' or '.join(expected)}"
                )
            if (other := tasks.setdefault(task, directory)) != directory:
                raise UserError(f"--final: {other} and {directory} both have runs on {task}; leave one out")
        _check_one_setting(directory, fresh)


def _check_one_setting(directory: Path, fresh: Sequence[Cell]) -> None:
    """A rule has one row for each model and task."""
    for key in ("condition", "estimator"):
        names = sorted({getattr(cell, key) for cell in fresh})
        if len(names) > 1:
            raise UserError(
                f"{directory}: has runs with {key} {names[0]} and with {key} {names[1]}; a board compares "
                "rules under one"
            )
