"""Makes the tables, figures and page of an experiment from its tidy table, in one process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from troll.analysis.claims.packaged import claim_files
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.data.replication import replication_of
from troll.analysis.data.results import read_results
from troll.analysis.registry import entries
from troll.analysis.render.html import write_page
from troll.analysis.report.document import Run, report
from troll.analysis.report.make import make_figure, make_table
from troll.common.errors import UserError
from troll.common.files import write_text


class ReportError(Exception):
    """A table, a figure or the page could not be made because of a bug in this package."""


def write_report(
    directory: Path,
    tables: Sequence[str],
    figures: Sequence[tuple[str, str | None]],
    claims: Sequence[str],
    *,
    commands: Sequence[str] = ("make results",),
    markdown: Path | None = None,
) -> None:
    """Writes ``tables/``, ``figures/`` and ``page.html``, each file atomically.

    Removes earlier tables and figures that are no longer listed. A figure is its name and task, None for a
    figure of all tasks. ``claims`` defaults to the experiment's own.

    Raises:
        UserError: if a table, figure or the page cannot be made because of its input; the message names it.
        ReportError: if it cannot be made because of a bug.
    """
    results = read_results(directory)
    stems = {name: directory / "tables" / name for name in tables}
    for name, stem in stems.items():
        with _named(f"table {name}"):
            make_table(name, results, stem)
    drawn = {
        (name, task): directory / "figures" / (f"{name}_{task}" if task else name) for name, task in figures
    }
    for (name, task), stem in drawn.items():
        with _named(f"figure {name}" + (f" of {task}" if task else "")):
            make_figure(name, results, stem, task)
    remove_unwanted(directory, {path.name for path in stems.values()}, {path.name for path in drawn.values()})
    with _named("page"):
        files = claim_files(claims, results.claims)
        judged = judge(read_claims(files), results.runs, results.items)
        complete = report(results, judged, directory, Run(commands, replication_of(directory)))
        write_page(directory / "page.html", complete, directory)
        if markdown is not None:
            write_text(markdown, report(results, judged, directory))


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Adds to errors what could not be made."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    except OSError:
        raise  # the machine's fault; the message names the file
    except Exception as error:
        raise ReportError(f"{what}: {type(error).__name__}: {error}") from error


def remove_unwanted(directory: Path, tables: set[str], figures: set[str]) -> None:
    """Removes known tables and figures that are not among these names; other files stay."""
    names = entries("table")
    for path in directory.glob("tables/*"):
        if path.suffix in (".csv", ".md") and path.stem in names.keys() - tables:
            path.unlink()
    for path in directory.glob("figures/*.png"):
        known = any(
            path.stem == entry.name or (entry.per_task and path.stem.startswith(f"{entry.name}_"))
            for entry in entries("figure").values()
        )
        if known and path.stem not in figures:
            path.unlink()
