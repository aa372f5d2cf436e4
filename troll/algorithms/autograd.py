"""Closed-form gradients that cannot be differentiated a second time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from troll.common.errors import UserError


def differentiable_once(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the backward of a `torch.autograd.Function` to raise under create_graph=True.

    torch's `once_differentiable` only raises if the upstream gradient requires a gradient, and otherwise
    drops the second-order term silently.

    Args:
        what: the function's name in error messages.
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
