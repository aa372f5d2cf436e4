"""Finished runs as rows of the tables: what stands there as planned is not made again, whatever was lost."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO
from types import SimpleNamespace

import killed_workflows as kills
import pyarrow.parquet as pq
import pytest
import yaml
from forked_snakemake import snakemake as forked_snakemake
from refusals import error_of

from troll.analysis.data.archive import append_run, archived_runs
from troll.analysis.data.results import read_results
from troll.analysis.data.tidy import table_file, table_files
from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import load_experiment
from troll.experiment.keys import planned_keys

pytestmark = pytest.mark.snakemake
CLIP, SOFT = (f"tiny/chains/{name}/grpo/stale/seed0" for name in ("clip", "soft"))
BASE, TOKENIZER = "base/tiny/chains", "base/tiny/tokenizer/tokenizer.json"
# A version of the numbers that changed KL penalties alone came after it.
EARLIER = 1


def snakemake(directory, *arguments, target="collect"):
    given = ("--cores", "2", "--configfile", "few.yaml", *arguments)
    return forked_snakemake(*given, "--", target, cwd=directory)


def make(directory, *arguments, target="collect"):
    result = snakemake(directory, *arguments, target=target)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout + result.stderr


def planned(directory, *arguments, target="collect"):
    """How many jobs of each rule there would be."""
    return counted(make(directory, "-n", *arguments, target=target))


def counted(said):
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", said, re.M) if rule != "total"}


def change(directory, old, new):
    path = directory / "few.yaml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def runs_in(results):
    return set(read_results(results).runs["run_id"])


@pytest.fixture(scope="module")
def few(repository, tmp_path_factory, finished):
    """An experiment with a group: how it is written into a directory, with its finished runs at a place."""
    contents = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    contents["tasks"].pop("functions")
    contents["trust_regions"] = {"clip": {"rule": "clip"}, "soft": {"rule": "kl-penalty"}}
    contents |= {"archive": True, "matrix": [{"group": "gentle", "trust_regions": ["clip"]}, {}]}

    def write(directory, root, numerics):
        for name in ("workflow", "envs"):
            (directory / name).symlink_to(repository / name)
        shutil.copy(repository / "Snakefile", directory)
        (directory / "few.yaml").write_text(yaml.safe_dump(contents))
        experiment = load_experiment(directory / "few.yaml")
        for name in (*(f"data/chains/{part}.jsonl" for part in ("train", "validation", "test")), TOKENIZER):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        finished(root / BASE, resolve_base(experiment, "tiny", "chains"), numerics)
        for run in experiment.runs():
            finished(root / "runs" / run.run_id, resolve(experiment, run), numerics)
        return planned_keys(experiment, experiment.runs())

    return write


@pytest.fixture
def clone(few, tmp_path):
    """A clone: released tables, made with an earlier version of the numbers, and nothing else."""
    directory = tmp_path / "clone"
    directory.mkdir()
    for name, key in few(directory, tmp_path, EARLIER).items():
        place = tmp_path / (name if name == BASE else f"runs/{name}")
        append_run(place, directory / "results/released/reduced", key)
    return directory


@pytest.fixture(scope="module")
def whole(few, tmp_path_factory):
    """A directory in which everything was made, as Snakemake remembers it too, and appended and collected."""
    directory = tmp_path_factory.mktemp("whole")
    few(directory, directory / "results/reduced", EARLIER + 1)
    make(directory, "--touch", "--forceall")
    make(directory)
    return directory


@pytest.fixture
def made(whole, tmp_path):
    """A copy of it, and where its results are."""
    directory = shutil.copytree(whole, tmp_path / "made", symlinks=True)
    return SimpleNamespace(directory=directory, results=directory / "results/reduced")


def test_what_the_tables_of_a_clone_hold_is_not_made_again_unless_its_numbers_have_changed(clone):
    one = {"append": 1, "configure": 1, "train": 1, "sample": 1, "grade": 1}
    bases = {"problems": 1, "tokenizer": 1, "base_model": 1}
    said = make(clone, "-n", "-p")
    assert counted(said) == {"collect": 1, **one, **bases}
    assert f"append results/reduced/runs/{SOFT} " in said and f"results/reduced/runs/{CLIP}" not in said
    assert "runs have ended" not in said
    assert said.count("1 of 2 runs are taken from results/released/reduced; to make them again, ") == 1
    repeated = make(clone, "-n", "--config", "repeat=true")
    assert counted(repeated)["train"] == 2 and "runs are taken" not in repeated
    assert planned(clone, "--config", "seeds=[0,1]")["train"] == 3
    # Weights and samples, which difficulty is measured from, stand in no table.
    assert planned(clone, target="difficulty")["base_model"] == 1


def test_tables_are_made_from_rows_alone(clone):
    group = clone / "results/reduced/groups/gentle"
    make(clone, target="results/reduced/groups/gentle/plan.json")
    assert runs_in(group) == {CLIP, BASE} and [*table_files(group)] == ["all"]
    assert not (clone / "results/reduced/runs").exists() and not (clone / "results/reduced/base").exists()


@pytest.mark.parametrize(
    ("old", "new", "again"),
    [
        ("learning_rate: 0.001\n", "learning_rate: 0.002\n", {"train": 2, "append": 2}),
        ("  samples: 2\n", "  samples: 3\n", {"train": 2, "append": 3}),
    ],
)
def test_another_configuration_or_evaluation_makes_what_a_clone_holds_again(clone, old, new, again):
    change(clone, old, new)
    jobs = planned(clone)
    assert {rule: jobs[rule] for rule in again} == again


def test_nothing_is_left_to_be_done_and_what_changes_is_made_again(made):
    assert make(made.directory, "-n").count("2 of 2 runs have ended in results/reduced/runs; ") == 1
    assert runs_in(made.results) == {CLIP, SOFT, BASE}
    assert planned(made.directory) == {} == planned(made.directory, "--config", "seeds=[0]")
    change(made.directory, "  samples: 2\n", "  samples: 3\n")
    assert planned(made.directory) == {"sample": 3, "grade": 3, "append": 3, "collect": 1}
    change(made.directory, "  samples: 3\n", "  samples: 2\n")
    change(made.directory, "rule: kl-penalty\n", "rule: spo\n")
    one = {"configure": 1, "train": 1, "sample": 1, "grade": 1, "append": 1}
    assert planned(made.directory) == {**one, "collect": 1}


RAISED = """
import sys
from troll.common import numerics
later = numerics.NUMERICS + 1
numerics.CHANGES += (numerics.Change(later, "clipping", ("clip",)),)
numerics.changed_since.__kwdefaults__["until"] = later
from snakemake.cli import main
main(sys.argv[1:])
"""


def test_a_version_of_the_numbers_makes_the_runs_of_its_rules_again(made):
    arguments = ["-n", "--cores", "2", "--configfile", "few.yaml", "--", "collect"]
    result = subprocess.run(
        [sys.executable, "-c", RAISED, *arguments], cwd=made.directory, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert re.findall(r"^Job \d+: train (\S+)", result.stdout + result.stderr, re.M) == [
        CLIP.removeprefix("tiny/")
    ]


def test_a_lost_directory_costs_nothing_and_new_runs_make_no_old_ones_again(made):
    shutil.rmtree(made.results / "runs" / CLIP)
    shutil.rmtree(made.results / "data")
    (made.results / BASE / "manifest.json").unlink()
    assert planned(made.directory) == {"collect": 1}
    # Their problems and their base model are newer than the run that is still here.
    jobs = planned(made.directory, "--config", "seeds=[0,1]")
    assert (jobs["base_model"], jobs["train"], jobs["append"]) == (1, 2, 2)
    make(made.directory)
    assert runs_in(made.results) == {CLIP, SOFT, BASE}


def test_tables_that_lost_rows_get_them_back_from_the_directories(made):
    """After `git checkout` of older tables, say: Snakemake believes its marks."""
    table_file(made.results, "clip").unlink()
    trained = (made.results / "runs" / CLIP / "manifest.json").stat().st_mtime_ns
    make(made.directory)
    assert runs_in(made.results) == {CLIP, SOFT, BASE}
    assert (made.results / "runs" / CLIP / "manifest.json").stat().st_mtime_ns == trained
    assert planned(made.directory) == {}


def test_an_old_directory_of_which_snakemake_remembers_nothing_is_not_taken(few, tmp_path):
    few(tmp_path, tmp_path / "results/reduced", EARLIER)
    result = snakemake(tmp_path)
    error_of(result, "rule collect", alone=False)
    assert f"runs/{SOFT}" in result.stderr and f"numerics version {EARLIER}" in result.stderr


def test_a_damaged_table_is_a_line_with_the_remedy(clone):
    path = table_file(clone / "results/released/reduced", "clip")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    facts = ("results/released/reduced/tidy/clip.parquet", "git checkout")
    error_of(snakemake(clone), *facts)
    # What says which runs are there is whole, and their numbers are not.
    column = next(
        column
        for column in map(pq.ParquetFile(BytesIO(whole)).metadata.row_group(0).column, range(99))
        if column.path_in_schema == "value"
    )
    place = column.data_page_offset + column.total_compressed_size - 9
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    result = snakemake(clone, target="results/reduced/groups/gentle/plan.json")
    error_of(result, "rule collect-gentle", alone=False)
    assert all(fact in result.stderr for fact in facts), "the job's own line"


@pytest.mark.nightly  # test_archive.py kills while it appends, and test_workflow.py all that trains
def test_what_was_appended_before_everything_was_killed_is_not_needed_again(few, tmp_path):
    results = tmp_path / "results/reduced"
    few(tmp_path, results, EARLIER + 1)
    command = [sys.executable, "-m", "troll.cli", "run", "few.yaml", "--cores", "1", "--", "collect"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 200
    while not table_files(results) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    for number in kills.processes(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait(60)
    kept = archived_runs(results)
    assert kept and len(kept) < 3, "it was to be killed in between"
    for name in kept:
        shutil.rmtree(results / (name if name == BASE else f"runs/{name}"))
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert runs_in(results) == {CLIP, SOFT, BASE}
    assert not any((results / (name if name == BASE else f"runs/{name}")).exists() for name in kept)
