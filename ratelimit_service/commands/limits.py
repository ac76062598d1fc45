"""How a limit is written on the command line: `10/minute`, `10/5 minutes`."""

from typing import Final

import click

from ratelimit_service.model import MAX_REQUESTS, Limit, Unit
from ratelimit_service.rules.options import read_window, window_problem


class _LimitType(click.ParamType[Limit]):
    """`N/UNIT`, where the unit is as in a rules file."""

    name = "N/UNIT"

    def convert(self, value: str | Limit, param: click.Parameter | None, ctx: click.Context | None) -> Limit:
        if isinstance(value, Limit):
            return value
        requests, _, unit = value.partition("/")
        span = read_window(unit.strip())
        if not requests.isdecimal() or int(requests) > MAX_REQUESTS or span is None:
            units = ", ".join(unit.name.lower() for unit in Unit)
            self.fail(f"{value!r} is not a limit such as 10/minute or '10/5 minutes'; units are {units}", param, ctx)
        if span.times is not None and (problem := window_problem(span.unit, span.times)):
            self.fail(f"{value!r}: a window of {unit.strip()} {problem}", param, ctx)
        return Limit(int(requests), span.unit, span.window)


LIMIT: Final = _LimitType()
