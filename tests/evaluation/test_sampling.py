import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from refusals import refused
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from troll.common.files import read_jsonl
from troll.evaluation import sampling
from troll.evaluation.engines import decoding
from troll.evaluation.engines.decoding import decode_batch, draw_tokens, uniform_stream
from troll.evaluation.sampling import sample

from .conftest import Prompt

PROMPTS = [
    Prompt(f"t/{i}", text) for i, text in enumerate(["a", "hello world", "abc 123", "zzzzzzzzzzzzzzzzzzzz q"])
]


def draw(checkpoint, path, problems=PROMPTS, **changes):
    settings = {"samples_per_problem": 4, "max_new_tokens": 12, "seed": 3, "device": "cpu", **changes}
    sample(checkpoint, problems, out=path, **settings)
    return read_jsonl(path)


@pytest.fixture(scope="module")
def model(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint).eval()


def test_rows_are_complete_and_in_order(checkpoint, tmp_path):
    rows = draw(checkpoint, tmp_path / "s.jsonl")
    assert [(row["task_id"], row["sample"]) for row in rows] == [
        (p.task_id, j) for p in PROMPTS for j in range(4)
    ]
    assert {tuple(row) for row in rows} == {
        ("task_id", "sample", "completion", "tokens", "finished", "prompt_digest")
    }
    assert all(1 <= row["tokens"] <= 12 for row in rows)
    assert {row["finished"] for row in rows} == {True, False}
    for row in rows:
        # one character a token; the end counts as a token and leaves no text
        assert len(row["completion"]) == row["tokens"] - row["finished"]
        assert row["finished"] or row["tokens"] == 12
    assert not (tmp_path / "s.jsonl.parts").exists()


@pytest.mark.parametrize("batch_size", [1, 3, 5, 100])
def test_text_does_not_depend_on_the_batch(checkpoint, tmp_path, batch_size):
    expected = draw(checkpoint, tmp_path / "a.jsonl", batch_size=7)
    assert draw(checkpoint, tmp_path / "b.jsonl", batch_size=batch_size) == expected


def test_text_does_not_depend_on_the_other_problems_or_the_number_of_samples(checkpoint, tmp_path):
    whole = {(r["task_id"], r["sample"]): r for r in draw(checkpoint, tmp_path / "a.jsonl")}
    part = draw(checkpoint, tmp_path / "b.jsonl", PROMPTS[2:0:-1], samples_per_problem=2)
    assert part == [whole[row["task_id"], row["sample"]] for row in part]


def test_a_shorter_limit_gives_the_start_of_the_text(checkpoint, tmp_path):
    long = draw(checkpoint, tmp_path / "a.jsonl")
    short = draw(checkpoint, tmp_path / "b.jsonl", max_new_tokens=5)
    assert all(a["completion"].startswith(b["completion"]) for a, b in zip(long, short, strict=True))


def test_seeds_and_samples_differ(checkpoint, tmp_path):
    first, second = draw(checkpoint, tmp_path / "a.jsonl"), draw(checkpoint, tmp_path / "b.jsonl", seed=4)
    assert len({row["completion"] for row in first[4:8]}) > 1
    assert [row["completion"] for row in first] != [row["completion"] for row in second]


def test_greedy_equals_transformers(checkpoint, model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = draw(checkpoint, tmp_path / "a.jsonl", temperature=0, samples_per_problem=1)
    for row, problem in zip(rows, PROMPTS, strict=True):
        ids = tokenizer(problem.prompt, return_tensors="pt").input_ids
        whole = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert row["completion"] == tokenizer.decode(whole, skip_special_tokens=True)
        assert row["tokens"] == len(whole)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_the_models_probabilities(model, temperature):
    """First and second tokens of 4,000 samples against the exact distribution, in a padded batch."""
    prompts, count = [[5, 6, 7], [9] * 11], 4000
    uniforms = np.stack([uniform_stream(seed, 2) for seed in range(count)])
    responses = decode_batch(
        model, prompts, [seed % 2 for seed in range(count)], uniforms, temperature=temperature, stop_ids=set()
    )
    for which, prompt in enumerate(prompts):
        mine = responses[which::2]
        with torch.inference_mode():
            first = torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double() / temperature, -1)
            follow = model(torch.tensor([[*prompt, token] for token in range(len(first))])).logits[:, -1]
        second = first @ torch.softmax(follow.double() / temperature, -1)
        for place, expected in ((0, first), (1, second)):
            counts = Counter(response[place] for response in mine)
            observed = np.array([counts[token] for token in range(len(expected))])
            wanted = expected.numpy() * len(mine)
            rare = wanted < 5  # pool what a chi-square test cannot take
            observed = np.append(observed[~rare], observed[rare].sum())
            wanted = np.append(wanted[~rare], wanted[rare].sum())
            wanted *= observed.sum() / wanted.sum()
            if wanted[-1] == 0:
                observed, wanted = observed[:-1], wanted[:-1]
            assert stats.chisquare(observed, wanted).pvalue > 1e-4


def test_dropping_finished_rows_changes_nothing(model, monkeypatch):
    uniforms = np.stack([uniform_stream(seed, 20) for seed in range(24)])
    owners = [seed % 3 for seed in range(24)]
    prompts = [[3, 4], [7] * 9, [1, 2, 3, 4, 5]]

    def run():
        return decode_batch(model, prompts, owners, uniforms, temperature=1.0, stop_ids={0, 5, 6})

    often = run()
    monkeypatch.setattr(decoding, "_DROP_SHARE", 2.0)
    assert run() == often
    assert len({len(response) for response in often}) > 3
    for response in often:
        assert not {0, 5, 6} & set(response[:-1])


SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 4, "bos_token_id": None}
ATTENTION = {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
STATES = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64, "mamba_n_groups": 1}
LINEAR = {f"linear_num_{kind}_heads": 2 for kind in ("key", "value")}
LINEAR |= {f"linear_{kind}_head_dim": 8 for kind in ("key", "value")}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
RECURRENT = {
    "mamba": ("MambaConfig", {"state_size": 8}),
    "mamba2": (
        "Mamba2Config",
        {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    ),
    "falcon-h1": ("FalconH1Config", ATTENTION | STATES | {"mamba_chunk_size": 8}),
    "lfm2": ("Lfm2Config", ATTENTION | {"full_attn_idxs": [1, 3]}),
    "qwen3-next": ("Qwen3NextConfig", ATTENTION | LINEAR | EXPERTS | {"shared_expert_intermediate_size": 16}),
    # Models that take no cache of transformers' own kind:
    "minimax": ("MiniMaxConfig", ATTENTION),
    "rwkv": ("RwkvConfig", {"attention_hidden_size": 32}),
    "xlstm": ("xLSTMConfig", {"num_heads": 2}),
}


WITH_CACHE = [*sorted({*RECURRENT} - {"minimax", "rwkv", "xlstm"}), "llama", "qwen3", "gpt2"]


@pytest.mark.parametrize("family", WITH_CACHE)
def test_a_model_with_a_cache_reads_each_token_once(family):
    """Whatever transformers calls its cache: without it the time grows with the square of the length."""
    plain = {
        "llama": ("LlamaConfig", ATTENTION),
        "qwen3": ("Qwen3Config", ATTENTION),
        "gpt2": ("GPT2Config", {"num_attention_heads": 2}),
    }
    kind, settings = (RECURRENT | plain)[family]
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES | settings)).eval()
    read = []
    model.get_input_embeddings().register_forward_hook(lambda _, ids, __: read.append(tuple(ids[0].shape)))
    prompts, owners = [[5, 6, 7], [9] * 11], [0, 1, 1]
    decode_batch(model, prompts, owners, np.zeros((3, 6)), temperature=0, stop_ids=set())
    assert read == [(2, 11)] + [(3, 1)] * 5


@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_models_give_in_a_batch_what_they_give_alone(family):
    """Prompts of several lengths, shared by rows that end at different steps and are dropped."""
    kind, settings = RECURRENT[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES | settings)).eval()
    prompts, owners, stops = (
        [[5, 6, 7], [9] * 11, [1, 2, 3, 4, 5, 6], [8]],
        [0, 1, 2, 3, 1, 0],
        set(range(15)),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
        alone = []
        for prompt in prompts:
            ids = list(prompt)
            while len(ids) < len(prompt) + 12 and (len(ids) == len(prompt) or ids[-1] not in stops):
                ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            alone.append(ids[len(prompt) :])
    found = decode_batch(model, prompts, owners, np.zeros((6, 12)), temperature=0, stop_ids=stops)
    assert found == [alone[owner] for owner in owners]
    assert len(set(map(len, alone))) > 1


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(4, 1)
    uniforms = torch.tensor([0.0, 0.4999999999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw_tokens(logits, uniforms, 1.0).tolist() == [1, 1, 3, 3]


def test_an_interrupted_call_goes_on_and_ends_the_same(checkpoint, tmp_path, monkeypatch):
    expected = draw(checkpoint, tmp_path / "a.jsonl", batch_size=3)
    decoded, resumed = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "decode_batch", _counted(decoded, stop_after=2))
        with pytest.raises(KeyboardInterrupt):
            draw(checkpoint, tmp_path / "b.jsonl", batch_size=3)
    assert not (tmp_path / "b.jsonl").exists()
    monkeypatch.setattr(decoding, "decode_batch", _counted(resumed))
    assert draw(checkpoint, tmp_path / "b.jsonl", batch_size=5) == expected
    assert sum(resumed) == len(expected) - sum(decoded)


RENAMED = [replace(problem, task_id=f"other/{number}") for number, problem in enumerate(PROMPTS)]


@pytest.mark.parametrize("other", [{"seed": 99}, {"problems": RENAMED}], ids=["seed", "names"])
def test_what_another_setting_left_behind_is_not_used(checkpoint, tmp_path, other):
    path = tmp_path / "s.jsonl"
    expected = draw(checkpoint, tmp_path / "a.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "write_jsonl", stop_after_parts := StopWhole(path))
        with pytest.raises(KeyboardInterrupt):
            draw(checkpoint, path, **other)
    assert stop_after_parts.parts > 0
    assert draw(checkpoint, path) == expected


def test_samples_of_prompts_that_were_read_otherwise_are_not_continued(
    checkpoint, tmp_path, monkeypatch, capsys
):
    """The tokenizer's files may be the same, and its library another."""
    path = tmp_path / "s.jsonl"
    expected = draw(checkpoint, tmp_path / "a.jsonl")
    encode = sampling.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "encode", lambda *a, **k: [[*ids, 3] for ids in encode(*a, **k)])
        patch.setattr(decoding, "decode_batch", _counted([], stop_after=2))
        with pytest.raises(KeyboardInterrupt):
            draw(checkpoint, path, batch_size=3)
    assert len(list((tmp_path / "s.jsonl.parts").glob("*.jsonl"))) == 2
    assert draw(checkpoint, path, batch_size=3) == expected
    assert "other token ids" in capsys.readouterr().err


def _counted(rows, stop_after=None):
    """Decodes batches, whose sizes it appends to ``rows``, until it is interrupted."""

    def decode(model, prompts, owners, *arguments, **settings):
        if len(rows) == stop_after:
            raise KeyboardInterrupt
        rows.append(len(owners))
        return decode_batch(model, prompts, owners, *arguments, **settings)

    return decode


class StopWhole:
    """Writes parts, but is interrupted before the whole."""

    def __init__(self, whole):
        self.whole, self.parts = whole, 0

    def __call__(self, path, rows):
        if path == self.whole:
            raise KeyboardInterrupt
        self.parts += 1
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"samples_per_problem": 0}, ("samples_per_problem", 0)),
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"max_new_tokens": 0}, ("max_new_tokens", 0)),
        ({"temperature": -1.0}, ("temperature", "-1.0")),
        ({"temperature": float("nan")}, ("temperature", "nan")),
        ({"max_new_tokens": 127}, ("t/1", "11 tokens", 127, "128 tokens")),
        ({"problems": []}, ("problems",)),
        ({"problems": [Prompt("t/0", "a")] * 2}, ("task_id", "'t/0'")),
        ({"problems": [Prompt("t/0", "")]}, ("t/0",)),
    ],
)
def test_bad_input_is_one_line(checkpoint, tmp_path, changes, facts):
    with refused("sampling", *facts):
        draw(checkpoint, tmp_path / "s.jsonl", **changes)
    assert not (tmp_path / "s.jsonl").exists()


def test_prompts_that_do_not_fit_may_be_cut_to_their_end(checkpoint, tmp_path):
    long = [Prompt("t/0", "b" * 200 + "a" * 100), Prompt("t/1", "a" * 100)]
    rows = draw(checkpoint, tmp_path / "a.jsonl", long, max_new_tokens=28, cut_prompts=True)
    assert [row.get("cut", False) for row in rows] == [True] * 4 + [False] * 4
    whole = draw(checkpoint, tmp_path / "b.jsonl", [Prompt("t/0", "a" * 100)], max_new_tokens=28)
    assert [row["completion"] for row in rows[:4]] == [row["completion"] for row in whole]
    with refused("sampling", "max_new_tokens 128", "128 tokens"):
        draw(checkpoint, tmp_path / "c.jsonl", long, max_new_tokens=128, cut_prompts=True)


def test_a_missing_checkpoint_is_named(tmp_path):
    with refused(tmp_path / "nowhere"):
        draw(tmp_path / "nowhere", tmp_path / "s.jsonl")
