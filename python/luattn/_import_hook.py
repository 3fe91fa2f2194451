"""Runs a function once a module of another package is imported, which would take too long to import for it."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, run: Callable[[], object]) -> None:
    """Runs it at once if the module is there."""
    if name in sys.modules:
        run()
    else:
        sys.meta_path.insert(0, _Finder(name, run))  # type: ignore[arg-type]


class _Finder:
    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self._name, self._run = name, run

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders find, whose loader runs the function afterwards. Once: then this one is gone."""
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_run(module: ModuleType) -> None:
                load(module)
                sys.modules.setdefault(name, module)
                self._run()

            loader.exec_module = load_and_run
        return spec
