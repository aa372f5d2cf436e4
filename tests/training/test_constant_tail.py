"""The paper's tail: old and new policy keep their own tokens, and a dropped token has 1e-12."""

from dataclasses import replace

import pytest
import torch
from trainer_cases import response_logits

from troll.algorithms.distributions import SparseLogProbs, align, constant_tail, sparsify
from troll.algorithms.divergences import kl_divergence
from troll.training.trainer import TrustRegionTrainer


class Recording(TrustRegionTrainer):
    """Keeps what the rule was given, and the dense policy at that moment."""

    def _compute_loss(self, model, inputs):
        rule, mask = self.policy_loss.trust_region, inputs["completion_mask"].bool()
        logits = response_logits(model, inputs)

        def record(new, old, *rest, **seed):
            self.seen.append((new, old, inputs, logits[mask] / self.temperature))
            return rule(new, old, *rest, **seed)

        loss = self.policy_loss
        self.policy_loss = replace(loss, trust_region=_Stand(rule, record))
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.policy_loss = loss


class _Stand:
    def __init__(self, rule, call):
        self._rule, self._call = rule, call

    def __call__(self, *arguments, **seed):
        return self._call(*arguments, **seed)

    def __getattr__(self, name):
        return getattr(self._rule, name)


def test_both_policies_keep_their_own_tokens_and_the_others_have_the_constant(make):
    trainer = make(Recording, trust_region="troll", tail="constant", keep=6, dropped_mass=0.05)
    trainer.seen = []
    trainer.train()
    moved, least = 0, 1.0
    for new, old, inputs, logits in trainer.seen:
        mask = inputs["completion_mask"].bool()
        labels = inputs["completion_ids"][mask]
        dense = sparsify(logits, 6, 0.05, labels, tail="constant")
        # In the first step after sampling nothing has moved yet.
        exact = sparsify(logits, 6, 0.05, labels)
        kept = SparseLogProbs.from_batch(inputs, "old_").rows(mask) if "old_token_ids" in inputs else exact
        least = min(least, float(kept.log_probs.double().exp().sum(-1).min()))
        expected_new, expected_old = align(dense, constant_tail(kept, logits.shape[-1]), missing="default")
        found = new.distribution.rows(mask), old.distribution.rows(mask)
        distance = kl_divergence(found[0].atoms().detach().double(), found[1].atoms().double())
        expected = kl_divergence(expected_new.atoms().double(), expected_old.atoms().double())
        torch.testing.assert_close(distance, expected, rtol=1e-3, atol=1e-6)
        assert torch.equal(found[0].token_ids, found[1].token_ids)
        assert found[0].log_probs.requires_grad
        for side in found:
            total = side.atoms().detach().double().exp().sum(-1)
            torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)
        both = (found[0].token_ids >= 0).sum(-1)
        moved += int((both > (kept.token_ids >= 0).sum(-1)).sum())
    # What the constant tail leaves out is reported, not what it pretends to leave.
    logged = [row["kept_mass_min"] for row in trainer.state.log_history if "kept_mass_min" in row]
    assert least < 0.9 and min(logged) <= least + 1e-5 and trainer.constraint_check.worst["kept_mass"] < 0.9
    assert moved, "no step in which the new policy keeps a token that the old one had dropped"


@pytest.mark.parametrize("vocabulary", ["small", "wide"])
def test_positions_at_which_all_slots_are_taken_are_counted(make, monkeypatch, vocabulary):
    """Logged for the vocabularies of language models alone; a label that takes the last slot counts, too."""
    if vocabulary == "wide":
        monkeypatch.setattr("troll.training.policies._WIDE", 8)
    trainer = make(Recording, trust_region="troll", keep=5, dropped_mass=0.983)
    trainer.seen = []
    trainer.train()
    logged = [row["support_full"] for row in trainer.state.log_history if "support_full" in row]
    if vocabulary == "small":
        assert not logged
        return
    taken = [
        ((old.distribution.token_ids >= 0).sum(-1) == 5)[inputs["completion_mask"].bool()].double()
        for _, old, inputs, _ in trainer.seen
    ]
    assert logged == pytest.approx([float(values.mean()) for values in taken])
    assert min(logged) > 0 and max(logged) < 1
