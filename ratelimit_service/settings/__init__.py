"""The operator's knobs: declared once, read once, validated all together."""

from ratelimit_service.settings.fields import AUTO, Knob, Section
from ratelimit_service.settings.load import default_env_file, load_settings
from ratelimit_service.settings.settings import FLAGS, KNOBS, RedisSettings, Settings

__all__ = [
    "AUTO",
    "FLAGS",
    "KNOBS",
    "Knob",
    "RedisSettings",
    "Section",
    "Settings",
    "default_env_file",
    "load_settings",
]
