"""What a visitor of ``results/`` reads: a page of Markdown for each experiment, and the list of all."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.claims.ledger import to_short_markdown
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.data.results import Results
from troll.analysis.data.tidy import BASE
from troll.analysis.registry import entries
from troll.analysis.render.formats import Style, listed, to_markdown
from troll.analysis.report.make import table
from troll.common.files import read_json

PAGE = "README.md"
"""Name of the page in ``results/<experiment>``, where code hosts show it below the list of files."""
_OTHERS: Mapping[str, tuple[str, str]] = {
    "leaderboard": ("board.md", "Which rule ends highest when all are tuned with the same budget?"),
    "duel": ("contrasts.md", "Does TROLL end above clip or GSPO's clipping when all are tuned well?"),
    "statistics": (
        "comparisons.md",
        "All comparisons of the testbed at once; how reliable the intervals are",
    ),
    "graders": ("audit.md", "Can the graders be trusted?"),
    "gpu": (PAGE, "What passes over the vocabulary, losses and whole steps take on one GPU"),
}
"""Directories of results that are not experiments, with the file to begin with and what they answer."""


def page(results: Results, judged: Sequence[ClaimVerdict], directory: Path) -> str:
    """The page of an experiment: verdicts, figures, and every table that is there."""
    runs = results.runs
    name = str(runs["experiment"].iloc[0])
    parts = [f"# {name}", results.summary, _size(runs), _verdicts(judged)]
    parts += _figures(directory)
    parts += _tables(results, directory)
    parts.append(
        "## Data\n\nThe tables as CSV are in [`tables/`](tables); the runs behind them in [`tidy/`](tidy), "
        f'which `pandas.read_parquet("results/{name}/tidy")` reads.'
    )
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _size(runs: pd.DataFrame) -> str:
    trained = runs[runs["trust_region"] != BASE]
    seeds = trained.drop_duplicates("run_id")["seed"].nunique()
    return f"{trained['run_id'].nunique():,} runs of {seeds} seeds on {listed(sorted(set(trained['task'])))}."


def _verdicts(judged: Sequence[ClaimVerdict]) -> str:
    with_runs = [entry for entry in judged if entry.verdict != "not run"]
    return (
        f"## Verdicts\n\n{to_short_markdown(with_runs)}\nNumbers behind them: [`claims.md`](claims.md)."
        if with_runs
        else ""
    )


def _figures(directory: Path) -> Iterator[str]:
    titles = {name: entry.title for name, entry in entries("figure").items()}
    for name, title in titles.items():
        for path in sorted((directory / "figures").glob(f"{name}*.png")):
            task = path.stem.removeprefix(name).removeprefix("_")
            if path.stem == name or (entries("figure")[name].per_task and path.stem == f"{name}_{task}"):
                heading = f"{title}: {task}" if task else title
                yield f"## {heading}\n\n![{heading}](figures/{path.name})"


def _tables(results: Results, directory: Path) -> Iterator[str]:
    for name, entry in entries("table").items():
        if (directory / "tables" / f"{name}.csv").exists():
            yield f"## {entry.title}\n\n{to_markdown(table(name, results))}"


def index(root: Path, known: Mapping[str, Results]) -> str:
    """The list of all released results, as a Markdown table."""
    rows = [_experiment(root, name, results) for name, results in known.items()]
    for name, (first, question) in _OTHERS.items():
        if (root / name).is_dir():
            rows.append({"experiment": f"[{name}]({name}/{first})", "question": question})
    frame = pd.DataFrame(rows, columns=list(_STYLES)).fillna("")
    frame.attrs["styles"] = _STYLES
    return to_markdown(frame)


_STYLES = {
    "experiment": Style("Results"),
    "question": Style("Question"),
    "runs": Style("Runs"),
    "seeds": Style("Seeds"),
    "verdicts": Style("Verdicts"),
}


def _experiment(root: Path, name: str, results: Results) -> dict[str, str]:
    runs = results.runs[results.runs["trust_region"] != BASE].drop_duplicates("run_id")
    counts = runs.groupby(["model", "task", "trust_region", "estimator", "condition"], observed=True).size()
    seeds = sorted(set(counts))
    return {
        "experiment": f"[{name}]({name}/{PAGE})",
        "question": results.summary,
        "runs": f"{len(runs):,}",
        "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]),
        "verdicts": _counted(root / name / "claims.json"),
    }


def _counted(path: Path) -> str:
    """How many claims got which verdict."""
    if not path.exists():
        return ""
    labels = [claim["verdict"] for claim in read_json(path)["claims"] if claim["verdict"] != "not run"]
    labels = ["where the contrary holds" if label == "the contrary holds" else label for label in labels]
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    return ", ".join(f"{count} {label}" for label, count in counts.items())
