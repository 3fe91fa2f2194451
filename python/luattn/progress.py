"""A bar for work that takes several kernels, where tqdm is installed."""

import contextlib
from collections.abc import Iterator
from typing import Any

from . import _capi as capi
from ._library import guarded


@contextlib.contextmanager
def progress_bar(count: int) -> Iterator[Any]:
    """A luattn_progress that moves a bar of `count` steps, on a terminal alone; or None without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(total=count, desc="luattn: kernels", unit="", leave=False, disable=None) as bar:
        yield capi.PROGRESS(guarded(lambda _, done, __: bar.update(done - bar.n)))
