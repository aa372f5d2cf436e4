import importlib
from collections import defaultdict
from dataclasses import dataclass

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END = "<|end|>"


@dataclass(frozen=True)
class Prompt:
    task_id: str
    prompt: str
    system: str = ""


@pytest.fixture(scope="session", autouse=True)
def scoring_processes_go_on():
    """Importing lm-eval takes a process that scores seconds: one that is whole goes on with later tests."""
    module = importlib.import_module("troll.evaluation.lm_eval.scores")
    start, waiting, ends = module._started, defaultdict(list), []

    def started(task_file, cpu_s):
        if there := waiting[task_file, cpu_s]:
            return there.pop()
        worker = start(task_file, cpu_s)
        end = worker.close
        ends.append(end)

        def close():  # each takes hundreds of MB
            if worker._process.poll() is None and sum(map(len, waiting.values())) < 3:
                waiting[task_file, cpu_s].append(worker)
            else:
                end()

        worker.close = close
        return worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_started", started)
        yield
    for end in ends:
        end()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A Qwen3 model of a few thousand random weights over characters, spread enough to be sampled from."""
    letters = [END, *(chr(code) for code in range(97, 123)), *"0123456789 "]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=128,
            eos_token_id=0,
            pad_token_id=0,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.35)
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
