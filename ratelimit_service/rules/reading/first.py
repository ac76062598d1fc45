"""Lists with `charge: first`: what a limit of such a list may have, and its name."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ratelimit_service.model import Limit
from ratelimit_service.rules.problems import Positioned, Report, quoted
from ratelimit_service.rules.rule import Rule
from ratelimit_service.rules.syntax.document import YamlMap
from ratelimit_service.rules.syntax.maps import given
from ratelimit_service.telemetry.tally import Path

_PASSED_OVER: Final = "a limit without room is passed over, and denies nothing by itself"
_WHY_NOT: Final = {
    "count_refused": _PASSED_OVER,
    "block_for": _PASSED_OVER,
    "block_up_to": _PASSED_OVER,
    "queue": "a request would wait for its turn while a later limit has room",
    "concurrency": "a refund gives back a place, and does not say of which limit",
}
"""Why a limit cannot have an option. As defaults of the file these do not apply to it."""


def defaults(
    block: YamlMap, options: Mapping[str, Any], of_file: Mapping[str, Any], report: Report
) -> Mapping[str, Any]:
    """The defaults of the file as they apply to such a limit; what it cannot have is reported."""
    for key, why in _WHY_NOT.items():
        if given(block, key) and options.get(key) is not False:
            message = f"{key} contradicts charge: first, where {why}: remove it, or write charge: together"
            report.add(block.fields[key].key, message)
    return {**{key: value for key, value in of_file.items() if key not in _WHY_NOT}, "count_refused": False}


def path_suffix(at: Positioned, name: str, limit: Limit, before: Sequence[Rule], report: Report) -> Path:
    """The name of a limit in its list: its own, as others may have the same window."""
    if not name:
        report.add(at, "with charge: first each limit needs a name, which says what was charged; write name: plan")
    same = next((other for other in before if name and other.name == name), None)
    if same is not None:
        report.add(at, f"{quoted(name)} is the name of two limits of this list, first at {same.place}")
    other = before[0].limit if before else None
    if other is not None and limit.kind.reserves != other.kind.reserves:
        message = f"some limits of this list have reserve, and some have not, first at {before[0].place}"
        report.add(at, f"{message}: with charge: first write it into all of them, or into none")
    return (name,) if name else ()
