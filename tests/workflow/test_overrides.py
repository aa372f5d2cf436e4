"""Mistakes in what `--config` overrides are its own, and not the experiment file's."""

import shutil

import pytest
from forked_snakemake import snakemake

pytestmark = pytest.mark.snakemake


@pytest.fixture
def folder(repository, tmp_path):
    """A checkout of links, with an experiment of its own."""
    (tmp_path / "Snakefile").symlink_to(repository / "Snakefile")
    for name in ("workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    shutil.copy(repository / "tests/workflow/reduced.yaml", tmp_path / "mine.yaml")
    return tmp_path


def refusal(folder, *config, configfile="mine.yaml"):
    """What a dry run with these overrides is refused with."""
    arguments = ["-n", "--cores", "1"]
    arguments += ["--configfile", configfile] if configfile else []
    arguments += ["--config", *config] if config else []
    result = snakemake(*arguments, cwd=folder)
    assert result.returncode == 1, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in result.stderr
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (("foo=1",), "--config: foo: unknown key 'foo'"),
        (("seeds=[x]",), "--config: seeds.0 is 'x', must be an integer >= 0"),
        (("seeds=x",), "--config: seeds is 'x', must be a list of integers >= 0"),
        (("seeds=[0,0]",), "--config: seeds: "),
        (("training={mini_batches: 7}",), "--config: training: "),
        (
            ("training={prompts_per_batch: 64}",),
            "mine.yaml and --config: run tiny/chains/clip/grpo/stale/seed0: ",
        ),
        (("seeds=[0,1]", "tasks={chain: {}}"), "--config: tasks: unknown name 'chain'"),
    ],
)
def test_a_mistake_of_an_override_is_not_blamed_on_the_file(folder, config, said):
    assert refusal(folder, *config).startswith(said)


def test_a_mistake_of_the_file_stays_its_own(folder):
    path = folder / "mine.yaml"
    path.write_text(path.read_text() + "sseeds: [0]\n")
    for config in ((), ("seeds=[0]",)):
        assert refusal(folder, *config).startswith("mine.yaml: sseeds: unknown key 'sseeds'")


def test_a_block_that_both_have_is_the_files_where_it_alone_is_wrong(folder):
    path = folder / "mine.yaml"
    text = path.read_text()
    assert "\ntraining:\n" in text
    path.write_text(text.replace("\ntraining:\n", "\ntraining:\n  keeep: 3\n"))
    said = "mine.yaml: training.keeep: unknown key 'keeep'"
    assert refusal(folder, "training={weight_decay: 0.5}").startswith(said)


def test_the_file_that_is_taken_without_any_named_is_not_blamed_either(folder):
    assert refusal(folder, "foo=1", configfile=None).startswith("--config: foo: unknown key 'foo'")
