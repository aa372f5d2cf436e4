"""Inputs of a board: scores of trials by round, the choice of the best trial, and checks of directories."""

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
from troll.analysis.render.formats import Style, counted, listed, percent, table, whole
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
    "first": Style("In the first round (%)", percent),
    "rounds": Style("Rounds", whole),
}


def trial_scores(
    runs: pd.DataFrame, protocol: Protocol, only: str | None = None, rounds: int | None = None
) -> pd.DataFrame:
    """Final validation success of each trial, by default after all rounds.

    Returns:
        Columns ``task``, ``rule``, ``trial`` (number), ``learning_rate``, ``settings`` (in words), ``score``
        (mean over models and the tuning seeds of its rounds), ``runs`` (their number), ``after`` (share of
        a trial's optimiser steps before the last validation: 1 unless the final validation is missing),
        ``first`` (the score after the first round) and ``rounds`` (their number). A collapsed run counts with
        its final success; a run that stopped at a non-finite loss counts as 0 if the protocol admits it, else
        it has no results and its trial is unfinished.
    """
    last = _last_validations(runs)
    ends = _last_steps(runs, last)
    # A validation is logged with the step that follows it; the final one with the last step.
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
                tuned = {"learning_rate": trial.learning_rate, "settings": trial.described}
                rows.append({"task": task, "rule": name, "trial": trial.number, **tuned, **line})
    return table(rows, TRIAL_STYLES)


def _last_validations(runs: pd.DataFrame) -> pd.DataFrame:
    validation = runs[(runs["source"] == "validation") & (runs["metric"] == "validation_success")]
    last = validation.sort_values("step").groupby(["run_id"], observed=True).tail(1)
    stopped = last["run_id"].astype(str).isin(stopped_runs(runs))
    steps = _last_steps(runs, last)
    return last.assign(value=last["value"].mask(stopped, 0.0), step=last["step"].mask(stopped, steps))


def _last_steps(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Returns the last step of each row's run."""
    return rows["run_id"].astype(str).map(runs.groupby(runs["run_id"].astype(str))["step"].max())


def tuning_values(runs: pd.DataFrame, scores: pd.DataFrame, protocol: Protocol) -> Tuning:
    """Final validation success of the finalists by task and rule: a row per seed, a column per trial."""
    last = _last_validations(runs)
    values = {}
    for (task, name), group in _finalists(scores):
        variants = [f"{name}.{number}" for number in group["trial"]]
        rows = last[(last["task"] == task) & last["trust_region"].isin(variants)]
        by_seed = rows.astype({"trust_region": str}).pivot_table(
            index="seed", columns="trust_region", values="value"
        )
        values[task, name] = by_seed[variants]
    return values


def _finalists(scores: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Yields the trials of the last round, by task and rule."""
    for (task, name), group in scores.groupby(["task", "rule"], sort=False, observed=True):
        yield (str(task), str(name)), group[group["rounds"] == group["rounds"].max()]


def _rule_lines(
    ends: Mapping[str, pd.DataFrame],
    protocol: Protocol,
    stages: Sequence[Sequence[int]],
    task: str,
    models: int,
) -> list[dict[str, float]]:
    """Returns rows of `trial_scores` for a rule's trials on a task, from last validations by variant."""
    lines: dict[str, dict[str, float]] = {variant: {} for variant in ends}
    kept, seeds = list(ends), set[int]()
    for number, stage in enumerate(stages):
        if number:
            kept = _best(
                {trial: lines[trial]["score"] for trial in kept}, protocol.rounds[number - 1].trials_kept
            )
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
    """Returns the trials with the highest scores, in file order; ties go to the first."""
    best = sorted(scores, key=lambda variant: -scores[variant])[:keep]
    return [variant for variant in scores if variant in best]


def _check_count(runs: int, trial: str, expected: int) -> None:
    if runs > expected:
        raise UserError(
            f"trial {trial} has {runs} runs, but the protocol has {expected}, one for each "
            "tuning seed and model; they belong to another protocol"
        )
    if runs < expected:
        raise UserError(f"trial {trial} has {runs} of {expected} runs; finish the trials first")


def kept_for(scores: pd.DataFrame, protocol: Protocol, number: int) -> dict[tuple[str, str], list[Trial]]:
    """Returns the trials that advance to a further round, by task and rule, in file order."""
    kept = {}
    for (task, name), group in scores[scores["rounds"] == number].groupby(["task", "rule"], sort=False):
        variants = [f"{name}.{trial}" for trial in group["trial"]]
        best = _best(
            dict(zip(variants, group["score"], strict=True)), protocol.rounds[number - 1].trials_kept
        )
        kept[str(task), str(name)] = [protocol.trials_by_variant[variant] for variant in best]
    return kept


def choose(scores: pd.DataFrame, protocol: Protocol) -> dict[tuple[str, str], Trial]:
    """Returns the best trial of the last round by task and rule; ties go to the first."""
    best = {}
    for (task, name), group in _finalists(scores):
        number = int(group["trial"].iloc[int(group["score"].to_numpy().argmax())])
        best[task, name] = protocol.trials_by_variant[f"{name}.{number}"]
    return best


def expected_best(scores: Sequence[float], budget: int) -> float:
    """Expected best of ``budget`` trials drawn without replacement; shows how much tuning a rule needs.

    The unbiased estimator of Tang et al. (2020, "Showing Your Work Doesn't Always Work", eq. 5), for the
    quantity of Dodge et al. (2019, "Show Your Work").
    """
    count = len(scores)
    if not 1 <= budget <= count:
        raise UserError(f"expected_best: budget is {budget}, must be 1 to {count}")
    ordered = np.sort(np.asarray(scores, dtype=float))
    below = np.arange(count)  # number of trials ranked below each
    weights = comb(below, budget - 1) / comb(count, budget)
    return float(ordered @ weights)


def tuning_table(tables: Mapping[Path, pd.DataFrame], protocol: Protocol) -> pd.DataFrame:
    """Concatenates the runs of all tuning rounds after checking their seeds."""
    if len(tables) > len(protocol.stages):
        raise UserError(
            f"{list(tables)[-1]}: one directory too many; {protocol.name} has "
            f"{counted(len(protocol.stages), 'round')} of tuning"
        )
    for (path, runs), seeds in zip(tables.items(), protocol.stages, strict=False):
        trials = runs[runs["trust_region"].isin(protocol.trials_by_variant)]
        tuned_seeds = sorted({int(seed) for seed in trials["seed"].dropna()})
        if tuned_seeds and not set(tuned_seeds) & set(seeds):
            raise UserError(
                f"{path}: its trials have the seeds {listed([*map(str, tuned_seeds)])}, but those of "
                f"{protocol.name} have {listed([*map(str, seeds)])} in this round; they belong to another "
                "protocol and cannot be mixed"
            )
    return concatenated([*tables.values()], RUN_COLUMNS) if len(tables) > 1 else next(iter(tables.values()))


def tuned_elsewhere(runs: pd.DataFrame, final: Sequence[Results], protocol: Protocol) -> list[str]:
    """Returns sentences of a board about a first round whose runs are those of another protocol."""
    if protocol.tuned_in is None:
        return []
    name = Path(protocol.tuned_in).name
    first = runs[runs["experiment"].astype(str) == name]
    until = max(int(results.runs["numerics"].max()) for results in final)
    notes = [f"The runs of the first round are those of {name}, which were not made again."]
    if old := outdated_rules(first[first["trust_region"].isin(protocol.trials_by_variant)], until):
        notes.append(
            f"Those of {listed(old)} were made with earlier numerics than the fresh seeds, and would come "
            "out differently now: they say less well which trials are best."
        )
    return notes


def outdated_rules(runs: pd.DataFrame, until: int) -> list[str]:
    """Returns the rules with runs that would give other results with the numerics ``until``."""
    versions = runs[["rule", "numerics"]].drop_duplicates().itertuples(index=False)
    return sorted({str(rule) for rule, old in versions if changed_since(int(old), str(rule), until=until)})


def check_named_once(directories: Sequence[Path], option: str = "--final") -> None:
    """Raises `UserError` if a directory is given twice: its runs would be counted twice."""
    seen: dict[Path, Path] = {}
    for path in directories:
        place = path.resolve()
        if place in seen:
            spelt = "" if seen[place] == path else f", first as {seen[place]}"
            raise UserError(f"{option}: {path} is given twice{spelt}; name it once")
        seen[place] = path


def check_fresh(finals: Mapping[Path, Results], protocol: Protocol) -> None:
    """Raises `UserError` unless results hold fresh seeds of the protocol, each task in one directory."""
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
    """Raises `UserError` if runs have several conditions or estimators: a board compares under one."""
    for key in ("condition", "estimator"):
        names = sorted({getattr(cell, key) for cell in fresh})
        if len(names) > 1:
            raise UserError(
                f"{directory}: has runs with {key} {names[0]} and with {key} {names[1]}; a board compares "
                "rules under one"
            )
