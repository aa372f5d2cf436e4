"""The site as its reader has it: built from the released data, then looked at, page by page, in a browser.

Building needs the environment of `make site-env`, looking needs Chromium too. `TROLL_SITE_VENV` and
`TROLL_CHROMIUM` name others than the usual ones.
"""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from troll.analysis.site.build import write_site

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TABLE, COLUMN = "test-success-and-training-behaviour", 7
ROW = f"{TABLE}-chains-stale-grpo-troll"


@pytest.fixture(scope="module")
def environment(repository):
    found = Path(os.environ.get("TROLL_SITE_VENV", repository / ".venv-site")).absolute() / "bin"
    if not (found / "zensical").exists():
        pytest.skip(f"{found.parent} has no zensical: `make site-env` installs it")
    return found


@pytest.fixture(scope="module")
def site(environment, repository, tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    write_site(repository, out, repository="https://example.org/troll")
    command = [environment / "zensical", "build", "--strict", "--config-file", out / "zensical.toml"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return out / "html"


class Parsed(HTMLParser):
    """Anchors, links and sources of a page."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.sources = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.sources.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.sources.append(given["href"])


@pytest.fixture(scope="module")
def pages(site):
    found = {path.relative_to(site).as_posix(): Parsed(path) for path in site.rglob("*.html")}
    del found["404.html"]
    return found


def test_every_released_page_is_there(pages, repository):
    assert {"index.html", "changes.html", "results/index.html"} <= set(pages)
    for plan in subprocess.run(
        ["git", "ls-files", "results/*/plan.json"], cwd=repository, capture_output=True, text=True
    ).stdout.split():
        assert plan.replace("plan.json", "index.html") in pages
    for path in (repository / "docs").glob("*.md"):
        assert f"docs/{path.stem}.html" in pages


def test_no_link_and_no_anchor_is_dead(site, pages):
    for name, page in pages.items():
        for target in {*page.links, *page.sources}:
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            found = (site / name).parent / path if path else site / name
            found = (found / "index.html" if found.is_dir() else found).resolve()
            assert found.exists(), f"{name}: {target}"
            if anchor and not (not path and anchor == "__top"):
                there = pages[found.relative_to(site.resolve()).as_posix()].anchors
                assert anchor in there, f"{name}: {target}"


def test_nothing_is_asked_for_from_elsewhere(pages):
    for name, page in pages.items():
        assert not [source for source in page.sources if re.match(r"(https?:)?//", source)], name


def test_figures_are_those_that_git_tracks(site, repository):
    for name in ("testbed", "testbed-ablations", "testbed-estimators"):
        assert 'src="figures/forest.png"' in (site / f"results/{name}/index.html").read_text()
        figure = f"results/{name}/figures/forest.png"
        assert (site / figure).read_bytes() == (repository / figure).read_bytes()
    assert "results/statistics/forest.png" in (site / "index.html").read_text()


@pytest.fixture(scope="module")
def seen(environment, site):
    """What a headless browser saw."""
    known = os.environ.get("TROLL_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if known is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    plan = {
        "sort": ("results/testbed/index.html", TABLE, COLUMN),
        "follow": ("results/testbed/index.html", ROW),
    }
    command = [environment / "python", Path(__file__).with_name("browse.py"), site, known, json.dumps(plan)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_console_is_silent_and_every_request_is_answered_here(seen, pages):
    assert {one["page"] for one in seen["pages"]} == set(pages)
    for one in seen["pages"]:
        assert not one["said"] and not one["asked"] and not one["broken"], one


def test_no_page_is_wider_than_its_window(seen):
    for one in seen["pages"]:
        for width, wide in one["wide"].items():
            assert not wide, f"{one['page']} at {width} pixels: {wide}"


def luminance(colour):
    """Relative luminance of sRGB, after WCAG 2.2."""
    values = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_dark_is_dark_light_is_light_and_both_can_be_read(seen):
    for one in seen["pages"]:
        for scheme, colours in one["colours"].items():
            ground, *texts = map(luminance, colours)
            assert (ground < 0.1) == (scheme == "dark") and texts, one
            for text in texts:
                assert (max(ground, text) + 0.05) / (min(ground, text) + 0.05) >= 4.5, (one["page"], colours)


def test_a_click_sorts_by_value_and_empty_cells_stay_last(seen):
    before, down, up, again = seen["sorted"]
    numbers = [float(value) for value in before if value]
    empty = [""] * (len(before) - len(numbers))
    assert len(numbers) > 4 and empty
    assert [float(value) for value in down if value] == sorted(numbers, reverse=True)
    assert [float(value) for value in up if value] == sorted(numbers)
    assert down[len(numbers) :] == up[len(numbers) :] == empty
    assert again == down, "Enter on the heading does what a click does"


def test_a_link_to_a_row_shows_the_row(seen):
    assert seen["followed"] == {"visible": True, "marked": True}
