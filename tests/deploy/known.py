"""What a deployment says to the service, held to what the service understands."""

from collections.abc import Mapping
from typing import Final

from ratelimit_service.commands.serve import STOP_SECONDS
from ratelimit_service.settings import SETTINGS, Settings, load_settings

VARIABLES: Final = frozenset(setting.variable for setting in SETTINGS)
SECOND: Final = 1_000_000


def understood(environ: Mapping[str, str]) -> Settings:
    """The settings of this environment: every name is one of ours, every value is right, and nothing is unused."""
    settings, warnings = load_settings(environ)

    assert environ.keys() <= VARIABLES
    assert warnings == []
    return settings


def max_stop(settings: Settings) -> float:
    """Seconds between SIGTERM and the end, at most: then the service ends itself, and removes its sockets."""
    return settings.drain_seconds + settings.drain_timeout / SECOND + STOP_SECONDS
