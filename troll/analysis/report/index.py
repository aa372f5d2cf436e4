"""The index of all released results, ``results/released/README.md``."""

from collections.abc import Mapping
from pathlib import Path

from troll.analysis.data.results import Results
from troll.analysis.data.tidy import BASE, GROUP
from troll.analysis.render.formats import pipe_row
from troll.analysis.report.document import PAGE
from troll.analysis.report.questions import OTHERS, QUESTIONS, Question, answer
from troll.common.files import read_json


def index(root: Path, experiments: Mapping[str, Results]) -> str:
    """Returns the index of released results in Markdown: those that answer a question, then their runs."""
    first = {
        name: question for name, question in QUESTIONS.items() if name in experiments and not question.part_of
    }
    rows = [_answered(root, name, question, experiments[name]) for name, question in first.items()]
    rows += [
        _row(f"{name}/{other.file}", other.question, other.answer(root / name), "", other.command)
        for name, other in OTHERS.items()
        if (root / name / other.file).exists()
    ]
    lines = ["| Question | Answer | Runs | Make it again |", "| --- | --- | ---: | --- |", *rows]
    if rest := [name for name in experiments if name not in first]:
        lines += ["", "Runs behind the leaderboard and the duel:", ""]
        lines += ["| Question | Directory | Runs | Make it again |", "| --- | --- | ---: | --- |"]
    for name in rest:
        question = QUESTIONS.get(name, Question(experiments[name].summary, ""))
        lines.append(
            _row(f"{name}/{PAGE}", question.text, f"`{name}`", _runs(experiments[name]), question.command)
        )
    return "\n".join(lines) + "\n"


def _answered(root: Path, name: str, question: Question, results: Results) -> str:
    """Returns the row of an experiment that answers a question."""
    path = root / name / "claims.json"
    claims = read_json(path)["claims"] if path.exists() else []
    text = answer(name, claims, path.parent, results.runs)
    return _row(f"{name}/{PAGE}", question.text, text, _runs(results), question.command)


def _row(target: str, question: str, *cells: str) -> str:
    return pipe_row([f"[{question}]({target})", *cells])


def _runs(results: Results) -> str:
    """Returns the number of runs of an experiment, and of seeds in each setting."""
    runs = results.runs[results.runs["trust_region"] != BASE].drop_duplicates("run_id")
    seeds = sorted(set(runs.groupby(list(GROUP), observed=True).size()))
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"{len(runs):,} ({count} seeds)"
