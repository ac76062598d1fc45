"""Which build of the service runs: the sources alone, or with compiled modules beside them."""

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ratelimit_service import __version__


@cache
def is_compiled() -> bool:
    """Whether HTTP/2's connections are compiled: Python imports a library in place of the source beside it."""
    folder = Path(__file__).parent.parent / "transports" / "http2"
    return any((folder / f"connection{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def version_in_words() -> str:
    """The version, and whether it is the compiled build."""
    return f"{__version__} (compiled)" if is_compiled() else __version__
