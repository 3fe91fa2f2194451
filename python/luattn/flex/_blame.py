"""Which line of a user's Python is to blame for what the library says of a line of a spec.

A line of Lua has parts of many lines of Python. So once something is refused the spec is written again with marks: comments around the text of
each step, with a new line in them. The library then names a line that one step has for itself."""

import re
from collections.abc import Callable
from typing import Any

from ..errors import Error, SpecError, Unsupported
from ._trace import NotTranslatable

_MARK = re.compile(r" --\[\[(?:>(.*?)|<)\n\]\]")
_PLAIN = re.compile(r"[\w.]*")
_INPUT = re.compile(r"input '(x\d+)'")
_MOST_INPUTS = re.compile(r"inputs: more than (\d+) entries")


def marked(text: str, place: str) -> str:
    """The text of a step, on lines of its own. What is a name or a number stays one."""
    if _PLAIN.fullmatch(text) or "]]" in place or "\n" in place:
        return text
    return f" --[[>{place}\n]]{text} --[[<\n]]"


def length(text: str) -> int:
    """Without marks."""
    return len(_MARK.sub("", text))


def place_in(text: str, line: int) -> str | None:
    """The place of the step that has a line of a marked text; of a line without one the place of the next."""
    inside, places = list[str](), list[str | None]([None])
    for found in re.finditer(rf"{_MARK.pattern}|\n", text):
        if found[0].startswith(" --[[>"):
            inside.append(found[1])
        elif found[0] != "\n":
            inside.pop()
        places.append(inside[-1] if inside else None)
    return next((place for place in places[line - 1 :] if place), None)


def line_of(error: Error, title: str) -> int | None:
    """The line of the spec of this title that an error names."""
    found = re.match(rf"{re.escape(title)}:(\d+): ", str(error))
    return int(found[1]) if found else None


def names_a_part(error: Error, title: str) -> bool:
    """Whether it names a line of the spec, or an input that has no name in Python."""
    return line_of(error, title) is not None or _INPUT.search(str(error)) is not None


def at(place: str | None, error: Error) -> Error:
    """The error, which begins with a place in Python. A spec that cannot be is a mod that cannot be translated."""
    if place is None or isinstance(error, NotTranslatable):
        return error
    kind: Any = NotTranslatable if isinstance(error, (SpecError, Unsupported)) else type(error)
    made: Error = kind(f"{place}: {error}")
    return made


def place_of_part(error: Error, title: str, text: str, inputs: dict[str, str]) -> str | None:
    """inputs: where in Python each is read first."""
    found = _MOST_INPUTS.search(str(error))
    if found is not None:
        return [*inputs.values()][int(found[1])]
    line = line_of(error, title)
    if line is not None:
        return place_in(text, line)
    found = _INPUT.search(str(error))
    if found is None and "parameters with a gradient" in str(error):
        found = max(re.finditer(r"\b(x\d+) = {.*grad = true", text), key=lambda x: len(re.findall(rf"\b{x[1]}\b", text)), default=None)
    return inputs.get(found[1]) if found else None


def blamed_again(error: Error, title: str, held: Any, again: Callable[[], Any], place: str | None = None) -> Error:
    """The error with the line of Python that is to blame. again: does what failed with a marked text, which held (a Captured) has then. place: where
    no step is to blame."""
    try:
        again()
    except NotTranslatable as e:
        return e
    except Error as e:
        place = place_of_part(e, title, held.text, held.places) or place
    return at(place, error)
