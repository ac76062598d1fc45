"""Warnings that clients can cause: each kind at most once a minute, so that no client can fill the log."""

import logging
import re
from collections.abc import Callable
from typing import Final

from ratelimit_service.system.clock import MINUTE

_NUMBERS: Final = re.compile(r"\d+")


class Notices:
    """Into one log; `now` is microseconds of a clock that does not go back."""

    def __init__(self, log: logging.Logger, now: Callable[[], int]) -> None:
        self._log = log
        self._now = now
        self._logged: dict[str, int] = {}

    def warn(self, message: str, client: str = "") -> None:
        """Unless one that differs in its numbers, or in the client, at most was logged within the last minute."""
        kind, now = _NUMBERS.sub("", message), self._now()
        logged = self._logged.get(kind)
        if logged is None or now - logged >= MINUTE:
            self._logged[kind] = now
            self._log.warning("%s%s; logged at most once a minute", message, f" (from {client})" if client else "")
