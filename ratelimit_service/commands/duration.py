"""A duration on the command line."""

from typing import Final

import click

from ratelimit_service.system.duration import read_duration


class DurationType(click.ParamType[int]):
    """A duration such as 10s, 1m30s or '15 minutes', in microseconds."""

    name = "DURATION"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The duration, or a usage error."""
        try:
            duration = value if isinstance(value, int) else read_duration(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if duration <= 0:
            self.fail(f"{value!r} is not longer than 0", param, ctx)
        return duration


DURATION: Final = DurationType()
