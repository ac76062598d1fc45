"""The settings in force, as `/status/settings` shows them: truthfully, and without a secret."""

from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

from ratelimit_service.settings import SETTINGS, Settings, load_settings
from ratelimit_service.settings.shown import ShownSetting, shown_settings

MARK: Final = "Zq7XkVw9TbN2"

SECRETS: Final = [name for name, info in Settings.model_fields.items() if info.annotation is SecretStr]


def shown(**environ: str) -> dict[str, ShownSetting]:
    settings, _ = load_settings(environ)
    return {setting.name: setting for setting in shown_settings(settings)}


def test_every_setting_is_shown_with_its_help() -> None:
    found = shown()

    assert list(found) == [setting.variable for setting in SETTINGS]
    assert all(setting.default and setting.help and "`" not in setting.help for setting in found.values())


def test_a_value_is_shown_as_an_operator_writes_it_and_says_whether_it_was_chosen() -> None:
    given = {
        "GRPC_PORT": "9999",
        "HOST": "127.0.0.1,::1",
        "GRPC_KEEPALIVE_TIME": "90m0s",
        "RULES_POLL_INTERVAL": "1500ms",
        "DRAIN_TIMEOUT": "30s",
        "GRPC_MAX_CONNECTION_AGE": "0",
        "STORE_DEADLINE": "0.9s",
        "SHADOW_MODE": "1",
        "REDIS_URL": "redis:6379",
        "WORKERS": "AUTO",
        "NEAR_LIMIT_RATIO": ".75",
        "RESPONSE_RETRY_AFTER_JITTER": "10%",
        "EXTRA_TAGS": "zone:a,team:b",
        "RESPONSE_HEADERS": "ietf",
    }
    found = shown(**given)

    assert {name: (found[name].value, found[name].default) for name in (*given, "BACKEND_TYPE")} == {
        "GRPC_PORT": ("9999", False),
        "HOST": ("127.0.0.1,::1", False),
        "GRPC_KEEPALIVE_TIME": ("90m", False),
        "RULES_POLL_INTERVAL": ("1500ms", False),
        "DRAIN_TIMEOUT": ("30s", True),
        "GRPC_MAX_CONNECTION_AGE": ("0", False),
        "STORE_DEADLINE": ("900ms", False),
        "SHADOW_MODE": ("true", False),
        "REDIS_URL": ("redis:6379", False),
        "WORKERS": ("auto", False),
        "NEAR_LIMIT_RATIO": ("0.75", False),
        "RESPONSE_RETRY_AFTER_JITTER": ("10%", False),
        "EXTRA_TAGS": ("zone:a,team:b", False),
        "RESPONSE_HEADERS": ("ietf", False),
        "BACKEND_TYPE": ("redis", True),
    }


def test_all_values_that_are_shown_are_read_as_the_same_ones() -> None:
    values = {name: setting.value for name, setting in shown().items() if name.lower() not in SECRETS}

    again, _ = load_settings(values)

    assert again == Settings()


@pytest.mark.parametrize("field", SECRETS)
def test_no_part_of_a_secret_is_shown(field: str) -> None:
    secret = f"{MARK}-0123456789abcdef0123456789abcdef"
    secret = f"ada:{secret}:shop" if field == "rules_tokens" else secret
    for text in (f"redis://ada:{secret}@host:6379/1", f"redis://{secret}@host") if field.endswith("url") else (secret,):
        found = shown(**{field.upper(): text, "REDIS_PERSECOND": "true"})

        assert not [setting for setting in found.values() if MARK in repr(setting)]
        assert found[field.upper()].value in {"set", "redis://***@host:6379/1", "redis://***@host"}
        assert not found[field.upper()].default


def test_a_secret_that_stands_in_a_file_is_set_and_the_path_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(MARK * 4, encoding="utf-8")

    found = shown(ADMIN_TOKEN_FILE=str(file))

    assert (found["ADMIN_TOKEN"].value, found["ADMIN_TOKEN_FILE"].value) == ("set", str(file))
    assert found["HASH_KEY"].value == "not set"
