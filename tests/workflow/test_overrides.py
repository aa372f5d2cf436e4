"""Mistakes in what `--config` overrides are its own, and not the experiment file's."""

import shutil

import pytest
from forked_snakemake import snakemake
from refusals import error_of

pytestmark = pytest.mark.snakemake


@pytest.fixture
def folder(repository, tmp_path):
    """A checkout of links, with an experiment of its own."""
    (tmp_path / "Snakefile").symlink_to(repository / "Snakefile")
    for name in ("workflow", "envs"):
        (tmp_path / name).symlink_to(repository / name)
    shutil.copy(repository / "tests/workflow/reduced.yaml", tmp_path / "mine.yaml")
    return tmp_path


def refusal(folder, *config, facts, configfile="mine.yaml"):
    """The message with these facts that a dry run with these overrides is refused with."""
    arguments = ["-n", "--cores", "1"]
    arguments += ["--configfile", configfile] if configfile else []
    arguments += ["--config", *config] if config else []
    return error_of(snakemake(*arguments, cwd=folder), *facts, alone=False)


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (("foo=1",), ("'foo'",)),
        (("seeds=[x]",), ("seeds.0", "'x'", ">= 0")),
        (("seeds=x",), ("seeds", "'x'", ">= 0")),
        (("seeds=[0,0]",), ("seeds", "[0, 0]")),
        (("training={mini_batches: 7}",), ("training", 7)),
        (("seeds=[0,1]", "tasks={chain: {}}"), ("tasks", "'chain'")),
    ],
)
def test_a_mistake_of_an_override_is_not_blamed_on_the_file(folder, config, facts):
    assert refusal(folder, *config, facts=facts).startswith("--config: ")


def test_a_clash_of_file_and_override_is_blamed_on_both(folder):
    facts = ("mine.yaml", "--config", "run tiny/chains/clip/grpo/stale/seed0")
    refusal(folder, "training={prompts_per_batch: 64}", facts=facts)


def test_a_mistake_of_the_file_stays_its_own(folder):
    path = folder / "mine.yaml"
    path.write_text(path.read_text() + "sseeds: [0]\n")
    for config in ((), ("seeds=[0]",)):
        assert refusal(folder, *config, facts=["'sseeds'"]).startswith("mine.yaml: ")


def test_a_block_that_both_have_is_the_files_where_it_alone_is_wrong(folder):
    path = folder / "mine.yaml"
    text = path.read_text()
    assert "\ntraining:\n" in text
    path.write_text(text.replace("\ntraining:\n", "\ntraining:\n  keeep: 3\n"))
    message = refusal(folder, "training={weight_decay: 0.5}", facts=["training.keeep"])
    assert message.startswith("mine.yaml: ")


def test_the_file_that_is_taken_without_any_named_is_not_blamed_either(folder):
    assert refusal(folder, "foo=1", facts=["'foo'"], configfile=None).startswith("--config: ")
