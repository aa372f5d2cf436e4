"""What the pages say holds: links lead somewhere, commands parse, the worked example works."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from forked_snakemake import snakemake
from refusals import refused

from troll import __version__
from troll.cli.app import app
from troll.experiment.files import parse_experiment

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
PROGRAMS = ("troll", "snakemake", "make", "pytest", "python", "python3")
# Run as they stand, in a fresh directory with a copy of the workflow; nothing of this takes long.
CHEAP = ("check", "status", "--version", "job problems", "doctor")


def blocks(text, language):
    return [body for kind, body in FENCE.findall(text) if kind == language]


def commands(text):
    """Every command of a page that starts with one of our programs, from bash blocks and from inline code."""
    inline = [found for found in INLINE.findall(FENCE.sub("", text)) if found.split()[0:1]]
    lines = [line for body in blocks(text, "bash") for line in body.splitlines()]
    for line in lines + inline:
        words = shlex.split(line, comments=True)
        if len(words) > 1 and words[0] in PROGRAMS:
            yield tuple(words)


# The changelog tells of commands that releases had.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
ALL = sorted({(page.name, words) for page in CURRENT for words in commands(page.read_text())})


def placeholder(words):
    return any(word in ("FILE", "RUN", "...") or word.isupper() or "<" in word for word in words)


def our_options(words):
    """The words of a `troll` command after its name, its options, and those that exist."""
    group, rest = typer.main.get_command(app), list(words[1:])
    while rest and hasattr(group, "commands") and rest[0] in group.commands:
        group = group.commands[rest.pop(0)]
    known = {name for option in group.params for name in option.opts}
    return group, {word.split("=")[0] for word in rest if word.startswith("--") and word != "--"}, known


def test_the_pages_name_many_commands():
    assert len(ALL) > 25
    assert {words[0] for _, words in ALL} == set(PROGRAMS)


@pytest.mark.parametrize(
    ("page", "words"), [item for item in ALL if item[1][0] == "troll"], ids=lambda item: str(item)[:60]
)
def test_troll_commands_exist_with_their_options(page, words):
    command, given, known = our_options(words)
    assert not hasattr(command, "commands") or words[-1].startswith("--"), f"{page}: no such command"
    assert given <= known | {"--help"}, page


def scripts():
    """What pages, Makefile and rules have Python run: scripts, with their commands and options."""
    written = [
        words[1:] for _, words in ALL if words[0].startswith("python") and not words[1].startswith("-")
    ]
    for path in (ROOT / "Makefile", *(ROOT / "workflow/rules").glob("*.smk")):
        text = path.read_text().replace("$TROLL_WORKFLOW/", "workflow/")
        text = re.sub(r"[\"']\n +[\"']", "", text)  # a command in several strings
        found = re.findall(r"python\)?\"? \"?(workflow/(?:graders|benchmarks)/[^\n]+)", text)
        written += [re.sub(r"[\"']|\{.*?\}", "", line).split() for line in found]
    asked = {}
    for script, *words in written:
        words = [word for word in words if word != "--log"]
        command = tuple(word for word in words[:1] if re.fullmatch("[a-z][a-z-]*", word))
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        asked.setdefault((script, *command), set()).update(options)
    return sorted(asked.items())


@pytest.mark.slow
@pytest.mark.parametrize(("words", "options"), scripts(), ids=lambda part: " ".join(sorted(part)))
def test_scripts_exist_with_their_options(words, options):
    ran = subprocess.run(
        [sys.executable, *words, "--help"],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert options <= set(re.findall(r"--[a-z-]+", ran.stdout))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_examples_import_from_the_package_exists(page):
    written = {name.removesuffix(".py").replace("/", ".") for name, _ in example("file")}
    for body in blocks(page.read_text(), "python"):
        for module, names in re.findall(r"^from (troll[\w.]*) import (\([^)]*\)|.*)", body, re.MULTILINE):
            for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names)):
                if module not in written:
                    assert hasattr(importlib.import_module(module), name), f"{page.name}: {module}.{name}"


def test_make_targets_exist():
    text = (ROOT / "Makefile").read_text()
    for page, words in ALL:
        if words[0] == "make":
            for target in (word for word in words[1:] if "=" not in word):
                assert re.search(rf"^{re.escape(target)}:", text, re.MULTILINE), f"{page}: make {target}"
            for name in (word.split("=")[0] for word in words[1:] if "=" in word):
                assert re.search(rf"^{name} \?=", text, re.MULTILINE), f"{page}: {name}"


def test_snakemake_options_exist_and_experiment_files_do():
    found = snakemake("--help", cwd=ROOT).stdout
    for page, words in ALL:
        if words[0] == "snakemake":
            for option in (word for word in words if word.startswith("--")):
                assert option in found, f"{page}: {option}"
        for word in words:
            if word.startswith("workflow/") and not placeholder((word,)):
                assert (ROOT / word).exists(), f"{page}: {word}"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a user has, with the files of the worked example."""
    for name in ("workflow", "docs", "envs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    for name, text in example("file"):
        if name.startswith("my_"):
            (tmp_path / name).write_text(text)
    return tmp_path


def example(kind):
    """The parts of the worked example: (path, text) of whole files, or of lines to be added to one."""
    text = (ROOT / "docs/adding.md").read_text()
    for _, body in FENCE.findall(text):
        head, _, rest = body.partition("\n")
        if head.startswith(f"# {kind}: "):
            yield head.removeprefix(f"# {kind}: "), rest


@pytest.mark.slow
def test_cheap_commands_run(checkout, troll):
    ran = []
    for words in dict.fromkeys(words for _, words in ALL):  # pages may name the same
        text = " ".join(words)
        if (
            len(words) == 2
            or words[0] != "troll"
            or not {words[1], " ".join(words[1:3])} & set(CHEAP)
            or placeholder(words)
            or "--watch" in words
            or "my_experiment" in text
        ):
            continue
        result = troll(*words[1:], cwd=checkout)
        if "parity" not in text:  # a task that the reader is about to write
            # This machine need not have what the paper's experiments take, and is told so.
            lacking = "cannot run here yet" in result.stdout and "paper" in text
            early = "--page" in words and "so there is no page yet" in result.stderr
            assert result.returncode == (1 if lacking or early else 0), f"{text}: {result.stderr}"
            ran.append(text)
    assert len(ran) >= 5, ran


@pytest.mark.slow
def test_the_experiments_have_a_plan(checkout):
    """Every experiment of the pages, as a dry run."""
    seen = set()
    written = {words[words.index("--out") + 1] for _, words in ALL if "--out" in words}
    for _, words in ALL:
        if words[0] != "snakemake" or "--configfile" not in words or placeholder(words) or words in seen:
            continue  # tests/workflow has the default one
        if "--workflow-profile" in words:
            continue  # tests/workflow has a cluster for these
        if "--report" in words:
            continue  # of a finished experiment
        if {words[words.index("--configfile") + 1], Path(words[-1]).parent.name} & written:
            continue  # of a file that another command of the page writes
        seen.add(words)
        result = snakemake(*words[1:], "--cores", "1", "--dry-run", "--quiet", "rules", cwd=checkout)
        assert result.returncode == 0, f"{' '.join(words)}: {result.stderr[-2000:]}"
    assert len(seen) >= 2


@pytest.mark.slow
def test_the_worked_example_is_held_to_the_contracts_and_makes_an_experiment(checkout):
    for name in ("troll", "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    for name, text in example("file"):
        if name != "Snakefile":  # of a folder without a checkout: tests/workflow/test_module.py
            (checkout / name).write_text(text)
    lines = list(example("line"))
    assert lines
    for name, text in lines:
        with (checkout / name).open("a") as file:
            file.write(text)
    # As `make contract RULE=my_rules.py:soft_wall` does.
    environment = os.environ | {"PYTHONPATH": str(checkout), "TROLL_CONTRACT": "my_rules.py:soft_wall"}
    tests = ["tests/algorithms/test_trust_region_contract.py", "tests/algorithms/test_advantages.py"]
    tests.append("tests/tasks/test_task_contract.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests, "-k", "soft_wall or quadratic or median or parity"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", result.stdout)[1]) >= 12
    command = [sys.executable, "-m", "troll.cli", "check", "my_experiment.yaml", "--names"]
    result = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert len(result.stdout.split()) == 9, result.stderr
    from troll.analysis.claims.verdicts import read_claims

    assert [claim.trust_region for claim in read_claims([checkout / "my_claims.yaml"])] == ["soft-wall"]


def heading_anchors(path):
    """What GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(((?!https?:)[^)]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in heading_anchors(path), target


@pytest.mark.parametrize("page", CURRENT, ids=lambda path: path.name)
def test_paths_in_the_text_exist(page):
    text = FENCE.sub("", page.read_text())
    written = {name for name, _ in example("file")}
    for word in INLINE.findall(text):
        if word not in written and re.fullmatch(r"(?:troll|workflow|docs|envs|tests)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{page.name}: {word}"


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in text, page.name


def test_the_citation_is_valid_and_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "type", "license"} <= set(citation)
    assert citation["version"] == __version__
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_an_experiment_of_the_example_says_what_is_wrong_without_its_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = next(text for name, text in example("file") if name == "my_experiment.yaml")
    with refused("my_experiment.yaml", "trust_regions.soft-wall", "my_rules.py"):
        parse_experiment(yaml.safe_load(text), "my_experiment.yaml")
