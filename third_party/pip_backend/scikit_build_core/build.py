"""The same answers, for projects whose build backend is this one."""

from setuptools.build_meta import build_wheel, prepare_metadata_for_build_wheel  # noqa: F401
