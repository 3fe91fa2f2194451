"""luattn as an attention implementation of Hugging Face's transformers.

    luattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(.., attn_implementation="luattn")

Masks come from transformers' own mask functions: causal, windows, chunks, padding, packed sequences.
"""

import functools
import glob
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import (
    AttentionMaskInterface,
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
)

from . import _tangents
from ._arguments import what
from .errors import InvalidError, Unsupported
from .attention import attention as load
from .flex._attention import attend
from .flex._programs import find as find_spec
from .flex._translate import Extras
from .parallel import Plan

_PADDED_TO = 256  # so that a mask of padding, which grows by each token, is seldom another shape


class Mask(theirs.BlockMask):
    """A mask function, and where queries and keys begin. It is a BlockMask because transformers asks for one; it has no blocks."""

    def __init__(self, mask_mod: Any, sizes: tuple[int, int, int], q_offset: Any, kv_offset: int) -> None:
        self.mask_mod, self.sizes = mask_mod, sizes
        self.q_offset, self.kv_offset = q_offset, kv_offset

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.sizes[0], 1, *self.sizes[1:])

    def __repr__(self) -> str:
        return f"Mask(shape={self.shape}, q_offset={self.q_offset}, kv_offset={self.kv_offset})"

    __str__ = __repr__


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **given: Any,
) -> Mask:
    """What transformers calls once for all layers of a kind. An offset that is a tensor is read by kernels: a static cache's."""
    # Whether nothing is padded has to be waited for, which a graph cannot.
    if attention_mask is not None and (torch.compiler.is_compiling() or not bool(attention_mask.all())):
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        assert padding is not None
        padding = torch.nn.functional.pad(padding, (0, -padding.shape[-1] % _PADDED_TO))
        mask_function = and_masks(mask_function, padding_mask_function(padding))
    if isinstance(q_offset, Tensor):
        q_offset = q_offset.to(torch.int32).expand(batch_size).contiguous()
    return Mask(mask_function, (batch_size, q_length, kv_length), q_offset, kv_offset)


class _OverRanks:
    """What register(context_parallel=) makes: the attention and the masks of models whose tokens are the rows of a rank."""

    def __init__(self, plan: Any, group: Any) -> None:
        self.plan, self.group = plan, group
        self._locals: dict[str, list[Any]] = {}  # of each spec a ContextParallel for whatever its mask reads, the last ones
        self._position_ids: Any = None  # that were looked at

    def make_mask(self, batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, **given: Any) -> Mask:
        """As make_mask, of the whole sequence."""
        rows = self.plan.rows
        if isinstance(q_offset, Tensor) or q_offset or kv_offset or (q_length, kv_length) != (rows, rows):
            raise Unsupported(
                f"luattn: context_parallel: the model has {q_length} queries and {kv_length} keys, and each rank of the plan {rows} tokens: pass shard(input_ids), and no cache"
            )
        attention_mask = given.pop("attention_mask", None)
        if attention_mask is None:
            raise InvalidError(
                "luattn: context_parallel: attention_mask: is None, with which transformers takes positions that jump for packed sequences: pass one of ones, and position_ids=positions()"
            )
        if not bool(attention_mask.all()):
            raise Unsupported("luattn: context_parallel: attention_mask: leaves out tokens, and ranks share out one sequence without padding: pass ones")
        return make_mask(batch_size, self.plan.q_len, self.plan.q_len, **given)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any, extras: Extras, scale: float | None, position_ids: Any
    ) -> Tensor:  # fmt: skip
        if torch.compiler.is_dynamo_compiling():
            raise Unsupported("luattn: context_parallel: torch.compile does not see the other ranks: call the model without it")
        sizes = (query.shape[0], query.shape[1], self.plan.q_len, self.plan.q_len)
        spec, inputs, scalars = find_spec(score_mod, mask_mod, extras, query.dtype, query.device, sizes)
        given = {**{info.name: t for info, t in zip(spec.inputs, inputs)}, **dict(zip(spec.scalars, scalars))}
        local = self._local(spec, given, query, key)
        self._check_positions(local, position_ids)
        made: Tensor = local(query, key, value, scale=scale, **given)
        return made

    def _check_positions(self, local: Any, position_ids: Any) -> None:
        """That these are not the ones which a model takes where it is given none. Once for the layers of a call."""
        if position_ids is self._position_ids or not isinstance(position_ids, Tensor):
            return
        default = torch.arange(self.plan.rows, device=position_ids.device)
        if position_ids.shape[-1:] == default.shape and not torch.equal(local.positions(default.device), default) and bool((position_ids == default).all()):
            raise InvalidError("luattn: context_parallel: position_ids: are 0, 1, .., as if this rank had the first tokens; pass position_ids=plan.positions(rank)[None]")
        self._position_ids = position_ids

    def _local(self, spec: Any, given: dict[str, Any], query: Tensor, key: Tensor) -> Any:
        """That of this spec, whose mask keeps what it did when its keys were counted."""
        from .parallel import ContextParallel

        known = self._locals.setdefault(spec.text, [])
        for local in known:
            if local.counts_for(given):
                return local
        of = load(spec.text)
        plan = self.plan.with_layer(of, inputs=given, heads=(query.shape[1], key.shape[1]), batch=query.shape[0])
        known[:] = [ContextParallel(of, self.group, plan, sum_gradients=False), *known[:7]]
        return known[0]


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    over: _OverRanks | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [batch, length, heads, head_dim], and no weights."""
    if given.get("output_attentions"):
        raise Unsupported(
            'luattn: output_attentions: weights are not kept; use attn_implementation="eager" to see them'
        )
    if not 0 <= dropout < 1:
        raise InvalidError(f"luattn: dropout: is {dropout}, expected a number of at least 0 and below 1")
    score_mods: list[Callable[..., Tensor]] = []
    mask_mod: Any = None
    q_offset: Any = 0
    kv_offset = 0
    if softcap is not None:
        _tangents.refuse_in("luattn: softcap", softcap)
        score_mods.append(_capped(float(softcap)))
    if position_bias is not None:
        score_mods.append(_added(position_bias))
    if isinstance(attention_mask, Mask):
        if over is None and key.shape[2] != attention_mask.sizes[2]:
            raise InvalidError(
                f"luattn: keys have {key.shape[2]} positions, and the mask is for {attention_mask.sizes[2]}"
            )
        mask_mod, q_offset, kv_offset = (
            attention_mask.mask_mod,
            attention_mask.q_offset,
            attention_mask.kv_offset,
        )
    elif attention_mask is not None:
        if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4:
            raise InvalidError(
                "luattn: attention_mask: expected one of transformers' mask functions, or [batch, heads, queries, keys]"
            )
        if attention_mask.dtype == torch.bool:
            mask_mod = _kept(attention_mask)
        else:
            score_mods.append(_added(attention_mask))
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask_mod, q_offset = causal_mask_function, key.shape[2] - query.shape[2]
    score_mod = None if not score_mods else score_mods[0] if len(score_mods) == 1 else _chained(score_mods)
    extras = Extras(sinks=s_aux, dropout=float(dropout))
    if over is not None:
        if not isinstance(attention_mask, Mask) or position_bias is not None:
            name = "attention_mask" if position_bias is None else "position_bias"
            raise Unsupported(f"luattn: context_parallel: {name}: is not of the whole sequence; pass an attention_mask of ones, from which the model makes its mask")
        return over.attend(query, key, value, score_mod, mask_mod, extras, scaling, given.get("position_ids")).transpose(1, 2).contiguous(), None
    shared = attention_mask if isinstance(attention_mask, Mask) else None
    o, _ = attend(query, key, value, score_mod, mask_mod, extras, scaling, q_offset, kv_offset, shared)
    return o.transpose(1, 2).contiguous(), None


def _capped(cap: float) -> Callable[..., Tensor]:
    return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)


def _added(bias: Tensor) -> Callable[..., Tensor]:
    many, heads = bias.shape[0] > 1, bias.shape[1] > 1
    return lambda score, b, h, q_idx, kv_idx: score + bias[b if many else 0, h if heads else 0, q_idx, kv_idx]


def _kept(mask: Tensor) -> Callable[..., Tensor]:
    many, heads = mask.shape[0] > 1, mask.shape[1] > 1
    return lambda b, h, q_idx, kv_idx: mask[b if many else 0, h if heads else 0, q_idx, kv_idx]


def _chained(mods: list[Callable[..., Tensor]]) -> Callable[..., Tensor]:
    first, second = mods[0], mods[1] if len(mods) == 2 else _chained(mods[1:])
    return lambda score, b, h, q_idx, kv_idx: second(first(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)


# --- which models ask for their attention by name ---

_names: set[str] = set()
_OWN = re.compile(r"^class \w*Attention\w*\(nn\.Module\):", re.MULTILINE)


def _asks(source: str) -> bool:
    """Whether the attention of a model's source is found by its name. A model without attention layers has other models."""
    return "ALL_ATTENTION_FUNCTIONS" in source or _OWN.search(source) is None


def serves(model: torch.nn.Module | type) -> bool:
    """Whether a model, or a class of models, takes its attention by name, so that attn_implementation="luattn" reaches it. Others, such as
    GPT-Neo, Bloom, Falcon and MPT, have attention of their own. True of what has no source."""
    cls = model if isinstance(model, type) else type(model)
    module = sys.modules.get(cls.__module__)
    try:
        return module is None or _asks(inspect.getsource(module))
    except (OSError, TypeError):
        return True


def families() -> list[str]:
    """The folders of transformers.models whose attention is luattn's with attn_implementation="luattn". Layers of another kind, such as
    deformable or block-sparse ones, keep their own."""
    import transformers.models as models

    found = set()
    for path in glob.glob(os.path.join(os.path.dirname(models.__file__), "*", "modeling_*.py")):
        with open(path, encoding="utf-8") as file:
            source = file.read()
        if "ALL_ATTENTION_FUNCTIONS" in source:
            found.add(os.path.basename(os.path.dirname(path)))
    return sorted(found)


def _warn_of_others() -> None:
    """Makes a model that would not ask for luattn say so when it is made, and keep what it has by default."""
    choose = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if choose is None:
        warnings.warn("luattn.transformers: this version of transformers does not tell models of their attention: look at serves(model)", RuntimeWarning, stacklevel=3)
        return
    if hasattr(choose, "_luattn"):
        return

    @functools.wraps(choose)
    def chosen(self: Any, requested: str | None, *args: Any, **given: Any) -> Any:
        if requested not in _names or serves(self):
            return choose(self, requested, *args, **given)
        own = choose(self, None, *args, **given)
        warnings.warn(
            f"luattn: {type(self).__name__} does not take its attention by name, and keeps its own ({own!r}): attn_implementation={requested!r} "
            "changes nothing; luattn.transformers.families() has the models that do",
            RuntimeWarning,
            stacklevel=2,
        )
        return own

    setattr(chosen, "_luattn", True)
    setattr(PreTrainedModel, "get_correct_attn_implementation", chosen)


def register(name: str = "luattn", *, context_parallel: Any = None, group: Any = None) -> list[str]:
    """Makes attn_implementation=name mean luattn, for every model that takes its attention by name. Returns families(), which it serves; another
    model warns when it is made with this name (RuntimeWarning), and keeps its own attention.

    context_parallel: a plan of luattn.parallel, which shares a sequence out to the ranks of `group` (None: the default one): models get shard(input_ids),
    position_ids=positions() and an attention_mask of ones, and give the rank's rows of logits. Which keys a layer needs is found from its mask. Gradients of all
    parameters are those of the rank's tokens, to be added up over the ranks as in data parallelism."""
    if context_parallel is not None and not isinstance(context_parallel, Plan):
        raise InvalidError(f"luattn.transformers.register: context_parallel: is {what(context_parallel)}, expected what luattn.parallel.plan(..) makes")
    over = None if context_parallel is None else _OverRanks(context_parallel, group)
    AttentionInterface.register(name, attention if over is None else functools.partial(attention, over=over))
    AttentionMaskInterface.register(name, make_mask if over is None else over.make_mask)
    _names.add(name)
    _warn_of_others()
    return families()
