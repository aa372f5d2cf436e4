"""What public GRPO scripts pass and override, one style each: with clip all of them train as in TRL.

Adapters, evaluation sets and callbacks that change coefficients are in test_peft, test_trl_metrics and
test_live_options.
"""

import json
from importlib.util import find_spec

import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from trainer_cases import CLIP, PROMPTS, SeededGRPOTrainer, moved, parameters, trained
from transformers import AutoModelForCausalLM
from trl.chat_template_utils import qwen3_chat_template

from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer
from troll.training.trl_parts import READS_CALLS_WITH_JMESPATH

CHATS = [[{"role": "user", "content": text}] for text in PROMPTS]


def text_of(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"] or ""


def digits(completions, **_):
    texts = [text_of(completion) for completion in completions]
    return [sum(c in "0123456789." for c in text) / max(len(text), 1) for text in texts]


def add(first: int, second: int) -> int:
    """
    Adds two numbers.

    Args:
        first: A number.
        second: Another number.
    """
    return first + second


class Adder:
    """An environment whose state gives a part of the reward."""

    def reset(self, **_):
        self.sums = []

    def add(self, first: int, second: int) -> int:
        """
        Adds two numbers.

        Args:
            first: A number.
            second: Another number.
        """
        self.sums.append(first + second)
        return self.sums[-1]

    def get_reward(self):
        return sum(self.sums) / 10


def rollout(prompts, trainer):
    """A rollout function, as scripts have that talk to an environment: a reply between two sampled parts."""
    tokenizer = trainer.processing_class
    ids = tokenizer(prompts).input_ids
    sampled = torch.randint(9, 300, (len(prompts), 8)).tolist()
    reply = tokenizer(" ok ").input_ids
    return {
        "prompt_ids": ids,
        "completion_ids": [row[:4] + reply + row[4:] for row in sampled],
        "logprobs": [[0.0] * (8 + len(reply)) for _ in sampled],
        "env_mask": [[1] * 4 + [0] * len(reply) + [1] * 4 for _ in sampled],
        "bonus": [float(row[0] % 2) for row in sampled],
    }


def bonuses(bonus, **_):
    return bonus


class Ranks:
    """Replaces advantages, as scripts do by overriding a method of the trainer."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ranks = output["completion_ids"].sum(1).view(-1, self.num_generations).argsort(1).argsort(1)
        output["advantages"] = (ranks - ranks.float().mean()).flatten()
        return output


class Calls:
    """Its responses call `add` and then answer."""

    def _generate_single_turn(self, prompt_ids, *_, **__):
        texts, said = self.processing_class.batch_decode(prompt_ids), []
        for number, text in enumerate(texts):
            call = {"name": "add", "arguments": {"first": number, "second": 1}}
            answered = "<tool_response>" in text
            said.append(f"so {number}" if answered else f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        end = self.processing_class.eos_token_id
        return [[*self.processing_class(text).input_ids, end] for text in said], None


def chat(tiny_base):
    tokenizer = load_tokenizer(tiny_base)
    tokenizer.chat_template = qwen3_chat_template
    model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    model.config.max_position_embeddings = 8192
    return {"tokenizer": tokenizer, "model": model, "data": Dataset.from_dict({"prompt": CHATS * 4})}


STYLES = {
    "tools": lambda base: {**chat(base), "mixin": Calls, "tools": [add], "max_completion_length": 300},
    "environment": lambda base: STYLES["tools"](base) | {"tools": None, "environment_factory": Adder},
    "rollout function": lambda _: {"rollout_func": rollout, "reward": bonuses, "max_completion_length": 20},
    "iterable data": lambda _: {"data": Dataset.from_dict({"prompt": PROMPTS * 4}).to_iterable_dataset()},
    "subclass with its own advantages": lambda _: {"mixin": Ranks},
    "conversational data": lambda base: chat(base) | {"max_completion_length": 10},
}


RELEASE = Version(trl.__version__)
MISSING = {
    **dict.fromkeys(("tools", "environment"), READS_CALLS_WITH_JMESPATH and find_spec("jmespath") is None),
    "iterable data": Version("1.9") > RELEASE,
}


@pytest.mark.parametrize("style", STYLES)
def test_a_style_of_public_scripts_trains_as_in_trl(make, tiny_base, style):
    if MISSING.get(style):
        pytest.skip(f"trl {RELEASE} itself refuses this")
    ended = []
    for kind, rule in ((SeededGRPOTrainer, {}), (TrustRegionTrainer, CLIP)):
        options = {"reward": digits} | STYLES[style](tiny_base)
        length = {"max_completion_length": options.pop("max_completion_length", 10)}
        mixin = options.pop("mixin", None)
        built = kind if mixin is None else type(kind.__name__, (mixin, kind), {})
        trainer = trained(make, built, config={"num_iterations": 2, **length}, **options, **rule)
        ended.append(parameters(trainer))
        assert moved(trainer) > 1e-3
    torch.testing.assert_close(ended[1], ended[0], rtol=0, atol=1e-4)
