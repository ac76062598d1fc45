"""The operator's knobs: declared once, read once, validated all together."""

from ratelimit_service.settings.choices import AUTO
from ratelimit_service.settings.env_file import default_env_file
from ratelimit_service.settings.fields import Knob, Section
from ratelimit_service.settings.load import load_settings
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
