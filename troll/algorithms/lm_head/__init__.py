"""The output layer of a language model, reduced to what rules need without materialising the logits."""

from troll.algorithms.lm_head.head import HeadOutput, lm_head

__all__ = ["HeadOutput", "lm_head"]
