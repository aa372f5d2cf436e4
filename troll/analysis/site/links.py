"""Resolution of links between files of the repository for the site."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from troll.analysis.site.markdown import Resolve

_COPIED = (".csv", ".png", ".svg", ".json")


@dataclass
class Links:
    """Resolves links by path in the repository."""

    tracked: frozenset[str]  # every file that git tracks
    pages: Mapping[str, str]  # site path by repository path
    # web address of the repository, for files that are not part of the site; without it, links to these are
    # replaced by their text
    repository: str | None = None
    revision: str = "main"  # branch, tag or commit of these links
    # files that pages link to and that must be copied to the site
    copied: set[str] = field(default_factory=set)

    def of(self, page: str, source: str) -> Resolve:
        """The resolver for the links of one page."""

        def resolve(target: str) -> str | None:
            if re.match(r"[a-z]+:|//|#", target):
                return target
            path, _, anchor = target.partition("#")
            resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            address = self._on_site(resolved)
            if address is None:
                return self._in_repository(resolved, anchor)
            return relative(page, f"{address}#{anchor}" if anchor else address)

        return resolve

    def _on_site(self, path: str) -> str | None:
        if path in self.pages:
            return self.pages[path]
        if path in self.tracked and path.endswith(_COPIED):
            self.copied.add(path)
            return path
        return None

    def _in_repository(self, path: str, anchor: str) -> str | None:
        if self.repository is None or path.startswith(".."):
            return None
        kind = "blob" if path in self.tracked else "tree"
        return f"{self.repository}/{kind}/{self.revision}/{path}" + (f"#{anchor}" if anchor else "")


def relative(page: str, target: str) -> str:
    """The address of a site path relative to a page, with the suffix ``.html`` for pages."""
    path, _, anchor = target.partition("#")
    address = posixpath.relpath(path, posixpath.dirname(page) or ".")
    address = re.sub(r"\.md$", ".html", address)
    return f"{address}#{anchor}" if anchor else address
