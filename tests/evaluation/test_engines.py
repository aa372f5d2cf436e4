"""The choice of engine, and vLLM behind its interface (vLLM itself needs an environment of its own)."""

import sys
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from troll.common.errors import UserError
from troll.common.files import read_jsonl
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


def test_another_engine_does_not_go_on_with_these_samples(checkpoint, tmp_path, vllm):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("troll.evaluation.sampling.shutil.rmtree", lambda *_, **__: None)  # parts stay
        draw(checkpoint, tmp_path / "a.jsonl")
    rows = draw(checkpoint, tmp_path / "a.jsonl", engine="transformers", device="cpu")
    assert rows == draw(checkpoint, tmp_path / "b.jsonl", engine="transformers", device="cpu")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ollama", {}, "engine is 'ollama'; valid: transformers, vllm"),
        ("transformers", {"dtype": "float32"}, "options dtype are for the engine vllm"),
        ("vllm", {"seed": 3}, "engine option 'seed' is set by the command line"),
    ],
)
def test_bad_engines_are_refused(checkpoint, vllm, name, options, message):
    with pytest.raises(UserError, match=message):
        load_engine(name, checkpoint, max_new_tokens=4, temperature=1.0, options=options)


def test_without_vllm_the_message_says_where_to_install_it(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match="vllm: not installed here; `make vllm`"):
        load_engine("vllm", checkpoint, max_new_tokens=4, temperature=1.0)
