"""What the entries of a recording are made of."""

from dataclasses import dataclass
from typing import Any

import torch


class Sign:
    """Stands in an entry for something of a call, and is the same object in all recordings."""

    def __init__(self, kind: str, index: int) -> None:
        self.kind, self.index = kind, index

    def __repr__(self) -> str:
        return f"{self.kind} {self.index}"


class _Signs(list[Sign]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def of(self, index: int) -> Sign:
        while len(self) <= index:
            self.append(Sign(self.kind, len(self)))
        return self[index]


VALUES, TENSORS = _Signs("value"), _Signs("tensor")  # the result of an entry; a captured tensor
INTS, FLOATS = _Signs("int"), _Signs("float")  # one of Recording.numbers


# A function, its arguments, and those with names. All are signs, constants, and tuples of these that begin with a type.
Entry = tuple[Any, tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Kept:
    """An object by its identity, kept alive so that its id is no other's."""

    x: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)


def plain(x: Any) -> Any:
    """A number of NumPy, of an enum or of a symbol as Python's own; x where it is none."""
    if type(x).__module__ == "numpy" and getattr(x, "ndim", 1) == 0:
        return x.item()
    if isinstance(x, (int, torch.SymInt)) and type(x) is not bool:
        return int(x)
    if isinstance(x, (float, torch.SymFloat)):
        return float(x)
    return x


def lifts(x: int | float) -> bool:
    """Whether kernels can have a number as an argument: they compute in float32, and in 32 bits."""
    if type(x) is int:
        return -(1 << 24) <= x <= 1 << 24
    return 2**-126 <= abs(x) < 2**127 or x == 0 and str(x) == "0.0"
