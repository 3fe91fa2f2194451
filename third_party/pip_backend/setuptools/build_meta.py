"""Answers for a build backend when `pip download` asks a source distribution for its metadata.

Only the archive is wanted: with this on PYTHONPATH, pip runs no code of the package and fetches nothing that would build it.
"""

import os
import re
import shutil
import sys


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as info:
        text = info.read()
    name, version = (re.search(f"(?m)^{field}: *(.*)$", text).group(1) for field in ("Name", "Version"))
    folder = re.sub("[-.]+", "_", name) + f"-{version}.dist-info"
    os.mkdir(os.path.join(metadata_directory, folder))
    shutil.copy("PKG-INFO", os.path.join(metadata_directory, folder, "METADATA"))
    return folder


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise NotImplementedError("this stands in for a build backend and builds nothing")


__legacy__ = sys.modules[__name__]  # what pip calls where pyproject.toml names no backend
