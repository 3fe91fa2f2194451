"""The command `luattn`, also as `python -m luattn`: `info`, and the subcommands of the program that comes with the package."""

import importlib.metadata
import os
import platform
import subprocess
import sys

from ._examples import examples
from ._library import __version__, _path
from .engine import nvrtc_path
from .errors import in_python

_HERE = os.path.dirname(os.path.abspath(__file__))
# In the package as it is installed; beside the library of a build in the source tree.
_PROGRAMS = os.path.join(_HERE, "bin", "luattn"), os.path.join(os.path.dirname(_path()), "..", "cli", "luattn")
_HELP = """
also: luattn info      versions, driver, NVRTC, GPUs, cache: what an error report should say
A SPEC that stands before options, or behind the value of one, may be the name of an example: luattn check gemma2. Examples: """


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _answer(program: str, *args: str) -> str:
    """What the program says, be it an error."""
    done = subprocess.run([program, *args], capture_output=True, text=True)
    return (done.stdout or done.stderr).strip()


def _info(program: str) -> str:
    """What decides how calls are computed here."""
    rows = {
        "luattn": f"{__version__}, {_path()}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "torch": _version("torch"),
        "NumPy": _version("numpy"),
        "NVRTC": os.environ.get("LUATTN_NVRTC") or 'the system\'s; pip install "luattn[cu13]" brings one',
        "GPUs": in_python(_answer(program, "devices")),
        "cache": _answer(program, "cache", "info"),
        "examples": f"{len(examples())} in {os.path.dirname(next(iter(examples().values()), ''))}",
    }
    width = max(map(len, rows)) + 2
    return "\n".join(f"{name:{width}}" + value.replace("\n", "\n" + " " * width) for name, value in rows.items())


def _with_paths(args: list[str]) -> list[str]:
    """The arguments with the paths of examples in the place of their names. What follows an option may be its value, such as a file that is
    to be written, and stays as it is."""
    known = examples()
    return [
        arg if os.path.exists(arg) or before.startswith("-") else known.get(arg, arg) for before, arg in zip(["", *args], args)
    ]


def main() -> int:
    """Runs the command line. Returns its exit code, or does not return where the program takes over."""
    args = sys.argv[1:]
    program = next(filter(os.path.exists, _PROGRAMS), None)
    if program is None:
        print(f"luattn: its program is neither {' nor '.join(_PROGRAMS)}; install a wheel, or ./bootstrap build", file=sys.stderr)
        return 1
    nvrtc = nvrtc_path()
    if nvrtc is not None:
        os.environ["LUATTN_NVRTC"] = nvrtc.decode()
    if args == ["info"]:
        print(_info(program))
        return 0
    if args in ([], ["--help"], ["-h"]):
        print(_answer(program, "--help") + "\n" + _HELP + ", ".join(examples()))
        return 0
    os.execv(program, ["luattn", *_with_paths(args)])


if __name__ == "__main__":
    sys.exit(main())
