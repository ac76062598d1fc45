"""Warnings that clients can cause: each kind at most once a minute, so that nobody can fill the log."""

import logging
import re
from collections.abc import Callable
from typing import Final

from ratelimit_service.clock import MINUTE

_NUMBERS: Final = re.compile(r"\d+")


class Notices:
    """Into one log; `now` is microseconds of a clock that does not go back."""

    def __init__(self, log: logging.Logger, now: Callable[[], int]) -> None:
        self._log = log
        self._now = now
        self._told: dict[str, int] = {}

    def warn(self, message: str) -> None:
        """Unless one that differs in its numbers at most was told a moment ago."""
        kind, now = _NUMBERS.sub("", message), self._now()
        told = self._told.get(kind)
        if told is None or now - told >= MINUTE:
            self._told[kind] = now
            self._log.warning("%s; more of these are told in a minute", message)
