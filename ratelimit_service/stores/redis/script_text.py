"""The text of scripts that have twins of algorithms in them, which the head of `batch.lua` opens by their names."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from ratelimit_service.algorithms.kinds import KINDS

_PLACE: Final = "--twins--\n"
_NAMES: Final = "--names--"
_EDGE: Final = "--steps--\n"
"""The line behind the head."""


def script_text(twins: Sequence[str], steps: str = "batch.lua") -> str:
    """The source of a script with these twins: that of the batch, or of another file of steps."""
    here = files(__package__)
    head, edge, batch = here.joinpath("batch.lua").read_text(encoding="utf-8").partition(_EDGE)
    assert edge
    assert _NAMES in head
    assert _PLACE in head
    opened = "\n".join(f"if name == '{name}' then\n{_chunk(name)}\nend\n" for name in twins)
    head = head.replace(_NAMES, ", ".join(map(repr, twins))).replace(_PLACE, opened)
    return head + (batch if steps == "batch.lua" else here.joinpath(steps).read_text(encoding="utf-8"))


def _chunk(twin: str) -> str:
    folder = KINDS[twin].__module__.rpartition(".")[0] if twin in KINDS else "ratelimit_service.algorithms"
    return files(folder).joinpath(f"{twin}.lua").read_text(encoding="utf-8")
