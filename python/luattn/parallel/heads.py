"""HeadParallel: rows of all heads become all rows of some heads, by one exchange, and back (Ulysses: all-to-all over heads)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import take, what
from ..attention import Attention
from ..errors import InvalidError, Unsupported
from .rank_plan import Plan

_PLACE = "luattn.parallel.HeadParallel"


class _AllToAll(torch.autograd.Function):
    """Entry r of the first axis goes to rank r, which has it as the entry of this rank's number. Its gradient goes back the same way."""

    @staticmethod
    def forward(ctx, t, group):  # type: ignore[no-untyped-def]
        ctx.group = group
        made = torch.empty_like(t, memory_format=torch.contiguous_format)
        dist.all_to_all_single(made, t.contiguous(), group=group)
        return made

    @staticmethod
    def backward(ctx, d):  # type: ignore[no-untyped-def]
        return _AllToAll.forward(ctx, d, ctx.group), None


class _Summed(torch.autograd.Function):
    """What is whole on all ranks: each has the gradient of its heads."""

    @staticmethod
    def forward(ctx, t, group):  # type: ignore[no-untyped-def]
        ctx.group = group
        return t.view_as(t)

    @staticmethod
    def backward(ctx, d):  # type: ignore[no-untyped-def]
        d = d.contiguous()
        dist.all_reduce(d, group=ctx.group)
        return d, None


class HeadParallel:
    """attention over the sequence that the ranks of `group` share out by `plan`, as ContextParallel: q, k, v, o and inputs along q and kv are the rank's rows, other
    inputs whole. Each rank computes all rows of its share of the heads, so no mask matters, nothing is merged, and ranks have equal work; the number of ranks divides
    that of heads, and of heads of keys. Two exchanges move 2 H + 2 Hkv heads of the rank's rows in a forward, and are not hidden. Inputs with an axis q or kv have no
    gradient here: ContextParallel has.

    Errors: InvalidError (heads that ranks do not divide, other groups), Unsupported (by name)."""

    def __init__(self, attention: Attention, group: Any, plan: Plan) -> None:
        if not isinstance(attention, Attention):
            raise InvalidError(f"{_PLACE}: attention: is {what(attention)}, expected what luattn.attention(..) makes")
        if not isinstance(plan, Plan):
            raise InvalidError(f"{_PLACE}: plan: is {what(plan)}, expected what luattn.parallel.plan(..) makes")
        self.attention, self.plan = attention, plan
        self.group = dist.group.WORLD if group is None else group
        if not isinstance(self.group, dist.ProcessGroup):
            raise InvalidError(f"{_PLACE}: group: is {what(group)}, expected a group of torch.distributed, or None after init_process_group()")
        if self.group.size() != plan.world_size:
            raise InvalidError(f"{_PLACE}: group: has {self.group.size()} ranks, and the plan is for {plan.world_size}")
        self.rank = dist.get_rank(self.group)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, seed: Any = None, **given: Any) -> Any:
        """o of this rank's rows, and with return_lse (o, lse)."""
        ranks, rows = self.plan.world_size, self.plan.rows
        q, k, v = (take(_PLACE, name, "torch", t) for name, t in zip("qkv", (q, k, v)))
        for name, t in zip("qkv", (q, k, v)):
            if t.dim() != 4 or t.shape[2] != rows:
                raise InvalidError(f"{_PLACE}: {name}: is {tuple(t.shape)}, expected [batch, heads, {rows}, dim], the rank's rows")
            if t.shape[1] % ranks:
                raise InvalidError(f"{_PLACE}: {name}: has {t.shape[1]} heads, which {ranks} ranks do not divide: take ContextParallel, or fewer ranks")
        if self.attention._spec.draws and seed is None:
            raise InvalidError(f"{_PLACE}: seed: is missing: the spec drops weights at random; pass the same on all ranks")
        options = {name: x for name, x in given.items() if name not in self.attention.inputs}
        for name in ("layout", "out", "batch", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "head_offset", "heads", "q_offset", "kv_offset"):
            if name in options:
                raise Unsupported(f"{_PLACE}: {name}: the exchange has an order of its own, of whole sequences; leave it out")
        heads, heads_kv = q.shape[1], k.shape[1]
        inputs = {name: self._input(name, x, heads, heads_kv) for name, x in given.items() if name in self.attention.inputs}
        options = {name: _Summed.apply(x, self.group) if isinstance(x, Tensor) and x.requires_grad else x for name, x in options.items()}
        options |= {"head_offset": self.rank * heads // ranks, "heads": heads, "heads_kv": heads_kv, **({} if seed is None else {"seed": seed})}
        made: Any = self.attention(self._to_heads(q), self._to_heads(k), self._to_heads(v), return_lse=return_lse, **inputs, **options)
        return (self._to_rows(made[0]), self._to_rows(made[1])) if return_lse else self._to_rows(made)

    def _to_heads(self, t: Tensor) -> Tensor:
        """[batch, heads, rows of the rank, ..] to [batch, heads of the rank, all rows, ..]"""
        parts = t.unflatten(1, (self.plan.world_size, -1)).movedim(1, 0)
        made: Tensor = self.plan.unshard(_AllToAll.apply(parts, self.group).unbind(0), 2)
        return made

    def _to_rows(self, t: Tensor) -> Tensor:
        """Back. Rows of padding are 0."""
        parts = torch.stack([self.plan.shard(t, r, 2) for r in range(self.plan.world_size)])
        made: Tensor = _AllToAll.apply(parts, self.group).movedim(0, 1).flatten(1, 2)
        return made

    def _input(self, name: str, t: Any, heads: int, heads_kv: int) -> Any:
        """An input of the rank's heads, and of all rows."""
        t = take(_PLACE, name, "torch", t)
        axes = self.attention.inputs[name].axes
        if t.requires_grad and ("q" in axes or "kv" in axes):
            raise Unsupported(f"{_PLACE}: input '{name}': lies along the sequence and requires a gradient, which does not travel back here: take ContextParallel")
        if t.requires_grad:
            t = _Summed.apply(t, self.group)
        for dim, axis in enumerate(axes):
            if axis in ("q", "kv"):
                parts = [torch.empty_like(t.contiguous()) for _ in range(self.plan.world_size)]
                dist.all_gather(parts, t.contiguous(), group=self.group)
                t = self.plan.unshard(parts, dim)
            elif axis in ("h", "hkv"):
                count = (heads if axis == "h" else heads_kv) // self.plan.world_size
                t = t.narrow(dim, self.rank * count, count)
        return t

    def __repr__(self) -> str:
        return f"<luattn.parallel.HeadParallel {self.attention.name}, rank {self.rank} of {self.plan.world_size}>"
