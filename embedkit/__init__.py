"""embedkit: text to sentence vectors and search, from one small package with a compiled core."""

from importlib.metadata import version as _version

__version__ = _version("embedkit")
