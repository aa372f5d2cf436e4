import re
from html.parser import HTMLParser
from pathlib import Path

import docutils.core
import pandas as pd
import pytest
import yaml

from troll.analysis.captions import captions
from troll.analysis.render.formats import to_html
from troll.analysis.render.html import (
    Section,
    bullets,
    figure_section,
    page,
    paragraphs,
)
from troll.common.errors import UserError

ROOT = Path(__file__).parents[2]


class Balance(HTMLParser):
    """Checks that tags are closed in order and nothing is loaded from outside the file."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href"):
                assert value is not None and value.startswith(("data:", "#")), value
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_self_contained(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG")
    frame = pd.DataFrame({"task": ["<b>"], "pass@1": [0.5]})
    text = page(
        "A & B",
        [
            Section("Verdicts", bullets(["- **gentle**: 1 < 2"])),
            Section("Table", paragraphs("First ``x``.\n\nSecond.") + to_html(frame)),
            figure_section("Curves", image, "A caption."),
        ],
    )
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert "<li><strong>gentle</strong>: 1 &lt; 2</li>" in text
    assert "<p>First <code>x</code>.</p>\n<p>Second.</p>" in text
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert "data:image/png;base64,iVBORw==" in text
    assert "<title>A &amp; B</title>" in text


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.png: no such file"):
        figure_section("Curves", tmp_path / "x.png")


@pytest.mark.parametrize("text", captions().values(), ids=captions())
def test_captions_are_valid_and_plain(text: str) -> None:
    settings = {"halt_level": 2, "report_level": 2}
    docutils.core.publish_string(text, writer="html", settings_overrides=settings)
    assert not re.search(r"[{}]", text), "no template language: the page shows the text as it is"


def test_published_numbers_are_complete_and_within_their_ranges() -> None:
    rows = yaml.safe_load((ROOT / "troll/experiment/published/troll_iclr2026.yaml").read_text())
    assert len(rows) > 80
    for row in rows:
        assert {"model", "dataset", "estimator", "method", "metric", "value", "source"} <= set(row)
        if row["metric"].startswith(("final_success", "success_rate_fig")):
            assert 0 <= row["value"] <= 1
