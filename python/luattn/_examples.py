"""The example specs that come with the package, by name."""

import difflib
import os

_HERE = os.path.dirname(os.path.abspath(__file__))
_IN_TREE = os.path.join(_HERE, "..", "..", "examples")
# In the package as it is installed, or in the source tree.
_PLACES = (os.path.join(_HERE, "examples"),), (_IN_TREE, os.path.join(_IN_TREE, "grids"))


def examples() -> dict[str, str]:
    """The example specs: the path of each by its name. luattn.attention(name) loads one."""
    for folders in _PLACES:
        if os.path.isdir(folders[0]):
            found = {file: folder for folder in folders for file in os.listdir(folder) if file.endswith(".lua")}
            return {file.removesuffix(".lua"): os.path.abspath(os.path.join(found[file], file)) for file in sorted(found)}
    return {}


def path_of(source: str) -> str:
    """The path of a spec that is named by its path, or, where there is no such file, by the name of an example."""
    if os.path.exists(source) or os.sep in source or source.endswith(".lua"):
        return source
    known = examples()
    if source in known:
        return known[source]
    near = difflib.get_close_matches(source, known, 1)
    hint = f"; did you mean '{near[0]}'?" if near else "; luattn.examples() has their names"
    raise FileNotFoundError(f"luattn: spec: '{source}' is neither a file nor an example of the package{hint}")
