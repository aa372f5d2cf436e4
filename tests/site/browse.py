"""Visits every page of a built site in a headless browser; prints what it saw as JSON.

Run by the Python of the site's environment, which has Playwright: ``browse.py HTML BROWSER``.
"""

import contextlib
import functools
import http.server
import json
import sys
import threading
from pathlib import Path

from playwright.sync_api import TimeoutError, sync_playwright

WIDTHS = (390, 1280)
PATIENCE = 180_000
"""Milliseconds for a page, and for the browser to start: other tests may leave little of the processor."""
SCHEMES = {"light": "default", "dark": "slate"}
"""What the system asks for, and what the theme calls it."""
# Every picture is loaded, whether it is in sight or not; what is broken is named. Then colours and widths.
LOAD = """async () => {
  const broken = [];
  for (const image of document.images) {
    image.loading = 'eager';
    try { await image.decode(); } catch { broken.push(image.src); }
  }
  return broken;
}"""
SCHEME = "name => document.body.dataset.mdColorScheme === name"
COLOURS = """() => {
  const texts = document.querySelectorAll('.md-content .md-typeset, .md-nav__link--active');
  const colours = [...texts].map(text => getComputedStyle(text).color);
  return [getComputedStyle(document.body).backgroundColor, ...new Set(colours)];
}"""
# What reaches over the right edge, unless a box around it scrolls or cuts it off within the edge. How far the
# page scrolls does not tell: the theme cuts off what is too wide.
WIDE = """() => {
  const width = document.body.clientWidth;
  const boxed = element => {
    let around = element;
    while ((around = around.parentElement) && around !== document.body) {
      const inside = around.getBoundingClientRect().right <= width + 1;
      if (inside && getComputedStyle(around).overflowX !== 'visible') return true;
    }
    return false;
  };
  const wide = [...document.querySelectorAll('body *')].filter(element => {
    const box = element.getBoundingClientRect();
    return box.right > width + 1 && box.width > 0 && box.height > 0 && !boxed(element);
  });
  return wide.slice(0, 5).map(element => element.outerHTML.slice(0, 120));
}"""
COLUMN = """([table, column]) =>
  [...document.querySelectorAll(`#${table}`)].map(anchor => {
    const box = [...document.querySelectorAll('table.sortable')].find(
      one => anchor.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
    return [...box.tBodies[0].rows].map(row => row.cells[column].dataset.sort ?? row.cells[column].innerText);
  })[0]"""
HEADING = """([table, column]) => {
  const anchor = document.querySelector(`#${table}`);
  const box = [...document.querySelectorAll('table.sortable')].find(
    one => anchor.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
  box.tHead.rows[0].cells[column].setAttribute('data-test', 'heading');
}"""
TARGET = """name => {
  const row = document.getElementById(name), box = row.getBoundingClientRect();
  const next = row.nextElementSibling ?? row.previousElementSibling;
  return {
    visible: box.top >= 0 && box.bottom <= innerHeight,
    marked: getComputedStyle(row).backgroundColor !== getComputedStyle(next).backgroundColor,
  };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_):
        """Drops the line."""


def visit(browser, address, paths):
    """What each page said and asked for, how wide it is, and its colours in both schemes."""
    context = browser.new_context(color_scheme="light", viewport={"width": WIDTHS[0], "height": 800})
    context.set_default_timeout(PATIENCE)
    for path in paths:
        page, said, asked = context.new_page(), [], []
        listen(page, address, said, asked)
        page.goto(f"{address}/{path}", wait_until="load")
        broken, wide, colours = page.evaluate(LOAD), {}, {}
        for scheme, name in SCHEMES.items():
            page.emulate_media(color_scheme=scheme)
            with contextlib.suppress(TimeoutError):  # then the colours tell
                page.wait_for_function(SCHEME, arg=name, timeout=10_000)
            colours[scheme] = page.evaluate(COLOURS)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            wide[width] = page.evaluate(WIDE)
        seen = {"said": said, "asked": asked, "broken": broken}
        yield {"page": path, **seen, "wide": wide, "colours": colours}
        page.close()
    context.close()


def listen(page, address, said, asked):
    """Notes errors and warnings of the console, and requests that fail or leave the site."""

    def console(message):
        if message.type in ("error", "warning"):
            said.append(message.text)

    def response(answer):
        if answer.status >= 400:
            asked.append(f"{answer.status}: {answer.url}")

    def request(sent):
        if not sent.url.startswith((address, "data:", "blob:")):
            asked.append(sent.url)

    page.on("console", console)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda sent: asked.append(f"failed: {sent.url}"))
    page.on("response", response)
    page.on("request", request)


def sort(browser, address, path, table, column):
    """Values of a column as they stand, after one click on its heading, after another, and after Enter."""
    page = browser.new_page(viewport={"width": WIDTHS[1], "height": 800})
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/{path}")
    found = [page.evaluate(COLUMN, [table, column])]
    page.evaluate(HEADING, [table, column])
    heading = page.locator("[data-test=heading] button")
    for act in (heading.click, heading.click, lambda: heading.press("Enter")):
        act()
        page.wait_for_timeout(200)
        found.append(page.evaluate(COLUMN, [table, column]))
    page.close()
    return found


def follow(browser, address, path, name):
    """Whether the row that a link names is in sight and stands out."""
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 800})
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/{path}#{name}")
    page.wait_for_timeout(300)
    seen = page.evaluate(TARGET, name)
    page.close()
    return seen


def main():
    """Serves the site on a free port, and looks."""
    root, program, plan = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.html"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        # As root, as in a container, the browser's own sandbox does not start.
        settings = {"args": ["--no-sandbox"], "timeout": PATIENCE}
        browser = playwright.chromium.launch(executable_path=program, **settings)
        seen = {
            "pages": list(visit(browser, address, [path for path in paths if path != "404.html"])),
            "sorted": sort(browser, address, *plan["sort"]),
            "followed": follow(browser, address, *plan["follow"]),
        }
        browser.close()
    server.shutdown()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
