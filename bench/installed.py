"""installed.py: tells which contenders are installed, and why the others are not. Standard library only."""

from importlib import metadata


class NotInstalled(Exception):
    """Names the package that a contender lacks, and how to install it."""


def open_contenders(openers, needed, without):
    """Opens each library that is needed and not excluded. Returns two dicts by name: makers, and for each
    missing library the reason.

    openers: name -> a function that returns the maker or raises NotInstalled; other errors are passed on."""
    makers, absent = {}, {}
    for name, opener in openers.items():
        if name in without or name not in needed:
            continue
        try:
            makers[name] = opener()
        except NotInstalled as e:
            absent[name] = str(e)
    return makers, absent


def version_of(package):
    """Returns the installed version, or "unversioned" for a folder of sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unversioned"


def check_wanted(wanted, makers, absent):
    """Returns a line that names the wanted but missing contenders with reasons; None if there are none."""
    missing = [f"{x}: {absent.get(x, 'no chosen cell has it')}" for x in wanted if x not in makers]
    return "; ".join(missing) or None
