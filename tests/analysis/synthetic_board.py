"""A small protocol of a leaderboard, its trials with known scores, and the board of synthetic runs."""

from typing import Any

import pandas as pd
import synthetic

from troll.analysis.data.results import Results
from troll.analysis.data.runs import read_directories
from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.inputs import choose, trial_scores
from troll.analysis.leaderboard.protocol import Protocol

PROTOCOL: dict[str, Any] = {
    "name": "board",
    "trials": 4,
    "tuning_seeds": [100, 101],
    "seeds": [0, 1, 2],
    "learning_rates": [1e-4, 3e-4],
    "baseline": "clip",
    "rules": {
        "clip": {
            "rule": "clip",
            "settings": {"dual_clip": 10.0},
            "space": {"epsilon_low, epsilon_high": [0.1, 0.2]},
        },
        "troll": {"rule": "troll", "space": {"kl_bound": [0.05, 0.2]}},
        "none": {"rule": "none", "learning_rates": [1e-5, 3e-5, 1e-4, 3e-4]},
    },
    "experiment": {
        "tasks": {
            "chains": {"train": 256, "validation": 4, "test": 4},
            "functions": {"train": 256, "validation": 4, "test": 4},
        },
        "models": {"tiny": {"vocabulary": 512}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"tuned": {"mini_batches": 8, "num_iterations": 3}},
        "training": {"max_response_tokens": 48},
    },
}


SENTENCES = {
    "above": "{method} ends above {baseline} on {tasks}: {difference} points, {seeds} seeds.",
    "below": "{method} ends below {baseline}: {difference}.",
    "within": "{method} ends within {margin} points of {baseline}: {difference}.",
    "undecided": "{method} and {baseline}: {difference}, undecided within {margin} points.",
    "small": "It is less than {margin} points.",
}


def compared(**changes):
    """A block of contrasts for the protocol, with some of its keys changed."""
    contrasts = [("troll", "clip"), ("troll", "none"), ("none", "clip")]
    block = {
        "contrasts": [{"method": method, "baseline": baseline} for method, baseline in contrasts],
        "margin": 0.03,
        "endpoints": ["pass@1", "area"],
        "sentences": SENTENCES,
    }
    return {"comparison": block | changes}


PROTOCOL |= compared()
IN_ROUNDS = PROTOCOL | {
    "rounds": [{"trials_kept": 2, "seeds": [102, 103]}, {"trials_kept": 1, "seeds": [104]}]
}
"""The protocol with two further rounds of tuning."""


def validation(protocol, score, seeds=None, kept=None):
    """The tidy rows of all trials, each with a success on validation that falls before it ends.

    Args:
        protocol: theirs.
        score: its success at the end, from task, trial and seed.
        seeds: of the runs; the protocol's tuning seeds if None.
        kept: the trials by task and rule, if not all of them ran.
    """
    rows = [
        {
            "run_id": f"tiny/{task}/{variant}/grpo/tuned/seed{seed}",
            "seed": seed,
            "model": "tiny",
            "task": task,
            "trust_region": variant,
            "source": "validation",
            "metric": "validation_success",
            "step": step,
            "value": value,
        }
        for task in ("chains", "functions")
        for variant, trial in protocol.trials_by_variant.items()
        if kept is None or trial in kept[task, trial.name]
        for seed in seeds or protocol.tuning_seeds
        for step, value in ((4, 0.9), (12, score(task, trial, seed)))
    ]
    return pd.DataFrame(rows)


def made_board(root):
    """The board of synthetic runs, with the results and the scores that it was made from."""
    protocol = Protocol.model_validate(PROTOCOL)
    best = choose(trial_scores(validation(protocol, trial_score), protocol), protocol)
    final = []
    for task in ("chains", "functions"):
        final.append(fresh_runs(root / f"board-{task}", task, ["clip", "troll", "none"]))
    scores = trial_scores(validation(protocol, trial_score), protocol)
    return board_table(final, scores, best, protocol), final, scores


def fresh_runs(directory, task, rules):
    """Three fresh seeds of rules on a task."""
    dirs = synthetic.write_experiment(
        directory,
        tasks=[task],
        conditions=["stale"],
        estimators=["grpo"],
        methods=rules,
        batches=9,
        problems=20,
    )
    collected = read_directories(*dirs)
    return Results(_at_no_trial(collected.runs), collected.items)


def _at_no_trial(runs):
    """Without what synthetic runs recorded of tuned settings, which is no trial's."""
    trained = runs["seed"].notna()
    names = ("kl_bound", "epsilon_low", "epsilon_high")
    rule = dict.fromkeys((f"trust_region.settings.{name}" for name in names), None)
    return synthetic.record(runs, trained, **{"training.learning_rate": None}, **rule)


def trial_score(task, trial, seed):
    return 0.1 * trial.number + (0.05 if trial.name == "troll" else 0.0)


def fresh_seeds(protocol, rate, area=lambda rule, task, seed: 0.5, base=0.2):
    """Results of fresh seeds by task with known rates: one problem with a million samples, and a mean height.

    Args:
        protocol: theirs.
        rate: test pass@1, from rule, task and seed; None for a run that is missing.
        area: mean height of the training curve, from the same.
        base: test pass@1 of the base models.
    """
    final = []
    for task in protocol.experiment["tasks"]:
        where = {"experiment": f"board-{task}", "model": "tiny", "task": task, "mixed": False}
        items: list[dict[str, Any]] = []
        runs: list[dict[str, Any]] = []
        for rule in protocol.rules:
            for seed in protocol.seeds:
                run = where | {"condition": "tuned", "estimator": "grpo", "trust_region": rule, "seed": seed}
                run["run_id"] = f"tiny/{task}/{rule}/grpo/tuned/seed{seed}"
                if rate(rule, task, seed) is not None:
                    items.append(run | {"rate": rate(rule, task, seed)})
                    value = {"value": area(rule, task, seed)}
                    runs.append(run | {"source": "summary", "metric": "summary/area"} | value)
        model = {"run_id": f"base/tiny/{task}", "trust_region": "base", "condition": "", "estimator": ""}
        items.append(where | model | {"rate": base})
        table = pd.DataFrame(items).assign(task_id="problem", n=10**6)
        table["c"] = (table.pop("rate") * 10**6).round()
        final.append(Results(pd.DataFrame(runs), table))
    return final
