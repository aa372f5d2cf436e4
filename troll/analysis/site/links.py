"""Where the links of the repository's files lead on the site."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from troll.analysis.site.markdown import Resolve

_COPIED = (".csv", ".png", ".svg", ".json")


@dataclass
class Links:
    """Targets by their paths in the repository."""

    tracked: frozenset[str]  # every file that git tracks
    pages: Mapping[str, str]  # site path by repository path
    # address of the repository's pages on the web, for files that the site does not hold; None where it is
    # not known, and then such a link is its text
    repository: str | None = None
    revision: str = "main"  # branch, tag or commit that those are shown at
    # files of the repository that pages link to and the site has to hold
    copied: set[str] = field(default_factory=set)

    def of(self, page: str, source: str) -> Resolve:
        """The resolver of one page."""

        def resolve(target: str) -> str | None:
            if re.match(r"[a-z]+:|//|#", target):
                return target
            path, _, anchor = target.partition("#")
            resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            address = self._found(resolved)
            if address is None:
                return self._elsewhere(resolved, anchor)
            return relative(page, f"{address}#{anchor}" if anchor else address)

        return resolve

    def _found(self, path: str) -> str | None:
        if path in self.pages:
            return self.pages[path]
        if path in self.tracked and path.endswith(_COPIED):
            self.copied.add(path)
            return path
        return None

    def _elsewhere(self, path: str, anchor: str) -> str | None:
        if self.repository is None or path.startswith(".."):
            return None
        kind = "blob" if path in self.tracked else "tree"
        return f"{self.repository}/{kind}/{self.revision}/{path}" + (f"#{anchor}" if anchor else "")


def relative(page: str, target: str) -> str:
    """The address of a site path, as a page names it: pages end in ``.html``."""
    path, _, anchor = target.partition("#")
    address = posixpath.relpath(path, posixpath.dirname(page) or ".")
    address = re.sub(r"\.md$", ".html", address)
    return f"{address}#{anchor}" if anchor else address
