"""flex_attention inside of torch.compile: Dynamo traces the mods, and its graph calls what is here with them."""

import re
import weakref
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import tracing
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _disable_current_modes

from .._spec import Spec, spec_of
from ..errors import Error
from . import _blame
from ._casts import check_cast
from ._hook import Captured
from ._programs import _lock
from ._trace import Lines, Mod, stop_gradient
from ._translate import Extras, translate


class _Flex(HigherOrderOperator):
    """What stands in a graph. Dynamo hands over mods as graphs, and what they capture as tensors.

    It has the name of FlexAttention's operator, by which Dynamo knows what to trace. Called, it is a function that calls
    luattn::forward: what AOTAutograd makes of the graph has that op alone.
    """

    def __init__(self) -> None:
        super().__init__("luattn_flex_attention")  # type: ignore[no-untyped-call]
        self.__name__ = "flex_attention"
        self.__module__ = __name__

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        scale: float | Tensor | None,
        options: dict[str, Any],
        of_score: tuple[Any, ...] = (),
        of_mask: tuple[Any, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        """block_mask, which Dynamo takes for one: the fields of Extras, offsets, and the mask_mod."""
        from ._attention import attend_eagerly, call_from

        blocks, q_block, kv_block, sinks, dropout, q_offset, kv_offset, mask_mod = block_mask
        extras, wanted = (
            Extras(blocks, (q_block, kv_block), sinks, dropout),
            (options["score_mod"], options["mask_mod"]),
        )
        if not isinstance(score_mod, fx.GraphModule):  # Dynamo gave the call up
            mods = (score_mod if wanted[0] else None, mask_mod if wanted[1] else None)
            run = torch.compiler.disable(attend_eagerly)  # else Dynamo would look at it, and come here again
            result: tuple[Tensor, Tensor] = run(query, key, value, *mods, extras, scale, q_offset, kv_offset)
            return result
        captured = (tuple(of_score), tuple(of_mask))
        graphs = (score_mod, mask_mod)

        def call(spec: Spec, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
            return call_from(spec, query, key, value, inputs, [], scale, q_offset, kv_offset)

        spec, inputs = _spec_of_graphs(graphs, wanted, captured, extras, query)
        try:
            return call(spec, inputs)
        except Error as e:
            if not _blame.names_a_part(e, _TITLE):
                raise
            held = Captured(marks=True)
            tensors = [x for want, xs in zip(wanted, captured) if want for x in xs if isinstance(x, Tensor)]
            with _lock, tracing(None), _disable_current_modes(), torch.no_grad():
                spec, used = _translated(graphs, wanted, captured, extras, query.dtype, query.device, held)
            raise _blame.blamed_again(e, _TITLE, held, lambda: call(spec, _placed(extras, used, tensors, query.device))) from e.__cause__


flex_attention = _Flex()

# Of a score_mod's graph: the mask_mod's, and specs of both by the types and sizes of what they capture.
_Known = dict[Any, tuple[Spec, list[int | str]]]
_found: "weakref.WeakKeyDictionary[Any, tuple[Any, _Known]]" = weakref.WeakKeyDictionary()


def _spec_of_graphs(
    graphs: tuple[fx.GraphModule, fx.GraphModule],
    wanted: tuple[bool, bool],
    captured: tuple[tuple[Any, ...], tuple[Any, ...]],
    extras: Extras,
    query: Tensor,
) -> tuple[Spec, list[Tensor]]:
    """The spec, and its inputs out of what is captured."""
    known = _found.get(graphs[0])
    if known is None or known[0]() is not graphs[1]:
        known = _found[graphs[0]] = (weakref.ref(graphs[1]), {})
    held = [
        (x.dtype, tuple(map(int, x.shape)), x.requires_grad) if isinstance(x, Tensor) else (type(x), _plain(x))
        for x in (*captured[0], *captured[1])
    ]
    key = (tuple(held), wanted, extras.key, query.dtype, query.device)
    if key not in known[1]:
        with _lock, tracing(None), _disable_current_modes(), torch.no_grad():
            known[1][key] = _translated(graphs, wanted, captured, extras, query.dtype, query.device)
    spec, used = known[1][key]
    tensors = [x for want, xs in zip(wanted, captured) if want for x in xs if isinstance(x, Tensor)]
    return spec, _placed(extras, used, tensors, query.device)


def _placed(extras: Extras, used: list[int | str], tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    return extras.placed([tensors[i] if isinstance(i, int) else i for i in used], device)


def _translated(
    graphs: tuple[fx.GraphModule, fx.GraphModule],
    wanted: tuple[bool, bool],
    captured: tuple[tuple[Any, ...], tuple[Any, ...]],
    extras: Extras,
    dtype: torch.dtype,
    device: torch.device,
    held: Captured | None = None,
) -> tuple[Spec, list[int | str]]:
    """held: an empty one."""
    given = (graphs, wanted, captured, extras, dtype, device)
    held = held or Captured()

    def stand_in(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return _plain(x)
        held.hold(x)
        return held.tensors[-1]

    score_mod, mask_mod = (
        _replay(graph, tuple(map(stand_in, xs)), dtype, device) if want else None
        for graph, xs, want in zip(graphs, captured, wanted)
    )
    try:
        text = translate(score_mod, mask_mod, extras, dtype, device, held)
    finally:
        Lines.given = None
    try:
        spec = spec_of(text, _TITLE)
    except Error as e:
        if held.marks:
            raise
        marked = Captured(marks=True)
        raise _blame.blamed_again(e, _TITLE, marked, lambda: _translated(*given, marked)) from e.__cause__
    return spec, held.order(spec)[0]


_TITLE = "flex_attention"  # stands for the file of a spec in messages


def _plain(x: Any) -> Any:
    """Where shapes are symbols a number may be one too; here it is a constant, and Dynamo guards on it."""
    return int(x) if isinstance(x, torch.SymInt) else float(x) if isinstance(x, torch.SymFloat) else x


def _replay(graph: fx.GraphModule, captured: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Mod:
    """A graph as a function of scores and indices. dtype, device: of the tensors of the call."""

    class Replay(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            place = re.findall(r'File "(.+)", line (\d+)', n.stack_trace or "")
            Lines.given = ":".join(place[-1]) if place else None
            found = super().run_node(n)
            if n.op in ("call_method", "call_function"):
                check_cast(n.target, *self.fetch_args_kwargs_from_env(n), found, dtype, device)
            stops = n.target == "detach" or not torch.is_grad_enabled() or "_get_data_attr" in str(n.target)
            return stop_gradient(found) if stops and isinstance(found, Tensor) and found.is_floating_point() else found

    def run(*args: Tensor) -> Any:
        with torch.enable_grad():  # as Dynamo found it: what the graph turns off is a constant to backward
            return Replay(graph).run(*args, *captured)

    return run
