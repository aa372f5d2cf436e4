"""The command that writes the sources of the static site."""

from pathlib import Path
from typing import Annotated

import typer

from troll.common.progress import say


def site(
    out: Annotated[Path, typer.Option(help="directory of the site")] = Path("build/site"),
    root: Annotated[Path, typer.Option(help="checkout of the repository")] = Path(),
    repository: Annotated[
        str | None, typer.Option(help="its web address, for links to files that the site does not hold")
    ] = None,
    revision: Annotated[str, typer.Option(help="branch, tag or commit that such links show")] = "main",
    address: Annotated[str | None, typer.Option(help="web address where the site will be")] = None,
) -> None:
    """Write the pages of the site; `make site` then builds it.

    They are the Markdown that git tracks: README.md, docs/ and results/, with figures and sortable tables.

    Example: troll site --out build/site
    """
    from troll.analysis.site.build import write_site

    pages = write_site(
        root,
        out,
        repository=repository.rstrip("/") if repository else None,
        revision=revision,
        address=address,
    )
    say(f"{out}: {len(pages)} pages")


def register_site(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(site)
