import re
import shutil

import pytest
from matplotlib.image import imread, imsave
from refusals import error_of, refused
from typer.testing import CliRunner

from troll.analysis.claims.ledger import write_claims
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.data.results import Plan, Results, read_results, write_plan
from troll.analysis.data.tidy import table_files
from troll.analysis.report.check import check_results
from troll.analysis.report.make import make_figure, make_table
from troll.cli.app import app
from troll.common.files import read_json, write_json

CLAIMS = """
- {id: c, sentence: S, source: P, trust_region: troll, baseline: clip, metric: pass@1, direction: higher}
"""
KEYS = ("model", "task", "trust_region", "estimator", "condition")


@pytest.fixture(scope="module")
def released(one_setting, tmp_path_factory):
    """A small experiment with all that a release tracks; one planned method was not run."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    shutil.copytree(one_setting / "tidy", root / "tidy")
    planned = [
        dict(zip(KEYS, ("tiny", "chains", method, "grpo", "stale"), strict=True)) | {"seed": seed}
        for method in ("clip", "troll", "quatro")
        for seed in range(2)
    ]
    write_plan(root, Plan(expected=planned, skipped={"functions": "no sandbox"}))
    given = read_results(root)
    for name in ("main", "speed", "published_cost"):
        make_table(name, given, root / "tables" / name)
    make_figure("final", given, root / "figures" / "final")
    make_figure("projection", given, root / "figures" / "projection_chains", "chains")
    (root / "claims.yaml").write_text(CLAIMS)
    ledger = [root / "claims.yaml"]
    inputs = [*table_files(root).values(), *ledger]
    write_claims(judge(read_claims(ledger), given.runs, given.items), given.runs, inputs, root / "claims")
    return root


@pytest.fixture
def copy(tmp_path, released):
    for name in ("tables", "figures", "tidy"):
        shutil.copytree(released / name, tmp_path / name)
    for path in released.glob("*.*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def only(directory, stem):
    """Leaves one table or figure: the others cost time and are checked elsewhere."""
    for path in (*directory.glob("tables/*"), *directory.glob("figures/*")):
        if path.with_suffix("") != directory / stem:
            path.unlink()


def test_untouched_results_pass_and_every_file_is_compared(copy):
    compared = {str(path.relative_to(copy)) for path in check_results(copy, claims=[copy / "claims.yaml"])}
    assert compared == {
        *(f"tables/{name}.csv" for name in ("main", "speed", "published_cost")),
        "figures/final.png",
        "figures/projection_chains.png",
        "claims.md",
        "claims.json",
    }


def test_the_plan_is_part_of_the_tables(released):
    text = (released / "tables/main.md").read_text()
    assert "| quatro | 0 of 2 | not run |" in text
    assert "Task functions: skipped, because no sandbox." in text


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda copy: edit(copy / "tables/main.csv", "1", "2"), ["tables/main.csv"]),
        (lambda copy: edit(copy / "claims.json", '"clip"', '"klip"'), ["claims.json"]),
        (lambda copy: edit(copy / "claims.yaml", "higher", "lower"), ["claims.json", "claims.md"]),
        (lambda copy: (copy / "claims.json").unlink(), ["claims.json"]),
        (lambda copy: write_plan(copy, Plan(expected=[])), ["tables/main.csv", "claims.json", "claims.md"]),
    ],
    ids=["a digit", "a name", "the claims", "a missing format", "the plan"],
)
def test_a_change_is_found_and_what_is_made_again_passes(copy, change, names):
    only(copy, "tables/main")
    claims = [copy / "claims.yaml"]
    change(copy)
    with refused(*names, copy / "tidy"):
        check_results(copy, claims=claims)
    assert {copy / name for name in names} < {*check_results(copy, claims=claims, write=True)}
    assert check_results(copy, claims=claims)


def test_the_page_is_written_and_then_compared(copy):
    only(copy, "tables/main")
    claims = [copy / "claims.yaml"]
    assert check_results(copy, claims=claims, write=True) == [copy / "README.md"]
    assert copy / "README.md" in check_results(copy, claims=claims)
    text = (copy / "README.md").read_text()
    (copy / "README.md").write_text(text.replace("1", "2", 1))
    with refused("README.md"):
        check_results(copy, claims=claims)
    check_results(copy, claims=claims, write=True)
    assert (copy / "README.md").read_text() == text


def test_a_changed_pixel_is_found_and_a_new_compression_is_not(copy):
    only(copy, "figures/final")
    path = copy / "figures/final.png"
    pixels = imread(path)
    imsave(path, pixels, metadata={"Comment": "other bytes, same pixels"})
    check_results(copy)
    rounded, pixels = pixels.copy(), pixels.copy()
    rounded[3, :, 0] = abs(rounded[3, :, 0] - 7 / 255)  # seen between processors, on the edges of curves
    rounded[5, 4, 0] = abs(rounded[5, 4, 0] - 0.25)  # one that got the palette's neighbouring colour
    imsave(path, rounded)
    check_results(copy)
    rounded[5, :, 0] = rounded[5, 4, 0]
    imsave(path, rounded)
    with refused("figures/final.png"):
        check_results(copy)
    pixels[3, 4, 0] = abs(pixels[3, 4, 0] - 0.5)
    imsave(path, pixels)
    with refused("figures/final.png"):
        check_results(copy)
    path.write_bytes(b"no image")
    with refused("figures/final.png"):
        check_results(copy)


@pytest.mark.parametrize(("shift", "same"), [(1e-12, True), (1e-6, False)])
def test_the_last_digits_may_be_another_processors(copy, shift, same):
    only(copy, "tables/main")

    def shifted(found):
        return repr(float(found[0]) * (1 + shift))

    for name in ("tables/main.csv", "claims.json"):
        text = (copy / name).read_text()
        changed = re.sub(r"(?<=[ ,])-?0\.\d{6,}", shifted, text)
        assert changed != text
        (copy / name).write_text(changed)
    if same:
        check_results(copy, claims=[copy / "claims.yaml"])
    else:
        with refused("tables/main.csv", "claims.json"):
            check_results(copy, claims=[copy / "claims.yaml"])


def test_another_tidy_table_is_found(copy):
    only(copy, "figures/projection_chains")
    given = read_results(copy)
    changed = Results(given.runs.assign(value=given.runs["value"] * 1.01), given.items)
    with refused("figures/projection_chains.png"):
        check_results(copy, results=changed)


@pytest.mark.parametrize("text", [None, "{}", '{"skipped": {}}', '{"expected": null}'])
@pytest.mark.parametrize("write", [False, True])
def test_tables_are_not_blamed_where_the_plan_is_missing(copy, text, write):
    only(copy, "tables/main")
    (copy / "plan.json").unlink()
    if text is not None:
        (copy / "plan.json").write_text(text)
    before = {path.name: path.read_bytes() for path in copy.glob("tables/*")}
    names = "tables/main.csv, README.md" if write else "tables/main.csv"
    with refused(copy / "plan.json", names, f"git checkout -- {copy}/plan.json") as error:
        check_results(copy, write=write)
    assert "--write" not in str(error.value)
    assert {path.name: path.read_bytes() for path in copy.glob("tables/*")} == before


def test_tables_that_were_made_without_a_plan_need_none(copy):
    only(copy, "tables/main")
    (copy / "plan.json").unlink()
    make_table("main", read_results(copy), copy / "tables/main")
    assert check_results(copy)


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("skipped", None, ("skipped", None)),
        ("mixed", {}, ("mixed", "{}")),
        ("rehearsal", "maybe", ("rehearsal", "'maybe'")),
        ("claims", "x", ("claims", "'x'")),
    ],
)
def test_a_plan_of_another_kind_is_named(copy, name, value, facts):
    write_json(copy / "plan.json", read_json(copy / "plan.json") | {name: value})
    with refused(copy / "plan.json", *facts):
        read_results(copy)


def test_the_command_judges_by_the_claims_of_the_experiment(copy, monkeypatch):
    only(copy, "tables/main")
    monkeypatch.chdir(copy)
    plan = read_json(copy / "plan.json")
    error_of(CliRunner().invoke(app, ["release", "check", "."]), "claims.json")
    write_json(copy / "plan.json", plan | {"claims": ["claims.yaml"]})
    result = CliRunner().invoke(app, ["release", "check", "."])
    assert result.exit_code == 0, result.exception


def test_tables_by_hand_are_refused(copy):
    only(copy, "tables/main")
    (copy / "figures").mkdir(exist_ok=True)
    (copy / "tables/best.csv").write_text("100\n")
    (copy / "figures/learning_poetry.png").write_bytes(b"")
    with refused("tables/best", "figures/learning_poetry"):
        check_results(copy)


def test_empty_directories_and_broken_plans_are_named(copy, tmp_path):
    (copy / "plan.json").write_text('{"plan": 1}')
    with refused(copy / "plan.json", "'plan'", "expected, skipped"):
        check_results(copy)
    (copy / "plan.json").unlink()
    shutil.rmtree(copy / "tables")
    shutil.rmtree(copy / "figures")
    with refused(copy, "tables/", "figures/"):
        check_results(copy)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["job", "figure", "final"], ["png"]),
        (["job", "figure", "final", "--format", "svg"], ["svg"]),
        (["job", "figure", "final", "--format", "pdf", "--format", "png"], ["pdf", "png"]),
        (["job", "table", "main"], ["csv", "md"]),
        (["job", "table", "main", "--format", "latex"], ["tex"]),
    ],
)
def test_other_formats_are_made_on_demand(released, tmp_path, given, written):
    command = [*given, "--results", str(released), "--out", str(tmp_path / "made")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.exception
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"made.{suffix}" for suffix in written]
    assert all(path.stat().st_size > 100 for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["job", "figure", "final", "--format", "eps"], ("'eps'", "png, svg, pdf")),
        (["job", "table", "main", "--format", "html"], ("html", "csv, markdown, latex")),
    ],
)
def test_a_format_that_is_not_known_is_one_line(released, tmp_path, given, facts):
    words = [*given, "--results", str(released), "--out", str(tmp_path / "made")]
    error_of(CliRunner().invoke(app, words), *facts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "task", "facts"),
    [
        ("projection", "nosuch", ("--task", "nosuch", "chains")),
        ("projection", None, ("projection", "--task")),
        ("main", "chains", ("main", "--task")),
    ],
)
def test_a_figure_of_no_task_or_of_the_wrong_one_is_refused(released, tmp_path, name, task, facts):
    with refused(*facts):
        make_figure(name, read_results(released), tmp_path / "figure", task)
    assert not list(tmp_path.glob("figure*"))
