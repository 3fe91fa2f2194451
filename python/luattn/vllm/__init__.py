"""luattn as an attention backend of vLLM.

    luattn.vllm.register()           # in each process of vLLM; the entry point vllm.general_plugins of the package does so
    LLM(.., attention_backend="LUATTN")

Every layer then has what the model asks for: windows, soft caps, slopes, sinks. register(spec) makes it a spec of your own.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._arguments import what
from ..attention import Attention, attention
from ..errors import InvalidError, Unsupported

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Layer", "plugin", "register"]

NAME = "LUATTN"
RELEASE = "0.33.0"  # whose interface this is


@dataclass(frozen=True)
class Layer:
    """What vLLM says of a layer, of this rank's heads."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    alibi_slopes: "Tensor | None" = None
    sinks: "Tensor | None" = None

    def facts(self) -> dict[str, Any]:
        """What a spec has to know of it, by the names of inputs and scalars there."""
        named = {"window": self.sliding_window, "cap": self.logits_soft_cap, "alibi_slopes": self.alibi_slopes, "sinks": self.sinks}
        return {name: x for name, x in named.items() if x is not None}


_Source = str | os.PathLike[str] | Attention
_chosen: "_Source | Callable[[Layer], Any] | None" = None


def register(spec: "_Source | Callable[[Layer], Any] | None" = None) -> None:
    """Makes "LUATTN" a backend of vLLM in this process, and says what it computes in layers that are made from now on.

    None: what the model asks of each layer, as vLLM's FlashAttention would. A spec (a path, an example's name, a text, or an attention): that spec.
    Its inputs alibi_slopes and sinks and its scalars window and cap are the layer's; a layer that has one of these, which
    the spec does not declare, is refused, and so is one that has none, which the spec declares. A function of a Layer returns a spec, or (spec, {name: value}) with other keyword arguments of each call,
    and answers for what it leaves out.

    Hooks see positions of the whole sequence, in prefill, chunks of it and decode: causal() and causal_bottom_right() are the same there."""
    global _chosen
    if spec is not None and not isinstance(spec, (str, os.PathLike, Attention)) and not callable(spec):
        raise InvalidError(f"luattn.vllm.register: spec: is {what(spec)}, expected a spec, a function of a Layer, or None")
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        if NAME not in AttentionBackendEnum.__members__:
            AttentionBackendEnum.register(NAME, "luattn.vllm._backend.Backend")
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"luattn.vllm: {error}: expected the interface of vLLM {RELEASE}; install that release") from error
    _chosen = spec


def plugin() -> None:
    """The entry point vllm.general_plugins: register(), with $LUATTN_VLLM_SPEC if that names a spec. Where vLLM has another interface it warns,
    since vLLM calls it whether anybody wants luattn or not."""
    try:
        register(os.environ.get("LUATTN_VLLM_SPEC") or None)
    except Unsupported as error:
        warnings.warn(f"{error}; LUATTN is no attention backend here", RuntimeWarning, stacklevel=2)


def chosen(layer: Layer) -> tuple[Attention, dict[str, Any], bool]:
    """The attention of a layer, the keyword arguments of its calls, and whether its hooks need positions of the whole sequence."""
    if _chosen is None:
        return (*_as_asked(layer), False)
    source, given = _chosen, dict[str, Any]()
    if callable(_chosen) and not isinstance(_chosen, Attention):
        found = _chosen(layer)
        source, given = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        spec = _spec_of(source)
    else:
        spec = _spec_of(source)
        given = _facts_of(spec, layer)
    for name in spec.inputs:
        if name not in given:
            raise InvalidError(f"{spec.name}: input '{name}' is missing: register a function of a layer that returns (spec, {{'{name}': ..}})")
    return spec, given, True


def _spec_of(source: Any) -> Attention:
    if isinstance(source, Attention):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidError(f"luattn.vllm: the function of a layer returned {what(source)}, expected a spec, or (spec, {{name: value}})")
    return attention(source)


def _as_asked(layer: Layer) -> tuple[Attention, dict[str, Any]]:
    """The spec of what the model asks for, in which the last query sees the last key."""
    from ..flash_attn import _text as spec_text

    window = -1 if layer.sliding_window is None else layer.sliding_window - 1
    slopes, sinks = layer.alibi_slopes is not None, layer.sinks is not None
    spec = attention(spec_text(window, 0, float(layer.logits_soft_cap or 0.0), int(slopes), 0.0, sinks=sinks))
    return spec, {name: x for name, x in layer.facts().items() if name in spec.inputs}


def _facts_of(spec: Attention, layer: Layer) -> dict[str, Any]:
    facts = layer.facts()
    for name in ("window", "cap"):
        if name in spec.scalars and name not in facts:
            raise InvalidError(
                f"{spec.name}: the spec declares the scalar {name}, and the layer has none: register a function of a layer, which says what such "
                "layers compute"
            )
    for name, x in facts.items():
        if name not in spec.inputs and name not in spec.scalars:
            said = f"{x:g}" if isinstance(x, (int, float)) else "a tensor"
            raise InvalidError(
                f"{spec.name}: the layer has {name} ({said}), and the spec declares no input or scalar of this name: declare it, or register "
                "a function of a layer, which may leave it out"
            )
    return facts
