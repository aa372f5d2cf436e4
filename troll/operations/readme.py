"""Generates blocks of the README and other pages from released results."""

from collections.abc import Sequence
from pathlib import Path

from troll.analysis.claims.ledger import to_short_markdown
from troll.analysis.claims.packaged import claim_files
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.data.provenance import check_clean
from troll.analysis.data.results import Results as Known
from troll.analysis.data.results import read_results, tables_of
from troll.analysis.metrics import METRICS, SUMMARIES, markdown
from troll.analysis.registry import entries
from troll.analysis.report import readme as text
from troll.analysis.report.front import front
from troll.analysis.report.index import index
from troll.analysis.report.make import make
from troll.analysis.tables.comparisons import comparison_family
from troll.common.errors import UserError


def write_blocks(
    results: Path,
    pages: Sequence[Path],
    ledger: Sequence[str] | None,
    also: Sequence[Path],
    *,
    check: bool = False,
) -> None:
    """Writes the generated blocks of Markdown files; with ``check``, raises a UserError if one is outdated.

    ``also`` are further released results with verdicts.
    """
    known, others = read_results(results), [read_results(path) for path in also]
    every = tables_of([known, *(one for one in others if one.claims == known.claims)])
    all_runs = tables_of([known, *others])[0]
    judged = judge(read_claims(claim_files(ledger, known.claims)), *every)
    check_clean(all_runs, results)
    main, family = make(entries("table")["main"], known), comparison_family(*every)
    # Experiments with the same other claims form a family of comparisons of their own.
    families: dict[tuple[str, ...], list[Known]] = {}
    for one in others:
        if one.claims and one.claims != known.claims:
            families.setdefault(tuple(one.claims), []).append(one)
    by_name = {
        "-".join(Path(name).stem.removesuffix("-claims") for name in files): judge(
            read_claims(claim_files([*files])), *tables_of(family)
        )
        for files, family in families.items()
    }
    others_judged = [entry for verdicts in by_name.values() for entry in verdicts]
    by_path = dict(zip([results, *also], [known, *others], strict=True))
    named = {path.name: by_path[path] for path in sorted(by_path)}
    generated = text.blocks(
        main,
        known.items,
        judged=judged,
        family=family,
        runs=all_runs,
        benchmark=by_name.get("benchmark", []),
        others=others_judged,
    )
    generated |= {f"{name}-verdicts": to_short_markdown(verdicts) for name, verdicts in by_name.items()}
    generated["front"] = front([*judged, *others_judged], results.parent, all_runs)
    generated |= {"metrics": markdown(METRICS.values()), "summaries": markdown(SUMMARIES.values())}
    generated["results"] = index(results.parent, named)
    for path in pages:
        if not check:
            text.update(path, generated)
        elif difference := text.check(path, generated):
            raise UserError(f"{path} is out of date; `make readme` updates it:\n{difference}")
