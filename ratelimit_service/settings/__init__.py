"""Settings of the operator: declared once, read once, validated all together."""

from ratelimit_service.settings.fields import AUTO, Section, Setting
from ratelimit_service.settings.load import default_env_file, load_settings
from ratelimit_service.settings.settings import FLAGS, SETTINGS, RedisSettings, Settings

__all__ = [
    "AUTO",
    "FLAGS",
    "SETTINGS",
    "RedisSettings",
    "Section",
    "Setting",
    "Settings",
    "default_env_file",
    "load_settings",
]
