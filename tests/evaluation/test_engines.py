"""The choice of engine, and vLLM behind its interface (vLLM itself needs an environment of its own)."""

import shutil
import sys
from types import SimpleNamespace

import pytest
from datasets import Dataset
from refusals import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from troll.common.files import read_jsonl
from troll.evaluation.engines import Request, Response
from troll.evaluation.engines.transformers import load_engine
from troll.evaluation.sampling import sample

from .conftest import Prompt

PROMPTS = [Prompt("t/0", "abc"), Prompt("t/1", "hello world")]


class FakeVllm:
    """Repeats each prompt's first token as often as its seed says, and records what it was asked."""

    def __init__(self, checkpoint):
        self.checkpoint, self.calls, self.options = checkpoint, [], None

    def SamplingParams(self, **settings):  # noqa: N802 - vLLM's name
        return SimpleNamespace(**settings)

    def LLM(self, **options):  # noqa: N802 - vLLM's name
        self.options = options
        config = SimpleNamespace(max_model_len=128)
        return SimpleNamespace(
            generate=self.generate,
            get_tokenizer=lambda: AutoTokenizer.from_pretrained(self.checkpoint),
            llm_engine=SimpleNamespace(model_config=config),
        )

    def generate(self, prompts, parameters, use_tqdm):
        self.calls.append(parameters)
        outputs = []
        for prompt, setting in zip(prompts, parameters, strict=True):
            length = setting.seed % setting.max_tokens + 1
            reason = "stop" if length < setting.max_tokens else "length"
            tokens = tuple(prompt["prompt_token_ids"][:1] * length)
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason=reason)]))
        return outputs


@pytest.fixture
def vllm(checkpoint, monkeypatch):
    fake = FakeVllm(checkpoint)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return fake


def draw(checkpoint, path, **changes):
    settings = {"samples_per_problem": 3, "max_new_tokens": 4, "engine": "vllm", **changes}
    sample(checkpoint, PROMPTS, out=path, **settings)
    return read_jsonl(path)


def test_vllm_gets_a_seed_for_each_sample_and_the_plain_distribution(checkpoint, tmp_path, vllm):
    rows = draw(checkpoint, tmp_path / "a.jsonl", temperature=0.7, engine_options={"enforce_eager": True})
    (parameters,) = vllm.calls
    assert len({setting.seed for setting in parameters}) == 6
    assert all(
        (setting.temperature, setting.top_p, setting.top_k, setting.min_p) == (0.7, 1.0, 0, 0.0)
        for setting in parameters
    )
    assert vllm.options["enforce_eager"] is True and vllm.options["model"] == str(checkpoint)
    assert [(row["task_id"], row["sample"]) for row in rows] == [
        (f"t/{i}", j) for i in (0, 1) for j in range(3)
    ]
    assert all(row["completion"] == PROMPTS[int(row["task_id"][2])].prompt[0] * row["tokens"] for row in rows)
    assert all(row["finished"] is (row["tokens"] < 4) for row in rows)


def test_with_vllm_too_the_batch_size_and_an_interruption_change_nothing(
    checkpoint, tmp_path, vllm, monkeypatch
):
    expected = draw(checkpoint, tmp_path / "a.jsonl")
    generate = vllm.generate

    def failing(*arguments, **settings):
        if len(vllm.calls) > 2:
            raise KeyboardInterrupt
        return generate(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm, "generate", failing)
        with pytest.raises(KeyboardInterrupt):
            draw(checkpoint, tmp_path / "b.jsonl", batch_size=2)
    vllm.calls.clear()
    assert draw(checkpoint, tmp_path / "b.jsonl", batch_size=1) == expected
    assert 0 < len(vllm.calls) < 6


@pytest.fixture
def two_ends(checkpoint, tmp_path):
    """The checkpoint, whose generation_config names a letter as its end, and not the tokenizer's."""
    path = tmp_path / "two-ends"
    shutil.copytree(checkpoint, path)
    (path / "generation_config.json").write_text('{"eos_token_id": [5]}')
    return path


def ends_of_rollouts(path, monkeypatch, tmp_path, **options):
    """A trainer on the checkpoint, with an engine for its rollouts that is never asked."""
    from trl.trainer import grpo_trainer

    from troll import TrustRegionConfig, TrustRegionTrainer

    asked = SimpleNamespace(generation_kwargs={"top_p": 1.0})
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", lambda **_: asked)
    settings = {"bf16": False, "use_cpu": True, "report_to": "none", "num_generations": 2, **options}
    trainer = TrustRegionTrainer(
        AutoModelForCausalLM.from_pretrained(path),
        lambda completions, **_: [0.0] * len(completions),
        args=TrustRegionConfig(str(tmp_path / "out"), per_device_train_batch_size=2, **settings),
        train_dataset=Dataset.from_dict({"prompt": ["abc"] * 4}),
        processing_class=AutoTokenizer.from_pretrained(path),
    )
    return trainer, asked


ENDS = {0, 5}


def test_a_text_ends_at_the_ends_of_tokenizer_and_model_with_every_engine(two_ends, tmp_path, vllm):
    engine = load_engine("transformers", two_ends, max_new_tokens=40, temperature=1.0, device="cpu")
    responses = engine.complete([Request((3, 4), seed) for seed in range(40)])
    assert {response.tokens[-1] for response in responses if response.finished} == ENDS
    assert not any(ENDS & set(response.tokens[:-1]) for response in responses)
    draw(two_ends, tmp_path / "a.jsonl")
    assert all(set(setting.stop_token_ids) == ENDS for setting in vllm.calls[0])


def test_rollouts_end_where_evaluation_does_with_every_engine(two_ends, tmp_path, monkeypatch):
    trainer, _ = ends_of_rollouts(two_ends, monkeypatch, tmp_path)
    assert set(trainer.eos_token_ids) == set(trainer.generation_config.eos_token_id) == ENDS
    for mode in ("server", "colocate"):
        options = {"use_vllm": True, "vllm_mode": mode, "vllm_importance_sampling_correction": False}
        trainer, asked = ends_of_rollouts(two_ends, monkeypatch, tmp_path, **options)
        assert set(trainer.eos_token_ids) == ENDS
        assert asked.generation_kwargs == {"top_p": 1.0, "stop_token_ids": [0, 5]}


def test_what_an_engine_writes_after_the_end_is_no_part_of_the_response(two_ends, vllm, monkeypatch):
    """vLLM's own idea of the end may be another one, as with `generation_config: vllm` in its options."""
    written = SimpleNamespace(token_ids=(7, 5, 8, 9), finish_reason="length")
    monkeypatch.setattr(vllm, "generate", lambda *_, **__: [SimpleNamespace(outputs=[written])])
    engine = load_engine("vllm", two_ends, max_new_tokens=4, temperature=1.0)
    assert engine.complete([Request((3, 4), 0)]) == [Response([7, 5], finished=True)]


@pytest.mark.parametrize("name", ["eos_token_id", "stop_token_ids"])
def test_rollouts_with_an_end_of_their_own_are_refused(two_ends, tmp_path, monkeypatch, name):
    with refused("generation_kwargs", name, "[8]", "generation_config"):
        ends_of_rollouts(two_ends, monkeypatch, tmp_path, generation_kwargs={name: [5, 8]})


def test_another_engine_does_not_go_on_with_these_samples(checkpoint, tmp_path, vllm):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("troll.evaluation.sampling.shutil.rmtree", lambda *_, **__: None)  # parts stay
        draw(checkpoint, tmp_path / "a.jsonl")
    rows = draw(checkpoint, tmp_path / "a.jsonl", engine="transformers", device="cpu")
    assert rows == draw(checkpoint, tmp_path / "b.jsonl", engine="transformers", device="cpu")


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("ollama", {}, ("engine", "'ollama'", "transformers, vllm")),
        ("transformers", {"dtype": "float32"}, ("dtype", "vllm")),
        ("vllm", {"seed": 3}, ("'seed'",)),
    ],
)
def test_bad_engines_are_refused(checkpoint, vllm, name, options, facts):
    with refused(*facts):
        load_engine(name, checkpoint, max_new_tokens=4, temperature=1.0, options=options)


def test_without_vllm_the_message_says_where_to_install_it(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with refused("vllm", "make vllm"):
        load_engine("vllm", checkpoint, max_new_tokens=4, temperature=1.0)
