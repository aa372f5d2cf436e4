"""Writes substitutes for the models of a rehearsal, and for public data sets that are not on this machine.

Models are replaced by tiny random ones of the same architecture, in a separate mirror. Rows are replaced by
sums and one-line functions in the format of the source, so that a rehearsal reads, converts, selects and
grades them like the real ones.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from troll.common.files import fresh_directory, write_jsonl, write_text
from troll.experiment.experiment import Experiment, Run
from troll.operations.rehearsal.sources import Source, known_models, source_of, sources_of, template_of
from troll.tasks.datasets import convert
from troll.tasks.datasets.catalogue import DATA_SETS, DataSet
from troll.training.tokenizer import make_tokenizer

# Enough for training, a third for testing, and 256 for validation if the source has no such split.
_ROWS = 900

Row = dict[str, Any]

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
_OWN: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {"query_pre_attn_scalar": 32},
}
# Keys of a real configuration that are not settings of a small one, or do not fit its two layers.
_LEFT_OUT = ("model_type", "quantization_config", "torch_dtype", "no_rope_layers", "max_window_layers")
_VOCABULARY, _CONTEXT = 512, 8192
_DEMONSTRATIONS = 3000
TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}<assistant> "


def write_models(directory: Path, experiment: Experiment, runs: Sequence[Run], tasks: Iterable[str]) -> None:
    """Writes a mirror (`troll.common.hub.MIRROR`) with a substitute for every pretrained model."""
    for seed, (model, source) in enumerate(sources_of(experiment, runs).values()):
        other = template_of(model)
        for wanted in [source, *([source_of(other)] if other and other != source.id else [])]:
            path, weights = directory / wanted.id, wanted is source
            if weights or not (path / "config.json").exists():
                tokenizer = wanted.directory or _tokenizer(directory.parent / "tokenizer", tasks)
                _write(path, wanted, tokenizer, seed, weights=weights)


def _tokenizer(directory: Path, tasks: Iterable[str]) -> Path:
    if not (directory / "tokenizer.json").exists():
        make_tokenizer({task: {} for task in tasks}, _VOCABULARY, _DEMONSTRATIONS, directory)
    return directory


def _write(path: Path, source: Source, of_tokenizer: Path, seed: int, *, weights: bool) -> None:
    if (path / "model.safetensors").exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(of_tokenizer)
    if source.directory is None:
        # An unknown model gets a template: `check_templates` reports models that are known to have none.
        tokenizer.chat_template = None if source.template is False else TEMPLATE
    config = _config(source, tokenizer)
    with fresh_directory(path) as directory:
        if weights:
            torch.manual_seed(seed)
            AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
        else:
            config.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        words = "Made by `troll rehearse`: random weights, for rehearsals only.\n"
        write_text(directory / "rehearsal.txt", words)


def _config(source: Source, tokenizer: Any) -> Any:
    """Returns a small configuration of the same architecture; Qwen3's if that is unknown."""
    settings: dict[str, Any]
    if source.directory is not None:
        facts = json.loads((source.directory / "config.json").read_text(encoding="utf-8"))
        kind, real = facts["model_type"], {key: facts[key] for key in facts if key not in _LEFT_OUT}
        settings = real | {key: size for key, size in _SIZES.items() if key in real or key != "head_dim"}
        if isinstance(real.get("layer_types"), list):
            settings["layer_types"] = real["layer_types"][: _SIZES["num_hidden_layers"]]
        vocabulary = max(int(real.get("vocab_size", 0)), len(tokenizer))
    else:
        known = known_models().get(source.id)
        kind, tied = (known.architecture, known.tied) if known else ("qwen3", True)
        settings, vocabulary = {**_SIZES, "tie_word_embeddings": tied}, len(tokenizer)
    settings |= {
        **_OWN.get(kind, {}),
        "vocab_size": vocabulary,
        "max_position_embeddings": _CONTEXT,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    return AutoConfig.for_model(kind, **settings)


def _forms(number: int) -> Mapping[convert.Convert, Row]:
    """Returns a row in the format of each converter."""
    left, right, name = 3 + number, 5 + 7 * number, f"add_{number}"
    question, answer = f"What is {left} plus {right}?", str(left + right)
    boxed = f"\\boxed{{{answer}}}"
    program = f"Read a whole number from standard input and print it plus {number}."
    tests = {"inputs": ["1\n", "2\n"], "outputs": [f"{1 + number}\n", f"{2 + number}\n"]}

    def chat(question: str) -> list[Row]:
        return [{"role": "system", "content": "Think."}, {"role": "user", "content": question}]

    def eurus(ability: str, question: str, truth: Any) -> Row:
        return {
            "prompt": chat(question),
            "ability": ability,
            "reward_model": {"ground_truth": truth},
            "extra_info": {"index": number},
        }

    return {
        convert.gsm8k: {"question": question, "answer": f"We add.\n#### {answer}"},
        convert.boxed: {"problem": question, "solution": f"It is ${boxed}$.", "level": "Level 1"},
        convert.answered: {"id": number, "problem": question, "answer": answer, "solution": f"${boxed}$"},
        convert.olympiadbench: {
            "id": number,
            "question": question,
            "final_answer": [answer],
            "solution": [f"It is {answer}."],
        },
        convert.dapo: {
            "index": f"sum-{number}",
            "prompt": chat(question),
            "reward_model": {"ground_truth": answer},
        },
        convert.eurus_math: eurus("math", question, answer),
        convert.eurus_code: eurus("code", program, tests),
        convert.mbpp: {
            "task_id": number,
            "text": f"Write a function that adds {number} to a number.",
            "code": f"def {name}(x):\n    return x + {number}\n",
            "test_list": [f"assert {name}(1) == {1 + number}", f"assert {name}(2) == {2 + number}"],
            "test_setup_code": "",
        },
    }


def _evalplus(number: int, owner: str) -> Row:
    name, body = f"add_{number}", f"    return x + {number}\n"
    whole = owner == "Mbpp"  # its solutions are whole functions; HumanEval's continue the prompt
    head = f"def {name}(x: int) -> int:\n"
    docstring = f'    """Add {number} to a number."""\n'
    return {
        "task_id": f"{owner}/{number}",
        "prompt": f'"""\nAdd {number} to a number.\nassert {name}(1) == {1 + number}\n"""\n'
        if whole
        else head + docstring,
        "entry_point": name,
        "canonical_solution": head + body if whole else body,
        "contract": "",
        "base_input": [[1], [2]],
        "plus_input": [[3]],
        "atol": 0,
        "assertion": f"assert {name}(1) == {1 + number}",
    }


def _rows(item: DataSet) -> list[Row]:
    if item.convert is convert.evalplus:
        # No real task has these numbers, some of which evalplus treats specially.
        owner = "HumanEval" if item.name.startswith("humaneval") else "Mbpp"
        return [_evalplus(number, owner) for number in range(9000, 9020)]
    numbers = range(1, 975) if item.convert is convert.mbpp else range(_ROWS)  # MBPP is split by number
    return [_forms(number)[item.convert] for number in numbers]


def write_rows(name: str, directory: Path) -> None:
    """Writes rows for every split of a data set: ``<directory>/<name>/<split>.jsonl``.

    Splits that the loader selects by number or column get all rows; others get separate rows.
    """
    item = DATA_SETS[name]
    rows = _rows(item)
    parts = dict.fromkeys(item.parts, rows)
    if len(parts) > 1 and item.convert not in (convert.mbpp, convert.evalplus):
        tested = slice([*parts].index("test"), None, len(parts))
        parts |= {"test": rows[tested], "train": rows.copy()}
        del parts["train"][tested]
    for split, chosen in parts.items():
        write_jsonl(directory / name / f"{split}.jsonl", chosen)
    if name == "humaneval":  # graded with the tests of HumanEval+
        write_rows("humaneval+", directory)
