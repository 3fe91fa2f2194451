"""ContextParallel: an attention whose q, k, v and o are the rows of one rank of a group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _capi as capi
from .. import _tangents
from .._arguments import take, what
from .._attend import values_stacked
from .._call import CHOICES, WHOLE, refuse_later
from .._library import call, lib
from .._options import is_in_f32, seed_of
from .._spec import Spec
from ..attention import Attention
from ..errors import Error, InvalidError, Unsupported
from ._distributed import Distributed, key_of
from ._exchange import Exchange
from ._kept_calls import MOST
from ._passes import Job, Parameter, side_of
from ._peer_copies import PeerExchange, exchanges_of, passes_begun
from ._stages import schedule_of
from .rank_plan import Plan, transports_of

_PLACE = "luattn.parallel.ContextParallel"
_IN_KEYS = frozenset((type(None), bool, float, str, torch.dtype))
_REFUSED = {
    **dict.fromkeys(WHOLE, "the plan says which part of the whole a rank has"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k"), "say documents by an input of the spec, as document_mask does"),
    "block_table": "keys in pages are for decoding, which has no context parallelism",
    "batch": "there are no tile bits of parts", "decode": "decoding has no context parallelism", "out": "o is a tensor of its own",
    **dict.fromkeys(CHOICES, "caches are for decoding, which has no context parallelism"),
}  # fmt: skip


class ContextParallel:
    """attention over the sequence that the ranks of `group` share out by `plan`: a function of the rank's rows of q, k and v, with the attention's own
    arguments, whose result has the rank's rows of o. All ranks call it alike. Inputs with an axis q or kv are the rank's rows, as shard() has them (of a
    pair of axes q and kv, the rows of q and all columns); others are whole and equal on all ranks, and so are scalars and seeds. Gradients of q, k, v and of
    sharded inputs are the rank's rows; those of other inputs and scalars are summed over the group. sum_gradients=False leaves each rank the part of its own
    rows, for parameters of a model whose gradients are added up over the ranks anyway.

    group: of torch.distributed, gloo for tensors on the CPU, NCCL on GPUs; None: the default one. schedule: as plan()'s; None: what the plan chose.
    transport: "group": rows travel by sends and receives of the group, whose kernels wait for attention's; "peer": by the copy engines of GPUs of one host, beside
    these kernels (torch's symmetric memory); "auto": as the plan chose for each pass, but by the group where GPUs do not see each other; or two of these, for forward and
    for backward. Results have the same bits by each: calls of a pass are those of the plan's transport. chunks: whether a call has all rows of the rank that need keys
    of the same stages, wherever they lie in the sequence, and all of these keys (luattn_batch_options.q_chunks), so that a stage is one launch; False: a call has one range
    of rows and one of keys, as inputs with axes q and kv take; None: True over gloo, whose tensors are on the CPU. spare_multiprocessors: how many attention's kernels
    leave to those of NCCL (luattn_args.spare_multiprocessors).

    Errors: InvalidError, where ranks have other plans or specs; Unsupported, where rows of this spec do not merge (the message has one that shows it)."""

    def __init__(
        self, attention: Attention, group: Any, plan: Plan, *, schedule: str | None = None, sum_gradients: bool = True, transport: Any = "auto", chunks: bool | None = None,
        spare_multiprocessors: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(attention, Attention):
            raise InvalidError(f"{_PLACE}: attention: is {what(attention)}, expected what luattn.attention(..) makes")
        if not isinstance(plan, Plan):
            raise InvalidError(f"{_PLACE}: plan: is {what(plan)}, expected what luattn.parallel.plan(..) makes")
        if schedule not in (None, *capi.SCHEDULES):
            raise InvalidError(f"{_PLACE}: schedule: is {what(schedule)}, expected one of {', '.join(capi.SCHEDULES)}, or None")
        self._transports = transports_of(_PLACE, transport)
        self.attention, self.plan = attention, plan
        self._sums = take(_PLACE, "sum_gradients", "flag", sum_gradients)
        self.group = _group_of(group)
        self.rank, self.layer = dist.get_rank(self.group), plan.layer_of(attention)
        if self.group.size() != plan.world_size:
            raise InvalidError(f"{_PLACE}: group: has {self.group.size()} ranks, and the plan is for {plan.world_size}")
        self._parameters = _parameters_of(attention._spec)
        self.gathered, self.why = self._order(schedule)
        self.chunks = self._has_chunks(chunks)
        self._spare = take(_PLACE, "spare_multiprocessors", "integer", spare_multiprocessors)
        forward, backward = (schedule_of(plan, self.layer, self.rank, self.gathered[i], i == 1, self.chunks, self.layer.transports[i] == "peer") for i in range(2))
        self.schedules = forward, backward
        self._exchanges: dict[torch.device, tuple[tuple[Exchange, Exchange], str]] = {}
        self._seen: dict[str, tuple[Tensor, int]] = {}  # what the mask reads, as the last call had it, and its version
        self._agreed: set[Any] = set()  # what tensors of calls were
        self._known: dict[Any, Job] = {}  # of calls, by _key_of
        self._compare()

    def _order(self, schedule: str | None) -> tuple[tuple[bool, bool], str]:
        """Whether all keys come first, in forward and in backward, and why."""
        name, spec = self.attention.name, self.attention._spec
        told = schedule if schedule in ("stages", "gathered") else None
        if "gathered" in (told, told or self.plan.schedule):
            return (True, True), "as told"
        both = [p.name for p in self._parameters if p.of_rows and p.of_scores]
        try:
            self._merges_by_lse = merges_by_lse(spec)
        except Unsupported as e:
            raise Unsupported(f"{e}; {_PLACE}: parts of its rows do not merge: schedule=\"gathered\" computes each row in one call") from None
        if spec.row_passes:
            raise Unsupported(f"{_PLACE}: {name}: backward takes a row pass, which needs all keys of a row in one call: give schedule=\"gathered\"")
        if both and told:
            raise Unsupported(
                f"{_PLACE}: {name}: {both[0]}: its gradient has terms of scores and terms of rows, which parts of a row do not tell apart: give schedule=\"gathered\""
            )
        if both:
            return (self.layer.gathered[0], True), f"gradients of {both[0]} have terms of scores and of rows"
        return ((False, False), "as told") if told else (self.layer.gathered, "as the plan predicts")

    def _has_chunks(self, told: bool | None) -> bool:
        if take(_PLACE, "chunks", "flag?", told) is False:
            return False
        pairs = [info.name for info in self.attention._spec.inputs if "q" in info.axes and "kv" in info.axes]
        if pairs and told:
            raise Unsupported(f"{_PLACE}: chunks: is True, and input '{pairs[0]}' has axes q and kv, whose columns of a range of keys alone are a part of it: leave it out")
        return not pairs and (told or dist.get_backend(self.group) == "gloo")

    def _compare(self) -> None:
        """That all ranks have one plan and one spec. Once."""
        said = self._said_by_all({"plans": self.plan.hash, "specs": self.attention.text, "schedules": self.gathered, "transports": self._transports, "chunks": self.chunks})
        for rank, others in enumerate(said):
            for kind, first in said[0].items():
                if others[kind] != first:
                    raise InvalidError(f"{_PLACE}: ranks have different {kind}: rank {rank} differs from rank 0; make the plan and this object with equal arguments on all ranks")

    def _said_by_all(self, mine: Any) -> list[Any]:
        """And that all have begun as many passes, whose barriers would meet other ones else."""
        said: list[Any] = [None] * self.plan.world_size
        dist.all_gather_object(said, (passes_begun(self.group), mine), group=self.group)
        for rank, (begun, _) in enumerate(said):
            if begun != said[0][0]:
                raise Error(
                    f"{_PLACE}: ranks have begun different numbers of passes by copies: rank 0 {said[0][0]}, and rank {rank} {begun}, "
                    "so one of them raised before a pass that others began: results since then may be wrong; call it alike on all ranks, "
                    "and make the group anew"
                )
        return [x for _, x in said]

    def _agree(self, named: dict[str, Tensor]) -> None:
        """That all ranks give tensors alike. Once for each kind: rows travel as bytes, and ranks would read those of another type or batch as their own."""
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in named.values())
        mine = ("whether a tensor requires a gradient", learns), *((name, (t.dtype, tuple(t.shape))) for name, t in named.items())
        if mine in self._agreed:
            return
        all_of = self._said_by_all(mine)
        for rank, other in enumerate(all_of):
            for (name, said), (_, first) in zip(other, all_of[0]):
                if said != first:
                    raise InvalidError(f"{_PLACE}: {name}: is {_text(first)} on rank 0, and {_text(said)} on rank {rank}; call it alike on all ranks")
        self._agreed.add(mine)

    # --- rows ---

    def shard(self, tensor: Tensor, dim: int | None = None, fill: float = 0) -> Tensor:
        """This rank's rows of a tensor of the whole sequence: q, positions, labels, masks, rotary tables. dim: where the sequence lies; None: the one
        axis of its length. fill: of rows that pad it."""
        made: Tensor = self.plan.shard(tensor, self.rank, dim, fill)
        return made

    def unshard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """The tensor of the whole sequence, on all ranks, of their rows. Without a gradient."""
        if tensor.requires_grad and torch.is_grad_enabled():
            raise Unsupported("luattn.parallel: unshard: there is no gradient through it: compute the loss of the rank's rows, or pass tensor.detach()")
        _tangents.refuse("luattn.parallel: unshard", (tensor,), "pass tensor.detach()")
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.plan.world_size)]
        dist.all_gather(parts, tensor, group=self.group)
        made: Tensor = self.plan.unshard(parts, dim)
        return made

    def positions(self, device: Any = None) -> Tensor:
        """Of this rank's rows in the whole sequence."""
        made: Tensor = self.plan.positions(self.rank, device)
        return made

    def __repr__(self) -> str:
        order = ", ".join(f"{name}: {'keys gathered' if gathered else 'own keys first'}" for name, gathered in zip(("forward", "backward"), self.gathered))
        transport = "".join(f", over {device}: {_said_of(both)} ({why})" for device, (both, why) in self._exchanges.items())
        order += ", in chunks" if self.chunks else ""
        return f"<luattn.parallel.ContextParallel {self.attention.name}, rank {self.rank} of {self.plan.world_size}, {order} ({self.why}){transport}>"

    # --- calls ---

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: Any = None, return_lse: bool = False, layout: str = "bhsd", seed: Any = None, out_dtype: Any = None, **given: Any
    ) -> Any:
        """o of this rank's rows, and with return_lse (o, lse)."""
        key = self._key_of((q, k, v), (scale, return_lse, layout, out_dtype), given)
        if key is not None and key in self._known and (seed is None or self.attention._spec.draws):
            return self._call_known(self._known[key], q, k, v, return_lse, seed, given)
        for name in given:
            if name in _REFUSED:
                raise Unsupported(f"{_PLACE}: {name}: {_REFUSED[name]}; leave it out")
        q, k, v = (take(_PLACE, name, "torch", t) for name, t in zip("qkv", (q, k, v)))
        scale, layout, return_lse = take(_PLACE, "scale", "scale?", scale), take(_PLACE, "layout", "layout", layout), take(_PLACE, "return_lse", "flag", return_lse)
        if layout not in ("bhsd", "bshd"):
            raise InvalidError(f"{_PLACE}: layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            to = torch.get_autocast_dtype(kind)
            q, k, v = (t if t.dtype is torch.float64 else t.to(to) for t in (q, k, v))
        with torch.autocast(kind, enabled=False):
            return self._call(key, q, k, v, scale, return_lse, layout == "bshd", seed, out_dtype, given)

    def _key_of(self, qkv: Sequence[Tensor], numbers: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """What decides of a call, besides values of tensors; None: it has to be looked at anew."""
        names, scalars, tensors = [*given], self.attention.scalars, [*qkv]
        for name, x in given.items():
            if isinstance(x, Tensor) and name not in scalars:
                tensors.append(x)
            elif type(x) is not float:
                return None
        if not all(type(x) in _IN_KEYS for x in numbers) or not all(isinstance(t, Tensor) for t in qkv):
            return None
        key = key_of(tensors)
        if key is None or (qkv[0].is_cuda and torch.cuda.is_current_stream_capturing()):  # a graph takes another exchange
            return None
        learns = torch.is_grad_enabled(), *[t.requires_grad for t in tensors]
        scalars_of = [x for x in given.values() if type(x) is float]
        return *key, *learns, *map(type, numbers), *names, *[x.hex() if type(x) is float else x for x in (*numbers, *scalars_of)]  # 0.0 and -0.0 are two

    def _call_known(self, job: Job, q: Tensor, k: Tensor, v: Tensor, return_lse: bool, seed: Any, given: Mapping[str, Any]) -> Any:
        """A call that differs from one that was looked at in values of tensors alone."""
        if job.swapped:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        for p in self._parameters:
            if p.masks and isinstance(given.get(p.name), Tensor):
                self._check_one(p, given[p.name])
        if job.spec.draws:
            job = replace(job, seed=self._seed(seed, q))
        return _apply(job, q, k, v, [given[name] for name in self.attention.inputs], [None] * (len(job.scalars) + 1), return_lse)

    def _call(self, key: Any, q: Tensor, k: Tensor, v: Tensor, scale: Any, return_lse: bool, swapped: bool, seed: Any, out_dtype: Any, given: dict[str, Any]) -> Any:
        attention = self.attention
        if swapped:
            attention._check_axes(q=q, k=k, v=v)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        self._check_rows(q, k, v)
        inputs, scalars, later = attention._sort(given, q)
        refuse_later(attention.name, later)
        spec = attention._for(inputs)
        if return_lse and not spec.has_lse:
            raise Unsupported(f"{attention.name}: return_lse: its online function has no lse")
        self._check_inputs(spec, q, k, inputs)
        self._check_mask(inputs, scalars)
        learned = [x if isinstance(x, Tensor) else None for x in (*scalars, scale)]
        named = {**dict(zip("qkv", (q, k, v))), **{info.name: t for info, t in zip(spec.inputs, inputs)}}
        _tangents.refuse(_PLACE, (*named.values(), *learned), "take it in one process")
        if _tangents.is_transformed():
            raise Unsupported(f"{_PLACE}: is inside a transform of torch.func (grad, vmap, ..), which does not see the other ranks: use .backward() or torch.autograd.grad")
        q, k, v, *inputs = (t.resolve_neg() for t in (q, k, v, *inputs))  # calls over chunks, and copies, take bytes as they are
        self._agree({**named, **{f"scalar {i}": t for i, t in enumerate(learned) if t is not None}})
        job = Job(
            spec, self.schedules, self.plan, self.exchanges(q.device), self._parameters, tuple(info.axes for info in spec.inputs),
            values_stacked(spec, scalars), None if isinstance(scale, Tensor) else scale, self._seed(seed, q),
            by_lse=not self.gathered[0] and self._merges_by_lse, out_f32=is_in_f32(attention.name, "out_dtype", out_dtype, q), swapped=swapped, sums=self._sums,
            spare=self._spare, wants_lse=return_lse, kept=None if key is None else {},
        )  # fmt: skip
        if key is not None and all(t is given.get(name) for name, t in zip(attention.inputs, inputs)):
            for oldest in [*self._known][: max(0, len(self._known) - MOST + 1)]:
                self._known.pop(oldest, None)
            self._known[key] = replace(job, seed=None)
        return _apply(job, q, k, v, inputs, learned, return_lse)

    def exchanges(self, device: torch.device) -> tuple[Exchange, Exchange]:
        """How rows on such a device travel in forward and in backward, which all ranks ask alike."""
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if "peer" in self._transports:
                raise Unsupported(f'{_PLACE}: transport: is "peer", and the stream is being captured into a CUDA graph, which cannot wait for what is outside of it; give "auto" or "group"')
            by_group = Exchange(self.group, self.plan.chunk_rows)
            return by_group, by_group
        if device not in self._exchanges:
            self._exchanges[device] = exchanges_of(self.group, self.plan.chunk_rows, device, self._transports, self.layer.transports)
        return self._exchanges[device][0]

    def _seed(self, seed: Any, q: Tensor) -> Tensor | None:
        """Of a spec that draws, rank 0's where none is given: ranks drop what one process would."""
        if seed is None and not self.attention._spec.draws:
            return None
        found: Tensor = seed_of(self.attention.name, seed, q)
        if seed is None:
            found = found.to(q.device)
            dist.broadcast(found, dist.get_global_rank(self.group, 0), group=self.group)
        return found

    # --- what is refused ---

    def _check_rows(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.dim() != 4:
                raise InvalidError(f"{_PLACE}: {name}: has {t.dim()} dimensions, expected 4: batch, heads, rows of the rank, head dim")
            if t.shape[2] != self.plan.rows:
                raise InvalidError(f"{_PLACE}: {name}: has {t.shape[2]} rows, and each rank of the plan {self.plan.rows}; pass shard({name})")
        batch, heads = self.layer.sizes
        for bit, name, have, want in ((capi.MASK_BY_BATCH, "batch", q.shape[0], batch), (capi.MASK_BY_HEAD, "heads", q.shape[1], heads)):
            if self.layer.differs & bit and have != want:
                raise InvalidError(f"{_PLACE}: q: has {have} {name}, by which the mask differs, and the plan was made for {want}; give plan() {name}={have}")

    def _check_inputs(self, spec: Spec, q: Tensor, k: Tensor, inputs: Sequence[Tensor]) -> None:
        for info, t in zip(spec.inputs, inputs):
            if t.dim() != len(info.axes):
                continue  # which the library refuses
            for axis, n in zip(info.axes, t.shape):
                pair = axis == "kv" and "q" in info.axes
                rows = self.plan.q_len if pair else self.plan.rows
                if axis in ("q", "kv") and n != rows:
                    fix = "it has all columns" if pair else f"pass shard({info.name}, dim)"
                    raise InvalidError(f"{_PLACE}: input '{info.name}': has {n} rows along {axis}, expected {rows} of this rank: {fix}")

    def _check_mask(self, inputs: Sequence[Any], scalars: Sequence[Any]) -> None:
        """That the mask keeps what the plan has counted."""
        named = dict(zip((*self.attention.inputs, *self.attention.scalars), (*inputs, *scalars)))
        for p in self._parameters:
            if p.masks and p.name in named:
                self._check_one(p, named[p.name])

    def counts_for(self, given: dict[str, Any]) -> bool:
        """Whether the mask reads of these inputs and scalars what the plan was made with."""
        try:
            for p in self._parameters:
                if p.masks and p.name in given:
                    self._check_one(p, given[p.name])
        except InvalidError:
            return False
        return True

    def _check_one(self, p: Parameter, x: Any) -> None:
        seen = self._seen.get(p.name)  # on a GPU, where to compare is to wait; the tensor is kept, so that no other has its memory
        if seen is not None and isinstance(x, Tensor) and not x.is_inference() and x.data_ptr() == seen[0].data_ptr() and (x._version, x.shape, x.stride()) == (seen[1], seen[0].shape, seen[0].stride()):
            return
        given = x
        planned = self.layer.masks.get(p.name, self.attention.scalars.get(p.name))
        if isinstance(planned, (int, float)) or isinstance(x, (int, float)):
            same = float(planned) == float(x)
        else:
            whole, side = torch.as_tensor(planned), side_of(p.axes)
            if side:  # rows of padding are read by nothing
                dim = p.axes.index(side)
                real = (self.positions() < self.plan.q_len).nonzero()[:, 0]
                whole = self.plan.shard(whole, self.rank, dim).index_select(dim, real)
                x = x.index_select(dim, real.to(x.device))
            same = x.shape == whole.shape and bool((x == whole.to(x.device)).all())
        if not same:
            raise InvalidError(f"{_PLACE}: {p.name}: the mask reads it, and the plan was made with other values: make a plan with inputs={{'{p.name}': ..}} of this call")
        if isinstance(given, Tensor) and given.is_cuda and not given.is_inference():  # which counts no writes
            self._seen[p.name] = given, given._version


def _apply(job: Job, q: Tensor, k: Tensor, v: Tensor, inputs: Sequence[Tensor], learned: Sequence[Tensor | None], return_lse: bool) -> Any:
    o, lse = Distributed.apply(job, q, k, v, len(inputs), *inputs, *learned)  # type: ignore[no-untyped-call]
    o = o.transpose(1, 2) if job.swapped else o
    return (o, lse) if return_lse else o


def _said_of(exchanges: tuple[Exchange, Exchange]) -> str:
    first, second = ("copies between GPUs" if isinstance(x, PeerExchange) else "by the group" for x in exchanges)
    return first if first == second else f"forward {first}, backward {second}"


def _text(said: Any) -> str:
    return f"{said[0]} {said[1]}" if isinstance(said, tuple) else str(said)


def _group_of(group: Any) -> dist.ProcessGroup:
    """That of a call; None: the default one."""
    found: Any = dist.group.WORLD if group is None and dist.is_initialized() else group
    if found is None:
        raise InvalidError(f"{_PLACE}: group: is None, and torch.distributed has no default one; call init_process_group first")
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidError(f"{_PLACE}: group: this process is none of its ranks; make a ContextParallel on those of new_group(ranks) alone")
    if not isinstance(found, dist.ProcessGroup):
        raise InvalidError(f"{_PLACE}: group: is {what(found)}, expected a group of torch.distributed; of a DeviceMesh give mesh.get_group(dim)")
    return found


def _parameters_of(spec: Spec) -> tuple[Parameter, ...]:
    names = [*((info.name, info.axes) for info in spec.inputs), *((name, ()) for name in spec.scalars)]
    found = []
    for i, (name, axes) in enumerate(names):
        bits = lib.luattn_spec_parameter(spec.pointer, i)
        found.append(Parameter(name, axes, bool(bits & capi.PARAMETER_MASKS), bool(bits & capi.PARAMETER_OF_ROWS), bool(bits & capi.PARAMETER_OF_SCORES)))
    return tuple(found)


def merges_by_lse(spec: Spec) -> bool:
    """Whether parts merge by their lse, and backward reads no more; else by their state. Errors: Unsupported: by neither, with a row that shows it."""
    if spec.has_lse and not spec.num_saved:
        try:
            call("luattn_spec_merges", spec.pointer)
            return True
        except Unsupported:
            pass
    spec.parts()
    return False
