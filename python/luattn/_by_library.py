"""What computes NumPy arrays or torch tensors. Neither library is loaded for the other, and neither before it is needed."""

from typing import Any

_found: dict[bool, Any] = {}


def attend_of(numpy: bool) -> Any:
    attend = _found.get(numpy)
    if attend is None:
        if numpy:
            from ._numpy import attend
        else:
            from ._attend import attend
        _found[numpy] = attend
    return attend


def _of(numpy: bool) -> Any:
    if numpy:
        from . import _numpy

        return _numpy
    from . import _attend

    return _attend


def attend_state_of(numpy: bool) -> Any:
    return _of(numpy).attend_state


def weights_of(numpy: bool) -> Any:
    return _of(numpy).weights


def scaled_of(numpy: bool) -> Any:
    return _of(numpy).with_scale


def padded_of(numpy: bool) -> Any:
    if numpy:
        return _of(numpy).padded
    from . import _fit

    return _fit.padded
