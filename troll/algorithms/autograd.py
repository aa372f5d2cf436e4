"""Closed-form gradients that are no functions to be differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from troll.common.errors import UserError


def differentiable_once(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks the backward of a `torch.autograd.Function`: refuses to be part of a graph (create_graph=True).

    torch's own `once_differentiable` complains only where the upstream gradient itself needs a gradient, and
    drops the second-order term silently where it does not.

    Args:
        what: how messages call the function.
    """

    def mark(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def checked(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():
                raise UserError(
                    f"{what}: has no second derivative; take its gradient without create_graph=True"
                )
            return backward(ctx, *gradients)

        return checked

    return mark
