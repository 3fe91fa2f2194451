"""Gradients that have no derivatives of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import Unsupported


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, said: str, gradients: Sequence[Tensor | None], *sources: Tensor | None) -> Any:
        ctx.said = said
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(f"{ctx.said}: there are no second derivatives: leave out create_graph=True, or detach the gradient")


def once(said: str, gradients: Sequence[Tensor | None], sources: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Gradients that backward returns, so that a derivative of them is refused. once_differentiable of torch looks at those of the results alone,
    and drops a derivative where these are constants."""
    if not torch.is_grad_enabled():  # create_graph=False
        return gradients
    made: Sequence[Tensor | None] = _Gradients.apply(said, gradients, *(x for x in sources if x is None or x.is_floating_point()))
    return made
