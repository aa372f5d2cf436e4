"""Markdown of the repository on the site: anchors, links and tables; and which pages there are."""

import re
import subprocess
import tomllib

import pytest

from troll.analysis.site.build import write_site
from troll.analysis.site.links import Links, relative
from troll.analysis.site.markdown import Anchors, adapt, anchor, inline, table
from troll.common.errors import UserError

TABLE = """| Task | Claim | Δ (points) | p |
| --- | --- | ---: | ---: |
| chains | **not run** | −0.4 [−1.6, +0.8] | <0.001 |
| chains | a \\| b | – | 1,024 |
"""


def none(_):
    return None


def test_rows_have_anchors_of_their_own_and_cells_their_keys():
    found = table(TABLE.splitlines(), "main", Anchors({"main-chains-a-b"}), none)
    assert re.findall(r'<tr id="([^"]+)"', found) == ["main-chains-not-run", "main-chains-a-b-1"]
    assert re.findall(r'class="number" data-sort="([^"]*)"', found) == ["-0.4", "0.001", "", "1024"]
    assert '<span class="verdict open">not run</span>' in found and "a | b" in found


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Seeds where they decide", "seeds-where-they-decide"),
        ("`make results`, and more", "make-results-and-more"),
        ("TRL's own: [link](x.md)", "trls-own-link"),
    ],
)
def test_headings_have_the_anchors_that_github_gives_them(title, name):
    assert anchor(title) == name
    assert adapt(f"## {title}\n\n## {title}", lambda target: target).count(f"{{#{name}") == 2
    assert f"{{#{name}-1}}" in adapt(f"## {title}\n\n## {title}", none)


def test_code_is_left_alone():
    text = "```text\n# no heading\n| a |\n| --- |\n[x](y.md)\n```\n\n`[x](y.md)` and [x](y.md)\n"
    assert adapt(text, lambda _: "z.html") == text.replace("and [x](y.md)", "and [x](z.html)")
    assert inline("`<a> [x](y)` <b>", none) == "<code>&lt;a&gt; [x](y)</code> &lt;b&gt;"


def test_a_list_may_follow_a_paragraph_at_once():
    assert adapt("These:\n- one\n- two\n  more\n- three", none) == "These:\n\n- one\n- two\n  more\n- three\n"


def test_a_number_at_the_start_of_a_line_begins_no_list_unless_it_is_one():
    assert adapt("ICLR\n2026) is a year", none) == "ICLR\n2026) is a year\n"
    assert adapt("These:\n1. one\n2. two", none) == "These:\n\n1. one\n2. two\n"


def test_an_image_by_itself_is_a_figure_in_a_box():
    found = adapt("![Differences](a.png)", lambda _: "b.svg")
    assert '<div class="picture"><a href="b.svg"' in found and 'src="b.svg" alt="Differences"' in found
    assert adapt("an ![icon](a.png) in text", lambda _: "b.svg") == "an ![icon](b.svg) in text\n"


def test_links_may_run_over_the_end_of_a_line_and_stand_in_html():
    assert adapt("See [a\npage](b.md), `[c](d)`.", lambda _: "x.html") == "See [a\npage](x.html), `[c](d)`.\n"
    assert adapt('<img src="a.png">', lambda _: "b.svg") == '<img src="b.svg">\n'
    assert adapt("[![badge](a.png)](b.md)", lambda target: f"x/{target}") == "[![badge](x/a.png)](x/b.md)\n"


def test_links_lead_to_pages_to_copies_or_to_the_repository():
    tracked = frozenset({"README.md", "docs/a.md", "results/t/x.csv", "troll/x.py"})
    known = {
        "README.md": "index.md",
        "docs/a.md": "docs/a.md",
        "results/t": "results/t/index.md",
    }
    links = Links(tracked, known, "https://example.org/troll")
    resolve = links.of("docs/a.md", "docs/a.md")
    assert resolve("../README.md#top") == "../index.html#top"
    assert resolve("../results/t#m") == "../results/t/index.html#m"
    assert resolve("../results/t/x.csv") == "../results/t/x.csv" and links.copied == {"results/t/x.csv"}
    assert resolve("../troll/x.py") == "https://example.org/troll/blob/main/troll/x.py"
    assert resolve("../troll") == "https://example.org/troll/tree/main/troll"
    assert resolve("https://arxiv.org") == "https://arxiv.org" and resolve("#here") == "#here"
    assert Links(tracked, known).of("docs/a.md", "docs/a.md")("../troll/x.py") is None
    assert adapt("[code](../troll/x.py)", none) == "code\n"
    assert relative("index.md", "docs/a.md#b") == "docs/a.html#b"


@pytest.fixture
def checkout(tmp_path):
    """A repository that has a README, a page and no results yet."""
    root = tmp_path / "checkout"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text("# Home\n\nSee [a page](docs/page.md#part) and [code](x.py).\n")
    (root / "docs/page.md").write_text("# A page\n\n## Part\n\nBack [home](../README.md).\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    track(root)
    return root


def track(root):
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)


def titles(out):
    navigation = tomllib.loads((out / "zensical.toml").read_text())["project"]["nav"]
    return str(navigation)


def test_pages_are_those_of_tracked_files(checkout, tmp_path):
    out = tmp_path / "site"
    (checkout / "docs/draft.md").write_text("# A draft\n")
    write_site(checkout, out)
    assert "A page" in titles(out) and "draft" not in titles(out)
    assert "[a page](docs/page.html#part) and code." in (out / "pages/index.md").read_text()
    track(checkout)
    write_site(checkout, out)
    assert "A draft" in titles(out)


def test_a_board_has_a_page_as_soon_as_it_is_tracked(checkout, tmp_path):
    out, board = tmp_path / "site", checkout / "results/leaderboard"
    question = "Which rule ends highest"
    write_site(checkout, out)
    assert question not in titles(out)
    board.mkdir(parents=True)
    (board / "board.csv").write_text("task,trust_region,pass@1\nlocks,troll,0.5\n")
    (board / "board.md").write_text(
        "| Task | Trust region | pass@1 (%) |\n| --- | --- | ---: |\n| locks | troll | 50.0 |\n"
    )
    write_site(checkout, out)
    assert question not in titles(out), "not tracked yet"
    (board / "levels.md").write_text("| Trust region | Level 1 (%) |\n| --- | ---: |\n| troll | 75.0 |\n")
    (board / "budget.png").write_bytes(b"")
    track(checkout)
    write_site(checkout, out)
    assert question in titles(out)
    page = (out / "pages/results/leaderboard/board.md").read_text()
    order = ["`troll` on locks.", 'src="budget.png"', '<tr id="board-locks-troll">', "[board.csv](board.csv)"]
    assert [page.index(text) for text in order] == sorted(page.index(text) for text in order)
    assert "[levels.md](levels.html)" in page
    assert (out / "pages/results/leaderboard/board.csv").exists()
    assert '<tr id="levels-troll">' in (out / "pages/results/leaderboard/levels.md").read_text()


def test_menus_name_questions_and_links_to_directories_lead_to_their_pages(checkout, tmp_path):
    released = checkout / "results/testbed"
    released.mkdir(parents=True)
    (checkout / "results/README.md").write_text(
        "# Results\n\n[The testbed](testbed) and [plan](testbed/tidy)\n"
    )
    (released / "README.md").write_text("# Does it help?\n\nSee [claims](claims.md).\n")
    (released / "claims.md").write_text("2 claims.\n")
    track(checkout)
    write_site(checkout, tmp_path / "site")
    assert "{'Does it help?': 'results/testbed/index.md'}" in titles(tmp_path / "site")
    pages = tmp_path / "site/pages/results"
    assert "[The testbed](testbed/index.html) and plan" in (pages / "index.md").read_text()
    claims = (pages / "testbed/claims.md").read_text()
    assert "# Verdicts {#verdicts}\n\n[Does TROLL help when rollouts are stale?](index.html)" in claims


def test_directories_of_others_are_left_alone(checkout, tmp_path):
    (tmp_path / "mine/pages").mkdir(parents=True)
    with pytest.raises(UserError, match=r"mine/pages: exists and was not written by `troll .* site`"):
        write_site(checkout, tmp_path / "mine")
    with pytest.raises(UserError, match="not a checkout of the repository"):
        write_site(tmp_path / "mine", tmp_path / "site")
