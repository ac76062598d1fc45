"""The settings in force, as an operator would write them, without what is secret in them."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic import BeforeValidator, SecretStr

from ratelimit_service.settings.fields import AUTO, Section
from ratelimit_service.settings.redis_url import masked
from ratelimit_service.settings.settings import SETTINGS, Settings
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND

_UNITS: Final = ((HOUR, "h"), (MINUTE, "m"), (SECOND, "s"), (1_000, "ms"), (1, "us"))


class ShownSetting(NamedTuple):
    """One setting."""

    section: Section
    name: str
    """Of its variable."""
    value: str
    """`set` or `not set` instead of a secret; of a URL all but what may be a password."""
    default: bool
    """It has the value that it has if it is not set."""
    help: str


def shown_settings(settings: Settings) -> Iterator[ShownSetting]:
    """All of them, in the order of docs/settings.md."""
    defaults = Settings()
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        default = setting.field not in settings.model_fields_set or value == getattr(defaults, setting.field)
        text = _text(setting.field, value)
        yield ShownSetting(setting.section, setting.variable, text, default, setting.meaning.replace("`", ""))


def _text(field: str, value: Any) -> str:
    """The value as its reader reads it."""
    match value:
        case SecretStr() if field.endswith("url"):
            return masked(value.get_secret_value())
        case SecretStr():
            return "set" if value.get_secret_value() else "not set"
        case bool():
            return str(value).lower()
        case int() if field == "workers":
            return "auto" if value == AUTO else str(value)
        case 0 if field == "store_deadline":
            return ""
        case int() if _is_time(field):
            return _duration(value)
        case float():
            return f"{value:.15g}"
        case Tcp():
            return str(value)
        case (int(percent), int(time)):
            return f"{percent}%" if percent else _duration(time) if time else ""
        case tuple():
            return ",".join(each if isinstance(each, str) else ":".join(each) for each in value)
    return str(value)


def _is_time(field: str) -> bool:
    """Whether its reader reads times, which are microseconds then."""
    for check in Settings.model_fields[field].metadata:
        if isinstance(check, BeforeValidator):
            read: Any = check.func
            try:
                return bool(read("1h") == HOUR)
            except ValueError:
                return False
    return False


def _duration(microseconds: int) -> str:
    """`1h`, `90s` or `1500us`: whole numbers of the largest unit; `0`."""
    if not microseconds:
        return "0"
    size, unit = next((size, unit) for size, unit in _UNITS if microseconds % size == 0)
    return f"{microseconds // size}{unit}"
