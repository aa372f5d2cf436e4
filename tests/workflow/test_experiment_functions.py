"""Tools and a reward in files of the user, from the experiment file to tables and page."""

import json
import os
import re

import pytest
import torch
from forked_snakemake import named_server, snakemake
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template

from troll.analysis.data.tidy import read_tidy
from troll.training.outputs import save_model
from troll.training.tokenizer import load_tokenizer

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 * 2"}}\n</tool_call>'
BOXES = [f"\\boxed{{{digit}}}" for digit in range(10)]


@pytest.fixture(scope="module")
def models(tiny_base, tmp_path_factory):
    """A mirror of the hub with a model that says a call or a boxed digit, each a single token, and ends.

    Its layers add nothing, so that the next token depends on the last one alone: after any other token a call
    (about one time in two) or a box, and after these the end.
    """
    tokenizer = load_tokenizer(tiny_base)
    tokenizer.add_tokens([CALL, *BOXES])
    tokenizer.chat_template = qwen3_chat_template
    said = tokenizer.convert_tokens_to_ids([CALL, *BOXES])
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **sizes, **heads, **ends)
    )
    with torch.no_grad():
        for part in (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj):
            part.weight.zero_()
        other, spoken = torch.eye(64)[0], torch.eye(64)[1]
        model.model.embed_tokens.weight.copy_(other.expand(len(tokenizer), 64))
        model.model.embed_tokens.weight[said] = spoken
        # After the norm a unit vector has the length 8.
        model.lm_head.weight.zero_()
        model.lm_head.weight[said] = other * torch.tensor([12.3, *[10.0] * 10])[:, None] / 8
        model.lm_head.weight[tokenizer.eos_token_id] = spoken * 12.0 / 8
    mirror = tmp_path_factory.mktemp("mirror")
    save_model(model, tokenizer, mirror / "example/caller")
    return mirror


@pytest.fixture
def checkout(repository, checkout):
    """With the files of docs/adding.md."""
    page = (repository / "docs/adding.md").read_text()
    for name, source in re.findall(r"```python\n# file: (my_\w+\.py)\n(.*?)```", page, re.DOTALL):
        (checkout / name).write_text(source)
    return checkout


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.snakemake
def test_responses_call_tools_in_training_and_are_evaluated_without_them(checkout, models):
    environment = {**os.environ, **named_server(), "HF_HUB_OFFLINE": "1", "TROLL_MODEL_MIRROR": str(models)}
    command = ("--cores", "2", "--configfile", "tests/workflow/tools.yaml")
    result = snakemake(*command, cwd=checkout, timeout=500, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    root = checkout / "results/tools"
    for method in ("clip", "troll"):
        run = root / f"runs/caller/chains/{method}/grpo/stale/seed0"
        first, *_, last = [row for row in lines(run / "metrics.jsonl") if "reward" in row]  # of batches
        assert 0.2 < first["tools/call_frequency"] < 0.9 and first["tools/failure_frequency"] == 0
        assert first["reward"] != first["success"] and first["validation_reward"] != 0
        assert last["tools/call_frequency"] < first["tools/call_frequency"], "calls that lead to nothing"
        log = root / f"logs/train/caller/chains/{method}/grpo/stale/seed0.log"
        assert "the evaluation samples single responses, without training.tools" in log.read_text()
        config = json.loads((run / "manifest.json").read_text())["config"]
        assert set(config["files_sha256"]) == {"my_rewards.py:noisy_verifier", "my_tools.py:calculator"}
        samples = lines(run / "samples.jsonl")
        graded = json.loads((run / "grades.json").read_text())["problems"]
        assert len(samples) == 64
        for sample in samples:
            assert "<tool_response>" not in sample["completion"]
            if "<tool_call>" in sample["completion"]:
                assert not graded[sample["task_id"]]["passed"][sample["sample"]]
    runs = read_tidy(root).runs
    assert {"base", "clip", "troll"} == set(runs["trust_region"])
    assert {"pass@1", "reward", "success", "validation_reward", "tools/call_frequency"} <= set(runs["metric"])
    table = (root / "tables/main.md").read_text()
    page = (root / "page.html").read_text()
    for method in ("base", "clip", "troll"):
        assert f"| {method} |" in table and method in page
