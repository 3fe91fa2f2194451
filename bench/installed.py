"""installed.py: tells which contenders are installed, and why the others are not. Standard library only."""

from importlib import metadata


class NotInstalled(Exception):
    """Raised with what a contender lacks, and how to get it."""


def open_contenders(openers, needed, without):
    """Opens each library that is needed and not left out. Returns makers, and the reasons of missing ones,
    by name.

    openers: by name, a function that returns the maker or raises NotInstalled; other errors are passed on."""
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
    """The installed version; "unversioned" for a folder of sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unversioned"


def check_wanted(wanted, makers, absent):
    """Says in one line which wanted contenders are not measured and why; None if all are."""
    missing = [f"{x}: {absent.get(x, 'no chosen cell has it')}" for x in wanted if x not in makers]
    return "; ".join(missing) or None
