"""What a browser makes of a page: its images, links, sorting and width on a screen and on a telephone.

A script that is put at the end of the page looks at it and posts what it saw to a page that frames it.
"""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import numpy as np
import pytest
from matplotlib import image

from troll.analysis.render.html import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]

ROWS = {
    "troll": "+10.5 [+9, +12]",
    "clip": "−2.0 [−3, −1]",
    "gspo-clip": "–",
    "cispo": "1,200",
    "dppo": "0.3",
}
WIDE = " | ".join(f"column {number} of many" for number in range(30))
REPORT = f"""# Rules, compared

The opening, with [a link](#part-2).

## Differences

### One

| Rule | Difference |
| --- | ---: |
{"".join(f"| {rule} | {value} |" + chr(10) for rule, value in ROWS.items())}
### Two

![A figure](figure.png)

## Wide

| {WIDE} |
|{" --- |" * 30}
| {WIDE} |
| <script>window.hostile = true</script> |
"""

LOOK = """
const seen = {errors, hostile: window.hostile === true};
const all = (selector) => [...document.querySelectorAll(selector)];
const table = document.querySelector("table");
const column = (n) => [...table.tBodies[0].rows].map((row) => row.cells[n].textContent);
const press = (n) => table.tHead.rows[0].cells[n].querySelector("button").click();
seen.given = column(0);
press(1); seen.descending = column(0);
press(1); seen.ascending = column(0);
seen.marked = all("[aria-sort]").map((cell) => cell.textContent + " " + cell.ariaSort);
press(0); seen.words = column(0);
seen.images = [...document.images].map((shown) => shown.naturalWidth);
const targets = [...document.links].map((link) => link.hash.slice(1));
seen.missing = targets.filter((id) => !document.getElementById(id));
seen.links = document.links.length;
seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
seen.scrolls = all(".scroll").map((box) => box.scrollWidth > box.clientWidth);
seen.titles = all("th button").length;
parent.postMessage(JSON.stringify(seen), "*");
"""


def looked_at(page, width):
    """What a browser sees of a page in a frame of a width in pixels."""
    watched = page.with_name(f"watched-{width}.html")
    listen = "<script>const errors = []; onerror = (message) => { errors.push(message); };</script>"
    look = f"<script>addEventListener('load', () => {{{LOOK}}});</script>"
    text = page.read_text().replace("<style>", listen + "<style>", 1)
    watched.write_text(text.replace("</body>", look + "</body>"))
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(
        '<!doctype html><pre id="seen"></pre><script>addEventListener("message", (event) => '
        '{document.getElementById("seen").textContent = event.data;});</script>'
        f'<iframe src="{escape(watched.name)}" width="{width}" height="800" style="border: 0"></iframe>'
    )
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [
        f"--user-data-dir={page.parent / 'profile'}",
        "--virtual-time-budget=20000",
        "--window-size=1600,1000",
    ]
    ended = subprocess.run(
        [*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    found = re.search(r'<pre id="seen">(.+?)</pre>', ended.stdout, re.DOTALL)
    assert found, ended.stdout + ended.stderr
    return json.loads(unescape(found[1]))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    image.imsave(root / "figure.png", np.linspace(0, 1, 1800 * 20).reshape(20, 1800))
    write_page(root / "page.html", REPORT, root)
    return root / "page.html"


@pytest.mark.parametrize("width", [1400, 390], ids=["screen", "telephone"])
def test_a_browser_shows_sorts_and_fits_the_page(page, width):
    seen = looked_at(page, width)
    assert seen["errors"] == []
    assert not seen["hostile"]
    assert seen["images"] == [1800]
    assert seen["missing"] == []
    assert seen["links"] == 5  # one in the opening, two of sections, two of the first section's parts
    assert seen["titles"] == 32
    assert seen["given"] == list(ROWS)
    assert seen["descending"] == ["cispo", "troll", "dppo", "clip", "gspo-clip"]
    assert seen["ascending"] == ["clip", "dppo", "troll", "cispo", "gspo-clip"]  # missing values stay last
    assert seen["marked"] == ["Difference ascending"]
    assert seen["words"] == sorted(ROWS)
    assert seen["overflow"] <= 0  # wide tables scroll by themselves, the page does not
    assert seen["scrolls"] == [False, True]
