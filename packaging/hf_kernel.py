"""Writes a repository for Hugging Face's `kernels` out of wheels: flash-attn's functions, on luattn.

    python3 packaging/hf_kernel.py build/luattn-flash-attn2 build/wheel/*/luattn-*.whl

A folder in build/ for each machine and backend, named as `kernels` selects them: from torch 2.6 on, for the CPU, CUDA 12 and CUDA 13. Each
has the package of the wheel, which no version of torch is compiled into."""

import argparse
import json
import pathlib
import re
import textwrap
import zipfile

NAME, VERSION = "luattn-flash-attn2", 1  # transformers takes a name with `flash` and a 2 for flash-attn 2's functions
BACKENDS = {"cpu": "cpu", "cu120": "cuda", "cu130": "cuda"}  # a folder's, and its type
TORCH = "torch-stable-abi26"

INIT = '''
"""flash-attn 2's functions, on luattn."""

import importlib.util
import os
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "luattn")
_VERSION = "{version}"


def _package():
    """luattn: the one of this process, else the one that is installed, else the one that is here. Its ops are in torch once."""
    if "luattn" not in sys.modules and importlib.util.find_spec("luattn") is None:
        spec = importlib.util.spec_from_file_location("luattn", os.path.join(_FOLDER, "__init__.py"), submodule_search_locations=[_FOLDER])
        module = importlib.util.module_from_spec(spec)
        sys.modules["luattn"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["luattn"]
            raise
    import luattn

    if luattn.__version__ != _VERSION:
        raise ImportError(f"{name}: luattn {{luattn.__version__}} is installed, and this kernel is of {{_VERSION}}: install that version, or none")
    return luattn


_luattn = _package()
attention, Batch, examples = _luattn.attention, _luattn.Batch, _luattn.examples
from luattn.flash_attn import *  # noqa: E402, F403
from luattn.flash_attn import __all__ as _functions  # noqa: E402

__all__ = [*_functions, "Batch", "attention", "examples"]
'''

CARD = """
---
library_name: kernels
license: apache-2.0
---

# {name}

flash-attn 2's functions on luattn {version}, an attention compiler: `flash_attn_func`, `flash_attn_varlen_func`,
`flash_attn_with_kvcache` and their packed forms, with learned ALiBi slopes and sinks, and on the CPU. `attention(spec)` is any other variant. Kernels are
compiled when they are first called, by NVRTC, which torch brings.
"""


def files_of(wheel):
    """The package in a wheel but its program, and its licence."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if name.startswith("luattn/") and not name.startswith("luattn/bin/")}
        licences = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
        found["luattn/LICENSE"] = archive.read(licences[0])
    return found


def write(out, machine, files, version):
    """The folders of one machine. files: {path: bytes} of the package."""
    out = pathlib.Path(out)
    for backend, kind in BACKENDS.items():
        folder = out / "build" / f"{TORCH}-{backend}-{machine}-linux"
        identifier = re.sub(r"\W", "_", f"_{NAME}_{version}_{backend}_{machine}")
        metadata = {"id": identifier, "name": NAME, "version": VERSION, "license": "Apache-2.0", "python-depends": [], "backend": {"type": kind}}
        init = INIT.strip().format(version=version, name=NAME) + "\n"
        written = {**files, "__init__.py": init.encode(), "metadata.json": json.dumps(metadata, indent=2).encode() + b"\n"}
        for name, data in written.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (out / "README.md").write_text(textwrap.dedent(CARD).strip().format(name=NAME, version=version) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, help="a folder that does not exist")
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} exists; name a new folder")
    for wheel in given.wheels:
        match = re.fullmatch(r"luattn-([^-]+)-py3-none-manylinux_2_17_(\w+)\.whl", wheel.name)
        if match is None:
            parser.error(f"{wheel.name}: expected luattn-VERSION-py3-none-manylinux_2_17_MACHINE.whl")
        write(given.out, match[2], files_of(wheel), match[1])
    print(*sorted(path.name for path in (given.out / "build").iterdir()), sep="\n")


if __name__ == "__main__":
    main()
