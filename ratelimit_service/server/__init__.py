"""A running service: its parts put together, in one process or several, and what it shows of itself."""
