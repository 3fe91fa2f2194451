"""Writes FlexAttention's mods, which are Python over tensors of no dimensions, as the text of a spec."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._hook import INDICES, INPUT_TYPES, Captured, Writer
from ._trace import Mod


@dataclass(frozen=True)
class Extras:
    """Inputs that a spec has beside those of mods."""

    # uint8 [b or 1, h or 1, ..]: 0 where a block is empty, 2 where all of it is kept, and 1 where the mask_mod decides.
    blocks: Tensor | None = None
    size: tuple[int, int] = (0, 0)  # of the blocks
    sinks: Tensor | None = None  # [h]: a learned score of each head that takes its share and has no value
    dropout: float = 0.0  # of weights

    @property
    def key(self) -> Any:
        """What the text of a spec depends on."""
        sinks = None if self.sinks is None else (self.sinks.dtype, self.sinks.requires_grad)
        return (self.blocks is None, self.size, sinks, self.dropout)

    def placed(self, inputs: list[Tensor | str], device: torch.device) -> list[Tensor]:
        """With these in the place of their names. A number on the CPU goes along with any device, as in PyTorch."""
        given = {"blocks": self.blocks, "sinks": self.sinks}
        found = [given[x] if isinstance(x, str) else x for x in inputs]
        return [t.to(device) if t.dim() == 0 else t for t in found if t is not None]


def translate(
    score_mod: Mod | None,
    mask_mod: Mod | None,
    extras: Extras,
    dtype: torch.dtype,
    device: torch.device,
    captured: Captured,
) -> str:
    """The text of a spec."""
    hooks: list[tuple[str, tuple[str, ...], list[str]]] = []
    if score_mod is not None:
        body = Writer(score_mod, dtype, captured, device).run(as_mask=False)
        hooks.append(("score_mod", ("score", *INDICES), body))
    body = [] if mask_mod is None else Writer(mask_mod, None, captured, device).run(as_mask=True)
    if extras.blocks is not None:
        kept = body.pop().removeprefix("return ") if body else "true"
        test = "block > 0" if kept == "true" else f"eq(block, 2) or (eq(block, 1) and ({kept}))"
        body = [
            f"local block = blocks[{{b, h, q_idx // {extras.size[0]}, kv_idx // {extras.size[1]}}}]",
            *body,
            f"return {test}",
        ]
    if body:
        hooks.append(("block_mask", INDICES, body))
    said = set(re.findall(r"\w+", "\n".join(line for _, _, body in hooks for line in body)))
    lines = ["return attention {"]
    if said & {*captured.used_numbers.values()}:
        values = (f"{name} = {captured.values[i]!r}" for i, name in sorted(captured.used_numbers.items()) if name in said)
        lines.append(f"  scalars = {{ {', '.join(values)} }},")
    inputs = [
        _declared(name, captured.tensors[i], captured.grads[i])
        for i, name in sorted(captured.used.items())
        if name in said
    ]
    if extras.sinks is not None:
        inputs.append(_declared("sinks", extras.sinks, extras.sinks.requires_grad).replace("sinks_0", "h"))
    if extras.blocks is not None:
        inputs.append('    blocks = { axes = {"b", "h", "q_blocks", "kv_blocks"}, dtype = "u8" },')
    if inputs:
        lines += ["  inputs = {", *inputs, "  },"]
    for field, parameters, body in hooks:
        lines += [
            f"  {field} = function({', '.join(parameters)})",
            *(f"    {line}" for line in body),
            "  end,",
        ]
    online_func = "" if extras.sinks is None else 'attention_sink("sinks")'
    if extras.dropout:
        online_func = f"dropout({extras.dropout!r}{', ' if online_func else ''}{online_func})"
    if online_func:
        lines.append(f"  online_func = {online_func},")
    captured.text = "\n".join([*lines, "}", ""])
    return captured.text


def _declared(name: str, tensor: Tensor, grad: bool) -> str:
    axes = ", ".join(f'"{name}_{axis}"' for axis in range(tensor.dim()))
    with_grad = ", grad = true" if grad else ""
    return f'    {name} = {{ axes = {{{axes}}}, dtype = "{INPUT_TYPES[tensor.dtype]}"{with_grad} }},'
