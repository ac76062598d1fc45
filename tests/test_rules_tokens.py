"""RULES_TOKENS: who may change the rules of which domains."""

from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import load_settings
from ratelimit_service.settings.rules_tokens import RulesToken, read_rules_tokens

ONE, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"


def test_each_token_has_a_name_and_domains() -> None:
    assert read_rules_tokens(f"ada:{ONE}:shop, blog ;\n# of the platform\nci@host:{OTHER}:*") == (
        RulesToken("ada", ONE, ("shop", "blog")),
        RulesToken("ci@host", OTHER, ("*",)),
    )
    assert read_rules_tokens("") == ()


@pytest.mark.parametrize(
    ("domains", "domain", "may"),
    [
        (("shop",), "shop", True),
        (("shop",), "shop2", False),
        (("shop",), "*", False),
        (("team/*",), "team/a", True),
        (("team/*",), "team", False),
        (("blog", "*"), "anything", True),
    ],
)
def test_a_token_changes_its_domains_alone(domains: tuple[str, ...], domain: str, may: bool) -> None:
    assert RulesToken("ada", ONE, domains).may_change(domain) is may


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ada", "number 1: it is not NAME:TOKEN:DOMAIN,DOMAIN"),
        (f"ada:{ONE}:", "number 1: it is not NAME:TOKEN:DOMAIN,DOMAIN"),
        (f"ada:{ONE}:shop;bob:{OTHER}:a,,b", "number 2: it is not NAME"),
        (f"a da:{ONE}:shop", "its name is not of letters, digits"),
        (f"ada:{ONE[:-1]}:shop", "its token does not have 32 characters or more"),
        (f"ada:{ONE[:-1]}é:shop", "its token does not have 32 characters or more"),
        (f"ada:{ONE}:shop;bob:{ONE}:blog", "number 2: another one has the same token"),
    ],
)
def test_what_is_wrong_is_told_without_a_token(text: str, wrong: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings({"RULES_TOKENS": text})

    assert wrong in str(raised.value)
    assert ONE[:-1] not in str(raised.value)


def test_they_may_stand_in_a_file_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"ada:{ONE}:shop\nbob:{OTHER}:blog\n")

    settings, _ = load_settings({"RULES_TOKENS_FILE": str(tmp_path / "tokens")})

    assert [token.name for token in settings.rules_token_list] == ["ada", "bob"]


def test_rules_are_stored_in_redis_only_where_counters_are() -> None:
    with pytest.raises(SettingsError, match="BACKEND_TYPE"):
        load_settings({"RULES_STORE": "redis", "BACKEND_TYPE": "memory"})

    settings, _ = load_settings({"RULES_STORE": "redis", "REDIS_URL": "localhost"})
    assert settings.rules_store == "redis"
