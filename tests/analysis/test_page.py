import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from refusals import refused
from test_audit_table import RESULT as AUDIT

from audit_tables import write_audit
from troll.analysis.captions import caption, captions
from troll.analysis.claims.verdicts import judge
from troll.analysis.data.results import Results
from troll.analysis.data.runs import read_directories
from troll.analysis.registry import ENTRIES
from troll.analysis.render.html import write_page
from troll.analysis.report.document import Run, foreign, report, spans
from troll.analysis.report.index import index
from troll.analysis.report.make import make_figure, make_table
from troll.analysis.report.questions import OTHERS, QUESTIONS, answer, behind, heading, opening_figure
from troll.common.files import read_json, write_json
from troll.experiment.published.ledger import read_ledger


class Headings(HTMLParser):
    """The page's headings in order, with checks that tags are closed and nothing is loaded from outside."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href"):
                assert value is not None and value.startswith(("data:image/png;base64,", "#")), value
                self.targets += [value[1:]] if value.startswith("#") else []
            if name == "id":
                self.ids.append(str(value))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.found.append((self.open[-1], data))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("results") / "testbed"
    run_dirs, base_dirs = synthetic.write_experiment(
        root, tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=3, batches=2, problems=10
    )
    collected = read_directories(run_dirs, base_dirs)
    planned = [
        {"model": "tiny", "task": "chains", "trust_region": method, "estimator": "grpo", "condition": "stale"}
        for method in ("clip", "troll", "quatro")
        for _ in range(3)
    ]
    given = Results(collected.runs, collected.items, expected=planned)
    for name in ("forest", "final", "published_analysis"):
        make_figure(name, given, root / "figures" / name)
    for name in ("comparison", "ablation"):
        make_table(name, given, root / "tables" / name)
    (root / "public").mkdir()
    (root / "public/benchmarks.md").write_text("Not run: gsm8k; no data.\n")
    (root / "audit").mkdir()
    write_audit(AUDIT, root / "audit/audit")
    (root / "cost").mkdir()
    (root / "cost/cost.md").write_text("| Variant | Time |\n| --- | ---: |\n| a \\| <b> | 1.5 |\n\nA note.\n")
    claims = [
        synthetic.claim(
            id=rule, sentence=f"{rule} wins", trust_region=rule, metric="late_kl", direction="lower"
        )
        for rule in ("troll", "gspo")
    ]
    judged = judge(claims, given.runs, given.items)
    run = Run(["make results"], ["Replicates: 1 of 2 settings", "  outside: <x>"])
    write_page(root / "page.html", report(given, judged, root, run), root)
    (root / "README.md").write_text(report(given, judged, root))
    return root


@pytest.fixture(scope="module")
def text(directory):
    return (directory / "page.html").read_text()


def chapter(text, title):
    """The text of a section of the page."""
    return text[text.index(f">{title}</h2>") :].partition("<h2")[0]


def test_the_page_begins_with_its_question_and_the_picture_that_answers_it(text):
    opening = text[text.index("<h1>") : text.index("<h2")]
    assert "<h1>Does TROLL end above clip when rollouts are stale?</h1>" in opening
    assert opening.index('alt="Differences from PPO-clip"') < opening.index("6 of 9 planned runs")
    assert text.count('alt="Differences from PPO-clip"') == 1, "shown once"


def test_the_deviations_are_those_of_the_ledger(text):
    shown = html.unescape(re.sub("<[^>]*>", "", chapter(text, "Deviations")))
    differing = [entry for entry in read_ledger().keys if entry.state == "differs"]
    assert f"{len(differing)} released settings" in shown and differing
    for entry in differing:
        assert entry.key in shown and entry.reason.replace("`", "") in shown, entry.key


def test_tables_sort_by_keyboard_too_and_pages_follow_the_scheme_of_the_reader(text):
    assert '<table class="sortable">' in text and 'createElement("button")' in text
    assert "prefers-color-scheme: dark" in text and "<script src" not in text


def test_verdicts_come_first_and_the_page_is_whole(text):
    parser = Headings()
    parser.feed(text)
    assert parser.open == []
    chapters = [data for tag, data in parser.found if tag == "h2"]
    assert chapters == [
        "Verdicts",
        "Figures",
        "Tables",
        "Cost",
        "Public data",
        "The paper's tables",
        "Methods",
        "Deviations",
        "Provenance",
    ]
    assert set(parser.targets) <= set(parser.ids) and len(set(parser.ids)) == len(parser.ids)
    parts = [data for tag, data in parser.found if tag == "h3"]
    assert parts[:3] == ["The differences in words", "Success after training", "TROLL against PPO-clip"]
    assert "Variants of each rule" not in parts, "empty tables are left out"


def test_verdicts_and_sizes_are_told(text):
    verdicts = chapter(text, "Verdicts")
    assert "<strong>Replicates: 1 of 2 settings.</strong>" in verdicts and "outside: &lt;x&gt;" in verdicts
    assert verdicts.index("Replicates") < verdicts.index("2 claims: 1 supported everywhere, 1 not run.")
    assert verdicts.index("troll wins") < verdicts.index("<summary>1 claim that these runs cannot judge")
    assert verdicts.index("cannot judge") < verdicts.index("gspo wins")
    assert "6 of 9 planned runs of clip, troll on chains; conditions: stale;" in text


def test_what_was_not_run_is_folded_away_but_there(text):
    assert "<details><summary>Model families (0 of 11 run here)</summary>" in text
    assert '<td class="number" data-sort="">not run</td>' in text
    paper = text.index("<summary>the paper's figures</summary>")
    assert text.index(">Methods</h2>") > text.index('alt="The paper\'s analysis"') > paper


def test_provenance_names_commits_digests_versions_and_machines(text):
    bottom = chapter(text, "Provenance")
    assert f"<code>{'0' * 40}</code> (6 runs)" in bottom
    assert f"<code>{'e' * 64}</code> (7 runs)" in bottom, "six runs and the base model"
    assert "torch 2.13.0" in bottom and "cpu test" in bottom and "<code>make results</code>" in bottom


def test_foreign_tables_are_escaped(text):
    assert '<td class="text">a | &lt;b&gt;</td>\n<td class="number" data-sort="1.5">1.5</td>' in text
    assert "<p>A note.</p>" in chapter(text, "Cost")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "| a |\n| --- |\n| <img src=x onerror=alert(1)> |",
        "[x](https://example.org) [y](javascript:z)",
        "![x](/etc/passwd)",
        "<details>\n\n&lt;b>",
    ],
)
def test_what_another_command_wrote_cannot_be_markup(tmp_path, text):
    write_page(tmp_path / "page.html", f"# A\n\n{foreign(text)}\n", tmp_path)
    body = (tmp_path / "page.html").read_text().partition("<h1>")[2].partition("<script>\n")[0]
    tags = set(re.findall(r"<(\w+)", body))
    assert tags <= {"p", "div", "table", "thead", "tbody", "tr", "th", "td"}


def test_benchmarks_and_the_audit_are_shown(text):
    part = chapter(text, "Public data")
    assert "<p>Not run: gsm8k; no data.</p>" in part
    assert part.index(">Benchmarks</h3>") < part.index(">Audit of the graders (fast): passed</h3>")
    assert '<td class="text">dapo ‡</td>' in part and ">Exceptions</h3>" in part


def test_a_released_directory_shows_the_same_report_without_what_all_have_in_common(directory):
    released = (directory / "README.md").read_text()
    titles = [line[3:] for line in released.splitlines() if line.startswith("## ")]
    assert titles == ["Verdicts", "Figures", "Tables", "Further measurements", "Data"]
    assert "(figures/forest.png)" in released and "| troll wins | **supported everywhere**" in released
    assert "- [Cost](cost/cost.md)" in released and "gspo wins" not in released


def test_every_entry_has_a_caption():
    assert [entry for entry in ENTRIES if not captions().get(entry.caption)] == []


def test_a_caption_that_is_missing_is_named():
    with refused("captions.rst", "nothing_table"):
        caption("nothing_table")


def test_answers_name_the_verdict_the_average_and_what_must_not_be_overlooked(tmp_path):
    pooled = {"estimate": 0.2, "low": 0.1, "high": 0.3}
    record = synthetic.claim(id="testbed-stale-better").model_dump() | {
        "verdict": "supported on average",
        "pooled": pooled,
        "evidence": [{}, {}],
        "reason": "+20; holds in 1 of 2 settings, not shown in x; "
        "on average over seeds it ends below its own base model in 1 of 2 settings on chains",
    }
    told = "**Above** on average (holds in 1 of 2 settings): "
    told += "TROLL minus clip +20.0 [+10.0, +30.0] points over 2 settings"
    below = ", but its mean is below the base model's in 1 of 2 settings on chains"
    assert answer("testbed", [record]) == told + below
    assert answer("mine", [record]) == "", "no question is known"
    tests = {"test": [1, 2], "endpoint": "auc", "tasks": "both", "condition": ["rate-1e-5", "rate-3e-5"]}
    tests |= {"difference": 0.04, "difference_low": [0.01, -0.02], "difference_high": 0.07, "within": False}
    tests |= {"seeds": [12, 11], "planned": 12, "outcome": ["succeeded", "failed"]}
    pd.DataFrame(tests).to_csv(tmp_path / "sequence.csv")
    height = "points of mean height of the training curve"
    first = f"At a rate of 1e-5 **above**: TROLL minus clip +4.0 [+1.0, +7.0] {height}"
    second = f"At a rate of 3e-5 **not decided**: TROLL minus clip +4.0 [−2.0, +7.0] {height}"
    told = f"{first}; 12 seeds. {second}; 11 of 12 planned seeds"
    assert answer("testbed", [record], tmp_path) == told
    alone = pd.DataFrame(tests).iloc[[0, 0]].assign(tasks=["chains", "functions"], difference=[0.09, -0.01])
    final = pd.DataFrame(tests).iloc[[0]].assign(test=4, endpoint="pass@1", difference=0.05)
    pd.concat([pd.DataFrame(tests), alone, final]).to_csv(tmp_path / "sequence.csv")
    more = " (chains +9.0, functions −1.0); +5.0 [+1.0, +7.0] points of test pass@1"
    assert answer("testbed", [record], tmp_path) == told.replace(first, first + more)
    retired = answer("testbed", [record | {"retired": "asked elsewhere"}])
    assert retired.startswith("The claim is retired: TROLL minus clip +20.0")
    few = {"pooled": None, "evidence": [], "reason": "no runs"}
    assert answer("testbed", [record | few | {"verdict": "not run"}]) == "No runs yet"
    unlike = record | {"verdict": "depends on task", "reason": ""}
    assert answer("testbed", [unlike]).startswith("**Depends on task**: TROLL minus clip +20.0")


def test_a_question_without_a_claim_is_answered_by_where_the_runs_ended_and_called_exploratory(runs):
    told = answer("smollm2-gsm8k", [], None, runs)
    assert told.startswith("Exploratory, no claim is judged by it; test pass@1 in %: chains: base ")
    tested = runs[(runs["metric"] == "pass@1") & (runs["source"] == "test")]
    of_troll = tested[(tested["trust_region"] == "troll") & (tested["task"] == "chains")]
    assert f", TROLL {100 * of_troll['value'].mean():.1f}" in told
    assert answer("duel-locks", [], None, runs) == "", "a part of another answer"


def test_an_experiment_without_a_question_is_introduced_by_its_summary():
    assert heading("mine", "clip, with a wall") == "Clip, with a wall"
    assert heading("mine", "") == "Trust regions on mine"
    assert opening_figure("benchmark-map", ["forest", "heat_map"]) == "heat_map"
    assert opening_figure("first-look", ["final", "forest", "main"]) == "main"  # one seed: its curves
    assert opening_figure("mine", ["main", "final"]) == "final" and opening_figure("mine", []) == ""


def test_runs_behind_an_answer_link_to_it_where_it_is_there(tmp_path):
    assert behind("duel-locks", tmp_path / "duel-locks") == behind("testbed", tmp_path / "testbed") == ""
    (tmp_path / "duel").mkdir()
    (tmp_path / "duel/contrasts.md").touch()
    assert behind("duel-locks", tmp_path / "duel-locks", picture=True).endswith("](../duel/contrasts.md)")
    (tmp_path / "duel/contrasts.png").touch()
    assert behind("duel-locks", tmp_path / "duel-locks").endswith("](../duel/contrasts.md)")
    shown = behind("duel-locks", tmp_path / "duel-locks", picture=True)
    assert shown.endswith("tuned well?](../duel/contrasts.png)")


def test_the_list_of_results_asks_answers_and_says_how_to_make_them(tmp_path):
    columns = {"trust_region": ["clip", "clip", "base"], "run_id": ["a", "b", "c"]}
    same = dict.fromkeys(("model", "task", "estimator", "condition"), "x")
    known = Results(pd.DataFrame(columns | same), pd.DataFrame(), summary="Mine")
    wrong = [{"case": "wrong", "rate": 0.0, "evaluation": share} for share in (0.114, None, 0.567)]
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders/audit.md").write_text("")
    write_json(tmp_path / "graders/audit.json", {"ok": False, "cases": wrong})
    text = index(tmp_path, {"mine": known, "testbed": known})
    lines = [line for line in text.splitlines() if line.startswith("| [")]
    assert lines == [
        "| [Does TROLL end above clip when rollouts are stale?](testbed/README.md) |  | 2 (2 seeds) "
        "| `make results SEEDS=0,1,2,3,4` |",
        "| [Which wrong answers do the graders accept?](graders/audit.md) "
        "| The audit **failed**; rewards accept 0 % of near misses; "
        "evaluation by math-verify accepts 11 to 57 % of near misses |  | `make audit` |",
        "| [Mine](mine/README.md) | `mine` | 2 (2 seeds) |  |",
    ]


def test_one_seed_makes_no_difference_clear(tmp_path):
    readings = ["higher", "lower", "no clear difference", "one seed only"]
    pd.DataFrame({"reading": readings}).to_csv(tmp_path / "comparisons.csv")
    assert OTHERS["statistics"].answer(tmp_path).startswith("2 of 4 differences are clear")


def test_every_released_directory_has_a_question_that_one_of_its_claims_answers():
    released = Path(__file__).parents[2] / "results/released"
    names = {path.parent.name for path in released.glob("*/plan.json")}
    assert names <= {*QUESTIONS}, "add its question to troll/analysis/report/questions.py"
    for name in names:
        if QUESTIONS[name].claim:
            assert answer(name, read_json(released / name / "claims.json")["claims"]), name
        figures = [path.stem for path in (released / name / "figures").glob("*.png")]
        assert not figures or QUESTIONS[name].figure in figures, name


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2, 7, 9, 10, 11, 12], "0 to 2, 7, 9 to 12"), ([], "")],
)
def test_seeds_that_follow_each_other_are_a_span(numbers, text):
    assert spans(numbers) == text
