"""A released run, made again here with its base model, is equal to the last bit."""

import json
import shutil

import pytest
from forked_snakemake import snakemake

from troll.analysis.data.reproduction import compare_runs
from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import read_tidy
from troll.tasks.sandbox.pool import sandbox_available
from troll.training.manifest import hardware, versions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.snakemake,
    pytest.mark.timeout(2400),
    # A base model takes minutes of a whole core, which other tests share.
    pytest.mark.nightly,
]
# Processors of one maker round alike. These were made on one of each: there is something to compare on both.
RELEASES = {
    "testbed": "tiny/functions/clip/grpo/gentle/seed0",
    "testbed-estimators": "tiny/chains/troll/grpo/stale/seed0",
}
LIBRARIES = ("torch", "numpy")
"""What computes; transformers and trl may be newer than the release's, as long as no number changes."""


@pytest.mark.parametrize(("experiment", "run"), RELEASES.items(), ids=list(RELEASES))
def test_base_model_and_run_equal_the_release(repository, tmp_path, experiment, run):
    task = run.split("/")[1]
    available, reason = sandbox_available()
    if task == "functions" and not available:
        pytest.skip(f"the task functions is judged in the sandbox: {reason}")
    released = read_tidy(repository / "results/released" / experiment)
    row = released.runs[released.runs["run_id"] == run].iloc[0]
    there, here = json.loads(row["hardware"]), hardware()
    for name in ("vendor", "capability"):
        if there[name] != here.get(name):
            pytest.skip(
                f"{name} of the processor: the release was made with {there[name]}, not {here.get(name)}"
            )
    if other := [name for name in LIBRARIES if json.loads(row["versions"])[name] != versions()[name]]:
        pytest.skip(f"the release was made with another version of {', '.join(other)}")

    shutil.copy(repository / "Snakefile", tmp_path)
    for name in ("workflow", "envs"):
        shutil.copytree(repository / name, tmp_path / name)
    root = tmp_path / "results" / experiment
    base = f"base/tiny/{task}"
    targets = [f"results/{experiment}/{place}/grades.json" for place in (f"runs/{run}", base)]
    file = f"workflow/config/{experiment}.yaml"
    made = snakemake("--cores", "2", "--configfile", file, "--", *targets, cwd=tmp_path, timeout=2400)
    assert made.returncode == 0, made.stderr[-2000:]

    tidy = read_directories([root / "runs" / run], [root / base])
    compared = compare_runs(tidy, released).set_index("run_id")
    assert set(compared.index) == {run, base}
    assert (compared["settings"].map(len) == 0).all()
    wrong = compared[compared["different"] > 0]
    assert wrong.empty, (
        f"other numbers than the release: {wrong[['step', 'metric', 'here', 'there']].to_dict()}"
    )
    # A checkpoint's config.json names the version of transformers, so with another one its digest differs.
    if json.loads(row["versions"])["transformers"] == versions()["transformers"]:
        assert "base_model" not in {name for names in compared["digests"] for name in names}
