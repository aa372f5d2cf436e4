"""What a release says of itself agrees, and workflows do nothing that was not run as a make target."""

import re
import shutil
import subprocess
import tarfile
import zipfile

import pandas as pd
import pytest
import yaml

from troll import __version__

SHA = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")


@pytest.fixture(scope="module")
def writer(script):
    return script("envs/write_release.py")


@pytest.fixture
def copy(repository, tmp_path):
    """The files that state a version."""
    for name in ("pyproject.toml", "CITATION.cff", ".zenodo.json", "CHANGELOG.md", "troll/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)
    return tmp_path


def test_version_date_title_authors_and_licence_agree(writer, repository):
    assert writer.disagreements(repository) == []
    assert writer.disagreements(repository, f"v{__version__}") == []
    date = writer.stated(repository)["CHANGELOG.md"]["date"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "pyproject.toml",
            f'version = "{__version__}"',
            'version = "9.0.0"',
            "version: .*9.0.0 in pyproject.toml",
        ),
        ("CITATION.cff", "date-released: 2", "date-released: 1", "date: 1.* in CITATION.cff; 2"),
        (".zenodo.json", '"Apache-2.0"', '"MIT"', "license: Apache-2.0 in .*; MIT in .zenodo.json"),
        (".zenodo.json", '"title": "', '"title": "A ', "title: "),
    ],
)
def test_what_disagrees_is_named(writer, copy, name, old, new, message):
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1))
    (line,) = writer.disagreements(copy)
    assert re.match(message, line)


def test_a_tag_is_that_of_the_version(writer, repository):
    (line,) = writer.disagreements(repository, "v0.0.1")
    assert line == f"version: 0.0.1 in the tag; {__version__} in pyproject.toml, troll/__init__.py, " + (
        "CITATION.cff, .zenodo.json, CHANGELOG.md"
    )


def test_notes_are_the_newest_released_section(writer, repository):
    version, _, text = writer.sections(repository)[0]
    assert version == __version__ and text and "## 0.1.0" not in text


def test_archive_metadata_has_what_a_doi_asks_for(repository):
    # DataCite's mandatory properties, in Zenodo's names; identifier and publisher are the archive's own.
    metadata = yaml.safe_load((repository / ".zenodo.json").read_text())
    assert {"title", "creators", "publication_date", "upload_type", "description", "license"} <= set(metadata)


@pytest.mark.slow
def test_sdist_and_wheel_hold_the_package(writer, repository, tracked, tmp_path):
    source = tmp_path / "source"
    for name in tracked:
        if name.startswith(("troll/", "pyproject", "README", "LICENSE")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, source / name)
    wheel, sdist = sorted(writer.build(source, tmp_path / "dist"), key=lambda path: path.suffix, reverse=True)
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("troll/")}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    own = {name for name in names if name.startswith("troll/") and "." in name.rpartition("/")[2]}
    assert packed == {
        path.relative_to(source).as_posix() for path in (source / "troll").rglob("*") if path.is_file()
    }
    assert packed - own <= {"troll/warm/bin/troll"} and __version__ in wheel.name


def steps(workflow):
    for job in workflow["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("name", ["ci", "nightly", "release"])
def test_steps_of_workflows_are_make_targets_and_actions_are_pinned(repository, name):
    workflow = yaml.safe_load((repository / f".github/workflows/{name}.yml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", (repository / "Makefile").read_text(), re.MULTILINE))
    ran = [step["run"] for step in steps(workflow) if "run" in step]
    for command in ran:
        program, target, *settings = command.split()
        assert program == "make" and target in targets, command
        assert {setting.partition("=")[0] for setting in settings} <= variables, command
    for step in steps(workflow):
        assert "run" in step or SHA.fullmatch(step["uses"]), step
        assert set(step.get("env", {})) <= variables | {"GH_TOKEN", "GH_REPO", "TROLL_TEST_SLURM"}
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())


def test_workflows_try_every_python_that_the_package_names(repository):
    workflow = yaml.safe_load((repository / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["fast"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert "3.11 to 3.13" in (repository / "envs/setup.sh").read_text()


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="no actionlint; `make actionlint` installs it")
def test_workflows_pass_actionlint(repository):
    ran = subprocess.run(["actionlint", "-no-color"], cwd=repository, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_the_tree_stays_light(repository, tracked):
    """What a shallow clone fetches: results are rows, pictures and pages, and no archive."""
    sizes = {name: (repository / name).stat().st_size for name in tracked}
    assert len(sizes) <= 1050
    assert sum(sizes.values()) <= 40 * 2**20
    assert [name for name, size in sizes.items() if size > 3 * 2**20] == []


@pytest.fixture
def checkout(repository, tracked, tmp_path):
    """Empty files by the names of all that is tracked, in a repository of their own."""
    for name in tracked:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("Makefile", ".gitignore"):
        (tmp_path / name).write_text((repository / name).read_text())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def files(directory, *options):
    listed = ["git", "ls-files", "-z", "--others", *options]
    result = subprocess.run(listed, cwd=directory, capture_output=True, text=True, check=True)
    return set(filter(None, result.stdout.split("\0")))


def test_clean_removes_what_it_says_and_nothing_else(checkout):
    kept = files(checkout)
    released = ["results/released/mine/tables/main.csv", "results/released/mine/tidy/clip.parquet"]
    mine = ["results/mine/tables/main.csv", "results/mine/claims.md", "results/mine/tidy/clip.parquet"]
    gone = [
        ".venv/bin/python",
        "build/lib/troll/__init__.py",
        "resources/base-models/chains-0123/record.json",
        *(
            f"results/{name}"
            for name in (
                "mine/runs/tiny/manifest.json",
                "testbed/logs/collect.log",
                "mine/page.html",
                "mine/report.html",
                "leaderboard/experiments/leaderboard-trials.yaml",
                "mine/public/math500/oracle/samples.jsonl",
                "reduced/claims.md",
                "rehearsal-paper/rehearsal.json",
            )
        ),
    ]
    stays = [*mine, "results/mine/public/benchmarks.csv", "resources/data.lock.json"]
    stays.append("results/mine/tidy/.lock")
    for name in (*released, *gone, *stays):
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    ignored = files(checkout, "--ignored", "--exclude-standard")
    assert {*gone, *stays} <= ignored and not {*released} & ignored
    subprocess.run(["make", "clean"], cwd=checkout, check=True, capture_output=True)
    assert files(checkout) == {*kept, *released, *stays}


def test_the_findings_on_the_pretrained_model_are_those_of_its_released_rows(repository):
    """Sentences written by hand, whose numbers stand in tables or can be counted in the rows of the runs."""
    text = " ".join((repository / "docs/findings.md").read_text().split())
    tests = pd.read_csv(repository / "results/released/smollm2-rates/sequence.csv")
    both = tests[tests["tasks"] == "both"].set_index(["test", "condition"])

    def told(test, condition):
        row = 100 * both.loc[(test, condition), ["difference", "difference_low", "difference_high"]]
        return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*row)

    for test, name in ((1, "Mean height of the training curve"), (4, "Final test pass@1")):
        low, high = told(test, "rate-1e-5"), told({1: 2, 4: 4}[test], "rate-3e-5")
        assert f"- {name}: {low} points at 1e-5, {high} at 3e-5." in text
    assert told(3, "each rule's better rate") == told(1, "rate-1e-5"), "this test repeats the first"
    assert set(both["outcome"]) == {"succeeded"} and set(both["seeds"]) == {12}
    assert "All 96 planned runs ended, and **all tests succeeded**" in text

    rows = pd.read_parquet(repository / "results/released/smollm2-gsm8k/tidy")
    rows = rows[rows["seed"].notna()]
    batches = rows[rows["source"] == "train"].drop_duplicates(["run_id", "rollout_batch", "metric"])
    success = batches.loc[batches["metric"] == "success", "value"]
    silent = batches.loc[batches["metric"] == "groups_without_signal", "value"] == 1
    assert f"{100 * success.mean():.1f} % of the sampled answers were right" in text
    assert f"{silent.sum()} of {len(silent)} batches had no problem with right and wrong answers" in text
    ends = rows.loc[(rows["metric"] == "pass@1") & (rows["source"] == "test"), "value"]
    assert f"{100 * ends.min():.1f} to {100 * ends.max():.1f} % after" in text
