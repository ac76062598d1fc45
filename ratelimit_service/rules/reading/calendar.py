"""The map `calendar` of a limit -> its calendar."""

from ratelimit_service.rules.problems import Report, quoted
from ratelimit_service.rules.syntax.document import Scalar, YamlMap
from ratelimit_service.rules.syntax.maps import given, read_options
from ratelimit_service.rules.syntax.options import MapType
from ratelimit_service.system.calendar import Calendar, calendar_of


def read_calendar(block: YamlMap, fields: YamlMap, report: Report) -> Calendar | None:
    """The calendar of the limit in this block; None if malformed, or contradicted by the block, which is reported."""
    for key in ("unit", "unit_multiplier"):
        if given(block, key):
            report.add(block.fields[key].key, f"{key} contradicts calendar: remove one of them")
            return None
    anchor = block.fields["anchor"].value if "anchor" in block.fields else None
    if isinstance(anchor, Scalar) and anchor.value == "first_request":
        report.add(anchor, "first_request contradicts calendar: remove one of them")
        return None
    options = read_options(fields, MapType.CALENDAR, report)
    if len(options) < sum(given(fields, key) for key in fields.fields) or "unit" not in options:
        return None  # reported
    unit = options["unit"]
    own, other = ("week", "start") if unit == "week" else ("start", "week")
    if other in options:
        advice = ", only for week" if other == "week" else "; write week: monday or another day"
        report.add(fields.fields[other].key, f"{other} has no meaning for the unit {unit}{advice}")
        return None
    start = options.get(own, "")
    try:
        return calendar_of(unit, start, options.get("zone", "UTC"))
    except ValueError as error:
        report.add(fields.fields[own].value, f"start {quoted(start)} {error}")
        return None
