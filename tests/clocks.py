"""A clock that tests turn."""


class Clock:
    """Stands still until it is advanced."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, microseconds: int) -> None:
        self.now += microseconds
