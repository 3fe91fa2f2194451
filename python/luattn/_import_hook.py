"""Runs a function once a module of another package is imported, which would take too long to import for it."""

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
        """What the finders behind this one find, whose loader runs the function afterwards. Others ask too, who only look whether the module
        could be imported, and an import may fail: this one stays until the function has run."""
        if name != self._name:
            return None
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []  # type: ignore[arg-type]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        load = loader.exec_module

        def load_and_run(module: ModuleType) -> None:
            load(module)
            if module.__name__ == self._name and self in sys.meta_path:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
                sys.modules.setdefault(self._name, module)
                self._run()

        loader.exec_module = load_and_run
