"""Further groups of `gpu_check.py` (whole steps, equality, memory, products, sharding), and their order."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gpu_cases import (
    BEFORE,
    CLIP,
    CLIP_LONG,
    CLIP_STEP,
    HEAD,
    LABELS,
    RULE,
    TOP_K,
    TROLL,
    TROLL_LONG,
    TROLL_STEP,
    Case,
    Data,
    Groups,
    Sizes,
    Value,
    largest,
    relative,
    using,
)
from gpu_rows import Loss, heads, losses, passes, rules, trl_head
from troll.algorithms.lm_head import lm_head


def steps(s: Sizes, data: Data) -> Groups:
    """Whole optimiser steps of a model, and the scoring of a rollout."""
    from step_worker import Learner, Work

    responses, prompt, response = s.step
    learners: dict[str, Learner] = {}
    scoring, stepping = [], []
    for name, method, keep in (
        (CLIP_STEP, "clip", s.keeps[0]),
        *((TROLL_STEP.format(keep), "troll", keep) for keep in s.keeps),
    ):
        learner = Learner(Work(method, s.shape, responses, prompt, response, keep, 1, s.device))
        learners[name] = learner
        for backend in (s.fast, BEFORE):
            share = learner.projected_share if method == "troll" else None
            call = functools.partial(_with_backend, backend, learner.step)
            stepping.append(Case(name, backend, call, share=share, seconds=4.0))
            call = functools.partial(_with_backend, backend, learner.score)
            scoring.append(Case(name.replace("step", "scoring"), backend, call))
    for learner in learners.values():
        _with_backend(s.fast, learner.score)
        learner.leave_balls()
    yield stepping
    yield scoring


def _with_backend(backend: str, call: Callable[[], Any]) -> None:
    with using(backend):
        call()


def exactness(s: Sizes, data: Data) -> Groups:
    """The head in float64 compared with full logits, and whether repeated updates are bitwise equal."""

    def full_logits() -> dict[str, Value]:
        width = min(64, s.width)
        leaves = []
        for _ in range(2):
            pair = (data.hidden[: s.few, :width], data.weight[:, :width])
            leaves.append([x.detach().double().requires_grad_() for x in pair])
        labels, keep = data.labels[: s.few], s.keeps[0]
        support = data.top(keep, s.fast).token_ids[: s.few]
        output = lm_head(*leaves[0], labels, support=support)
        assert output.distribution is not None
        ours = [output.label_log_probs, output.entropy, output.distribution.log_probs]
        ours.append(output.distribution.tail_log_prob)
        log_probs = (leaves[1][0] @ leaves[1][1].T).log_softmax(-1)
        used = support >= 0
        taken = torch.where(used, support, labels[:, None])
        rest = log_probs.scatter(1, taken, -torch.inf).logsumexp(-1)
        at = log_probs.gather(1, support.clamp(min=0)).masked_fill(~used, -torch.inf)
        theirs = [
            log_probs.gather(1, labels[:, None]).squeeze(1),
            -(log_probs.exp() * log_probs).sum(-1),
            at,
            rest,
        ]
        error = max(largest(torch.where(b.isfinite(), a - b, 0.0)) for a, b in zip(ours, theirs, strict=True))
        upstream = [torch.randn_like(x) for x in theirs]
        for outputs in (ours, theirs):
            parts = [
                (torch.where(x.isfinite(), x, 0.0) * u).sum() for x, u in zip(outputs, upstream, strict=True)
            ]
            torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        names = ("dH", "dW")
        return {"log-probs": Value(error, 1e-10)} | {
            name: Value(relative(a.grad, b.grad), 1e-10)
            for name, a, b in zip(names, leaves[0], leaves[1], strict=True)
        }

    yield [Case("head in float64, D = 64, against full logits", "auto", None, exact=full_logits)]

    def repeated(keep: int | None) -> dict[str, Value]:
        ends = []
        for _ in range(2):
            own = Data.__new__(Data)
            own.__dict__.update(data.__dict__)
            own.hidden = data.hidden.detach().clone().requires_grad_()
            own.weight = data.weight.detach().clone().requires_grad_()
            loss = Loss(own, keep, s.fast)
            for _ in range(s.updates):
                loss.update()
                with torch.no_grad():
                    for leaf in (own.hidden, own.weight):
                        leaf -= 1e-3 * leaf.grad
                own.forget()
            ends.append((own.hidden.detach(), own.weight.detach()))
        unequal = sum(int((a != b).sum()) for a, b in zip(*ends, strict=True))
        moved = largest(ends[0][1] - data.weight)
        return {"numbers that differ": Value(unequal, 0.0), "largest change of the weight": Value(moved)}

    for name, keep in (("clip", None), (f"TROLL, K = {s.keeps[0]}", s.keeps[0])):
        exact = functools.partial(repeated, keep)
        yield [Case(f"{s.updates} updates twice, {name}", s.fast, None, exact=exact)]


def long_batches(s: Sizes, data: Data) -> Groups:
    """Peak memory with many tokens."""
    long = Data(replace(s, tokens=s.long), data.weight)
    trl = trl_head()
    group, flops = [], 4 * long.sizes.product
    for backend in (s.fast, BEFORE):
        group.append(Case(CLIP_LONG.format(s.long), backend, Loss(long, None, backend), flops=flops))
        loss = Loss(long, s.keeps[0], backend)
        group.append(Case(TROLL_LONG.format(s.long), backend, loss, flops=flops, share=loss.share))
    if trl is not None:
        loss = Loss(long, None, s.fast)
        new = lambda: long.policy(trl(long.hidden, long.weight, long.labels))  # noqa: E731
        group.append(Case(CLIP_LONG.format(s.long), "TRL", functools.partial(loss, new), flops=flops))
    for case in group:
        case.seconds = 0.5
    yield group


def products(s: Sizes, data: Data) -> Groups:
    """Matrix products as in the head, which limit all other cases that use cuBLAS."""
    if s.device != "cuda":
        return  # CPUs do not support products that return float32 from bfloat16
    n, d, c = s.tokens, s.width, s.columns
    hidden, block, rows = data.hidden.detach(), data.weight.detach()[:c], min(512, n)
    wide_tile, tile = torch.empty(n, c, device=s.device), torch.empty(n, c, device=s.device, dtype=s.dtype)
    of_hidden, of_weight = (
        torch.zeros(n, d, device=s.device),
        torch.empty(c, d, device=s.device, dtype=s.dtype),
    )
    whole = torch.empty(rows, s.vocab, device=s.device)
    float32: dict[str, Any] = {"out_dtype": torch.float32}
    every: list[tuple[str, Callable[[], Any], float]] = [
        (f"logits {n} x {c} in bfloat16", lambda: torch.mm(hidden, block.T, out=tile), n * c),
        (f"logits {n} x {c} in float32", lambda: torch.mm(hidden, block.T, out=wide_tile, **float32), n * c),
        (
            f"dH {n} x {d}, added in float32",
            lambda: torch.addmm(of_hidden, tile, block, out=of_hidden, **float32),
            n * c,
        ),
        (f"dW {c} x {d} in bfloat16", lambda: torch.mm(tile.T, hidden, out=of_weight), n * c),
        (
            f"logits {rows} x {s.vocab} in float32",
            lambda: torch.mm(hidden[:rows], data.weight.detach().T, out=whole, **float32),
            rows * s.vocab,
        ),
    ]
    yield [
        Case(f"product: {name}", "cuBLAS", run, flops=2.0 * d * size, seconds=0.3)
        for name, run, size in every
    ]


def wide_supports(s: Sizes, data: Data) -> Groups:
    """The largest support."""
    yield from passes(s, data, (s.largest,))
    yield from rules(s, data, (s.largest,))


def sharded(s: Sizes, data: Data) -> Groups:
    """FSDP2 on one process: loss and gradients compared with those of the unsharded model."""

    def errors() -> dict[str, Value]:
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        from step_worker import Learner, Work

        results = []
        dist.init_process_group(
            "nccl" if s.device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
        )
        try:
            for shard in (False, True):
                shape = "20m" if s.device == "cuda" else "tiny"
                learner = Learner(Work("troll", shape, *s.step, s.keeps[0], 1, s.device))
                if shard:
                    for layer in learner.model.model.layers:
                        fully_shard(layer)
                    fully_shard(learner.model)
                torch.manual_seed(0)
                learner.score()
                learner.leave_balls()
                assert learner.old.distribution is not None
                new = learner.policy(support=learner.old.distribution.token_ids)
                learner.rule(
                    new, learner.old, learner.advantages, learner.mask.float()
                ).per_token.sum().backward()
                weight = learner.model.get_input_embeddings().weight
                full = getattr(weight.grad, "full_tensor", lambda weight=weight: weight.grad)
                results.append((new.log_probs.detach(), full()))
                sharded_now = sum(hasattr(p, "full_tensor") for p in learner.model.parameters())
                count = sum(1 for _ in learner.model.parameters())
        finally:
            dist.destroy_process_group()
        (log_probs, gradient), (sharded_log_probs, sharded_gradient) = results
        return {
            "log-probs": Value(largest(sharded_log_probs - log_probs), 1e-2),
            "gradient of the embedding": Value(relative(sharded_gradient, gradient), 2e-2),
            "parameters that are not sharded": Value(count - sharded_now, 0.0),
        }

    yield [Case("FSDP2, one process", s.fast, None, exact=errors)]


SECTIONS: dict[str, Callable[[Sizes, Data], Groups]] = {
    "Passes over the vocabulary": passes,
    "The head, forward and backward": heads,
    "Head and loss": losses,
    "A whole step": steps,
    "The rule": rules,
    "Equality and repeatability": exactness,
    "Memory": long_batches,
    "Matrix products": products,
    "The largest support": wide_supports,
    "Sharding": sharded,
}
"""Sorted by importance: if the budget runs out, the last ones are skipped."""


def goals(s: Sizes, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the value of every goal from the rows so far, and its upper limit (None: no limit)."""
    return list(_goals(s, {(row["name"], row["backend"]): row for row in rows if "failed" not in row}))


def _goals(s: Sizes, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    fast = s.fast
    step, k, long = CLIP_STEP, s.keeps[0], s.long
    ratios: list[tuple[str, tuple[str, str], tuple[str, str], str, float | None]] = []
    for keep in s.keeps:
        top, troll, whole = (name.format(keep) for name in (TOP_K, TROLL, TROLL_STEP))
        ratios += [
            (f"time of the {top}, over label log-probs", (top, fast), (LABELS, fast), "ms", 1.3),
            (
                f"time of TROLL's head and loss over clip's, K = {keep}",
                (troll, fast),
                (CLIP, fast),
                "ms",
                1.1,
            ),
            (f"time of TROLL's step over clip's, K = {keep}", (whole, fast), (step, fast), "ms", 1.02),
        ]
    clip, troll = CLIP_LONG.format(long), TROLL_LONG.format(long)
    ratios += [
        ("time of clip's head over TRL's", (HEAD, fast), (HEAD, "TRL"), "ms", 1.0),
        (
            f"peak memory of TROLL over plain torch's, {long} tokens",
            (troll, fast),
            (troll, BEFORE),
            "peak_mib",
            1.0,
        ),
        (f"peak memory of TROLL over clip's, {long} tokens", (troll, fast), (clip, fast), "peak_mib", None),
        ("peak memory of TROLL over clip's on TRL's head", (troll, fast), (clip, "TRL"), "peak_mib", None),
    ]
    for what, above, below, column, limit in ratios:
        if above in rows and below in rows and rows[below].get(column):
            value = rows[above][column] / rows[below][column]
            yield {"goal": what, "value": value, "limit": limit}
    for name in (TOP_K, RULE, TROLL, TROLL_STEP):
        row = rows.get((name.format(k), fast), {})
        if row.get("waits") is not None:
            yield {"goal": f"waits of the host: {name.format(k)}", "value": row["waits"], "limit": 0}
