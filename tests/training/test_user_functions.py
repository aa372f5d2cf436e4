"""Rewards, tools and environments in files of the user: the examples of docs/adding.md, in runs."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from run_cases import metrics, weights
from trl.chat_template_utils import qwen3_chat_template

from troll.common.user_files import load_callable
from troll.experiment.files import parse_experiment, read_run_file
from troll.tasks.registry import get_task
from troll.training import run as training_run
from troll.training import user_functions
from troll.training.batches import loss_mask
from troll.training.run import train_run
from troll.training.trainer import TrustRegionTrainer
from troll.training.user_functions import Environment, load_environment, load_reward, load_tools


@pytest.fixture
def own_file(repository, tmp_path):
    """Writes an example of the page to a file."""
    page = (repository / "docs/adding.md").read_text()
    blocks = re.findall(r"```python\n# file: (my_\w+\.py)\n(.*?)```", page, re.DOTALL)

    def write(name):
        path = tmp_path / name
        path.write_text(dict(blocks)[name])
        return str(path)

    return write


SMALL = {"rollout_batches": 2, "prompts_per_batch": 2, "responses_per_prompt": 4, "mini_batches": 2}


def trained(configure, base, data, out, **changes):
    config = read_run_file(configure(out, **SMALL | changes) / "run.yaml")
    train_run(config, base, data, out)
    return metrics(out)


def test_a_reward_model_is_trained_on_and_the_verifier_is_logged(
    configure, tiny_base, run_data, own_file, tmp_path
):
    name = f"{own_file('my_rewards.py')}:noisy_verifier"
    rows = trained(configure, tiny_base, run_data, tmp_path, reward=name, validate_every=1)
    first, last = rows[0], rows[-1]
    assert first["success"] == first["validation_success"] == 0.0, "a random model solves nothing"
    assert first["reward"] != 0 and abs(first["reward"]) < 0.5 and last["validation_reward"] != 0
    assert first["groups_without_signal"] == 0 and first["grad_norm"] > 0
    problems = get_task("chains").load(run_data / "train.jsonl")[:2]
    reward = load_reward(name)
    right = [f"\\boxed{{{problem.answer}}}" for problem in problems]
    assert min(reward(problems, right)) > 0.3 and reward(problems, right) == reward(problems, right)


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("return [1.0]", ("[1.0]",)),
        ("return [1.0, float('nan')]", ("[1.0, nan]",)),
        ("return None", ("None",)),
        ("return ['right', 'wrong']", ("['right', 'wrong']",)),
    ],
)
def test_a_reward_that_is_no_number_for_each_response_is_refused(tmp_path, body, facts):
    (tmp_path / "bad.py").write_text(f"def reward(problems, responses):\n    {body}\n")
    with refused(f"{tmp_path}/bad.py:reward", "2 responses", *facts):
        load_reward(f"{tmp_path}/bad.py:reward")(["a", "b"], ["", ""])


def test_a_module_may_be_the_reward(tmp_path):
    source = "import torch\nclass Length(torch.nn.Module):\n    def forward(self, problems, texts):\n"
    source += "        return torch.tensor([float(len(t)) for t in texts])\nlength = Length()\n"
    (tmp_path / "model.py").write_text(source)
    assert load_reward(f"{tmp_path}/model.py:length")(["a", "b"], ["one", ""]) == [3.0, 0.0]


@pytest.mark.parametrize(
    ("expression", "result"),
    [("3 + 4 * 2", "11"), ("-3*2 - 4", "-10"), ("7", "7"), ("2*3*4-5*6+1", "-5")],
)
def test_the_calculator_calculates(own_file, expression, result):
    assert load_callable(f"{own_file('my_tools.py')}:calculator", "")(expression) == result


@pytest.mark.parametrize(
    "hostile", ["__import__('os')", "1 +", "", "9" * 10, "1" + "+1" * 21, "2**9", "٣", 5, None]
)
def test_the_calculator_refuses_all_else(own_file, hostile):
    with pytest.raises((ValueError, TypeError)):
        load_callable(f"{own_file('my_tools.py')}:calculator", "")(hostile)


def call(expression):
    return call_of("calculator", expression=expression)


def call_of(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Scripted(TrustRegionTrainer):
    """A policy that calls the calculator and answers with its result, or one more in odd rows."""

    problems: dict
    seen: list
    interrupt_at = None

    def _generate_single_turn(self, prompt_ids, *_, **__):
        if self.interrupt_at == self.rollout_batch and self.model.training:
            raise KeyboardInterrupt
        texts = self.processing_class.batch_decode(prompt_ids)
        said = [self.said(number, text) for number, text in enumerate(texts)]
        end = self.processing_class.eos_token_id
        return [[*self.processing_class(text).input_ids, end] for text in said], None

    def said(self, number, text):
        if result := re.search(r"<tool_response>\n(-?\d+)\n</tool_response>", text):
            return f"\\boxed{{{int(result[1]) + number % 2}}}"
        answer = next(problem.answer for problem in self.problems if problem.prompt.strip() in text)
        return call("__import__('os')" if number == 3 else f"{answer} + 0")

    def _compute_loss(self, model, inputs):
        self.seen.append(inputs)
        return super()._compute_loss(model, inputs)


class Presses(Scripted):
    """A policy that presses the digits of the answer, wrongly in odd rows, and claims the opposite."""

    def said(self, number, text):
        answer = int(next(problem.answer for problem in self.problems if problem.prompt.strip() in text))
        shown = re.findall(r"<tool_response>\n(\d)\n</tool_response>", text)
        if number == 2 and not shown:
            return "nothing"  # and never presses a key
        row = int(shown[0]) if shown else number  # later turns have only the responses that go on
        presses = [("=", row), ("*", 0), ("+", answer), ("+", row % 2)]
        if len(shown) < len(presses):
            operation, digit = presses[len(shown)]
            return call_of("press", operation=operation, digit=digit)
        return f"\\boxed{{{(answer + 1 - row % 2) % 10}}}"


@pytest.fixture
def chat_base(tiny_base, run_data, tmp_path, monkeypatch):
    """Makes a base model whose chat template has tools, for a scripted policy."""
    if user_functions.READS_CALLS_WITH_JMESPATH:
        pytest.importorskip("jmespath")
    base = tmp_path / "chat"
    shutil.copytree(tiny_base, base)
    (base / "chat_template.jinja").write_text(qwen3_chat_template)
    facts = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(facts | {"max_position_embeddings": 8192}))
    task = get_task("chains")
    files = (run_data / f"{split}.jsonl" for split in ("train", "validation"))
    Scripted.problems = [problem for file in files for problem in task.load(file)]

    def scripted(policy):
        policy.seen, policy.interrupt_at = [], None
        monkeypatch.setattr(training_run, "TrustRegionTrainer", policy)
        return base

    return scripted


@pytest.fixture
def with_tools(chat_base, own_file):
    """The base model of a policy that calls a tool, and the name of the calculator."""
    return chat_base(Scripted), [f"{own_file('my_tools.py')}:calculator"]


def test_a_response_calls_a_tool_and_only_what_was_sampled_is_trained_on(
    configure, run_data, with_tools, tmp_path
):
    base, tools = with_tools
    options = {"tools": tools, "max_response_tokens": 400, "overlong": {"buffer": 100}, "validate_every": 1}
    rows = trained(configure, base, run_data, tmp_path / "run", **options)
    # Odd rows are wrong; one reads an error in place of a result, and calls again.
    assert rows[0]["success"] == 0.5 and rows[0]["tools/call_frequency"] > 1
    assert 0 < rows[0]["tools/failure_frequency"] < 1 and rows[0]["validation_success"] > 0
    tokenizer = training_run.load_policy_tokenizer(base)
    for inputs in Scripted.seen:
        for ids, mask, kept, length in zip(
            inputs["completion_ids"],
            loss_mask(inputs).bool(),
            inputs["completion_mask"].bool(),
            inputs["response_lengths"].tolist(),
            strict=True,
        ):
            text, sampled = tokenizer.decode(ids[kept]), tokenizer.decode(ids[mask])
            assert "<tool_response>" in text and "<tool_response>" not in sampled
            assert "<tool_call>" in sampled and length == int(mask.sum()) < int(kept.sum())


def check_resume(policy, tmp_path, train):
    """A run that the scripted policy interrupts ends with the numbers and weights of an uninterrupted one."""
    whole = train(tmp_path / "whole")
    policy.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut")
    policy.interrupt_at = None
    assert train(tmp_path / "cut") == whole
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_a_run_with_tools_resumes_exactly(configure, run_data, with_tools, tmp_path):
    base, tools = with_tools
    options = {"tools": tools, "max_response_tokens": 400, "checkpoint_every": 1, "validate_every": 0}
    check_resume(Scripted, tmp_path, lambda out: trained(configure, base, run_data, out, **options))


def test_each_response_has_an_environment_of_its_own_which_gives_the_reward(
    configure, run_data, chat_base, own_file, tmp_path
):
    base, name = chat_base(Presses), f"{own_file('my_environment.py')}:Calculator"
    options = {"environment": name, "max_response_tokens": 1200, "validate_every": 2}
    rows = trained(configure, base, run_data, tmp_path / "run", **options)
    # Of 8 responses, the even ones have the answer on the display, but for one, and the odd ones in the text.
    assert rows[0]["reward"] == 3 / 8 and rows[0]["success"] == 4 / 8
    assert rows[0]["tools/call_frequency"] == 7 * 4 / 8 and rows[0]["tools/failure_frequency"] == 0
    assert 0 < rows[0]["validation_reward"] < 1 and 0 < rows[0]["validation_success"] < 1
    rewards = torch.cat([inputs["rewards"] for inputs in Presses.seen])
    expected = [1.0, 0, 0, 0, 1.0, 0, 1.0, 0] * 4  # two batches, each trained on twice
    assert sorted(rewards.tolist()) == sorted(expected)


def test_an_environment_without_a_reward_leaves_it_to_the_verifier(
    configure, run_data, chat_base, own_file, tmp_path
):
    path = own_file("my_environment.py")
    source = Path(path).read_text().split("    def get_reward")[0]
    Path(path).write_text(source.replace("= int(problem.answer)", '= 0\n        return " Press keys."'))
    base = chat_base(Presses)
    options = {"environment": f"{path}:Calculator", "max_response_tokens": 1200}
    rows = trained(configure, base, run_data, tmp_path / "run", **options)
    assert rows[0]["success"] == 4 / 8 and "reward" not in rows[0]
    prompts = training_run.load_policy_tokenizer(base).batch_decode(Presses.seen[0]["prompt_ids"])
    assert all(" Press keys.<|im_end|>" in prompt for prompt in prompts)


@pytest.mark.slow
def test_a_run_with_an_environment_resumes_exactly(configure, run_data, chat_base, own_file, tmp_path):
    base, name = chat_base(Presses), f"{own_file('my_environment.py')}:Calculator"
    options = {"environment": name, "max_response_tokens": 1200, "checkpoint_every": 1, "validate_every": 0}
    check_resume(Presses, tmp_path, lambda out: trained(configure, base, run_data, out, **options))


METHODS = "def reset(self, problem):\n        pass\n    def go(self):\n        'Goes.'\n"


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("def go(self):\n        'Goes.'", ("bad.py:Room", "reset(self, problem)")),
        ("def reset(self, problem):\n        pass", ("bad.py:Room", "method")),
        (
            "def reset(self, problem):\n        pass\n    def go(self, x):\n        pass",
            ("bad.py:Room", "docstring"),
        ),
        ("def __init__(self, size):\n        pass", ("bad.py:Room", "arguments", "size")),
        (
            f"{METHODS}    async def get_reward(self):\n        return 1.0",
            ("bad.py:Room", "get_reward", "async"),
        ),
        (METHODS, ("chat template",)),
        (f"{METHODS}    def get_reward(self):\n        return 1.0", ("get_reward", "training.reward")),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(tiny_base, tmp_path, body, facts):
    (tmp_path / "bad.py").write_text(f"class Room:\n    {body}\n")
    tokenizer = training_run.load_policy_tokenizer(tiny_base)
    reward = "own.py:reward" if "return 1.0" in body else None
    with refused("training.environment", *facts):
        load_environment(f"{tmp_path}/bad.py:Room", {}, tokenizer, reward=reward)


@pytest.mark.parametrize("value", ["float('nan')", "None", "'much'"])
def test_an_environment_whose_reward_is_no_number_is_refused(value):
    room = SimpleNamespace(reset=None, get_reward=lambda: eval(value))
    with refused("room", "get_reward", eval(value)):
        Environment(lambda: room, {}, True, "room")().get_reward()


def test_a_release_that_needs_another_package_to_read_calls_names_it(tiny_base, own_file, monkeypatch):
    monkeypatch.setattr(user_functions, "READS_CALLS_WITH_JMESPATH", True)
    monkeypatch.setattr(user_functions, "find_spec", lambda _: None)
    tokenizer = training_run.load_policy_tokenizer(tiny_base)
    with refused("training.tools", "trl", "pip install jmespath"):
        load_tools([f"{own_file('my_tools.py')}:calculator"], tokenizer)


def test_tools_that_cannot_be_used_are_refused(tiny_base, own_file, tmp_path):
    tokenizer = training_run.load_policy_tokenizer(tiny_base)
    with refused("training.tools", "chat template"):
        load_tools([f"{own_file('my_tools.py')}:calculator"], tokenizer)
    (tmp_path / "bare.py").write_text("def tool(x):\n    return x\n")
    with refused("training.tools", f"{tmp_path}/bare.py:tool", "docstring"):
        load_tools([f"{tmp_path}/bare.py:tool"], tokenizer)


@pytest.mark.parametrize(
    ("training", "facts"),
    [
        ({"reward": "nothing"}, ("training.reward", "'nothing'", "my_file.py:my_function")),
        ({"reward": "{}:noisy_verifer"}, ("training.reward", "'noisy_verifier'")),
        ({"tools": ["none.py:f"]}, ("training.tools", "none.py")),
        ({"tools": ["{}:noisy_verifier"]}, ("training.tools", "chat template")),
        ({"environment": "{}:Room"}, ("training.environment", "my_rewards.py", "'Room'")),
        ({"environment": "{}:noisy_verifier"}, ("training.environment", "chat template")),
        (
            {"reward": "{}:noisy_verifier", "environment": "{folder}/my_environment.py:Calculator"},
            ("get_reward", "training.reward", "noisy_verifier"),
        ),
    ],
)
def test_an_experiment_that_names_what_cannot_be_used_is_refused(repository, own_file, training, facts):
    import yaml

    path = own_file("my_rewards.py")
    own_file("my_environment.py")
    data = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    named = json.dumps(training).replace("{}", path).replace("{folder}", str(Path(path).parent))
    data["training"] |= json.loads(named)
    with refused(*facts):
        parse_experiment(data, "reduced")
