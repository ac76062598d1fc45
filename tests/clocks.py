"""A clock that tests turn; and the machine's own, which they cannot."""

import time


class Clock:
    """Stands still until it is advanced."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, microseconds: int) -> None:
        self.now += microseconds


def stay_within(window: int, seconds: float = 20) -> None:
    """Returns when the calendar's present window of so many seconds goes on for at least so long.

    A test that counts by the machine's clock, or by Redis's, counts in two windows when one ends meanwhile.
    """
    left = window - time.time() % window
    if left < seconds:
        time.sleep(left)
