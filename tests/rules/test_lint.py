"""Warnings: what is allowed in a rules file, but probably not intended."""

import pytest

from ratelimit_service.rules.checks.lint import lint, lint_key, lint_value
from ratelimit_service.rules.rule import counter_key
from tests.books import book

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


def warnings(*descriptors: str) -> list[str]:
    """What is said about a domain with these descriptors, the first of which is at 3:4."""
    lines = "\n".join(f"- {{{descriptor}}}" for descriptor in descriptors)
    return [str(warning) for warning in lint(book(f"domain: d\ndescriptors:\n{lines}\n"))]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("value: /a/*", "value: /a/b*", '"k_/a/b*" is never reached: "k_/a/*" at 1.yaml:3:4 fits first'),
        ("value: '*'", "value: '*x*y*'", '"k_*x*y*" is never reached: "k_*" at 1.yaml:3:4 fits first'),
        ("value: a*c", "value: a*b*c", '"k_a*b*c" is never reached: "k_a*c" at 1.yaml:3:4 fits first'),
        ("value: '*'", "", '"k" is never reached: "k_*" at 1.yaml:3:4 fits first'),
    ],
)
def test_what_an_earlier_wildcard_covers_is_never_reached(first: str, second: str, expected: str) -> None:
    found = warnings(f"key: k, {first}, {LIMIT}", f"key: k, {second}{',' if second else ''} {LIMIT}")

    fix = "move it before that one" if second else "give it a higher priority"
    assert found == [f"1.yaml:4:4: warning: {expected}, whatever would fit this; {fix}, or remove it [unreached]"]


def test_a_key_alone_is_never_reached_even_when_the_wildcard_comes_later() -> None:
    assert len(warnings(f"key: k, {LIMIT}", f"key: k, value: '*', {LIMIT}")) == 1


@pytest.mark.parametrize(
    "descriptors",
    [
        ["value: /a/b*", "value: /a/*"],
        ["value: a*c", "value: a*"],
        ["value: a*b", "value: b*a"],
        ["value: /a/*", "value: /a/b"],
        ["value: a*", ""],
        ["value: '*'", "value: x"],
        ["value: ab*", "value: a*b"],
    ],
)
def test_what_something_reaches_is_not_warned_of(descriptors: list[str]) -> None:
    assert warnings(*(f"key: k, {one}{',' if one else ''} {LIMIT}" for one in descriptors)) == []


@pytest.mark.parametrize("alone", ["key: k", "key: k, value: a", "key: k, value: a*"])
def test_a_descriptor_that_limits_nothing_and_exempts_from_nothing_is_warned_of(alone: str) -> None:
    (found,) = warnings(alone)

    assert "does nothing: it has no rate_limit, no descriptors, and exempts from no limit; give it a rate" in found


@pytest.mark.parametrize(
    "descriptors",
    [
        ["key: k, value: a", f"key: k, {LIMIT}"],
        ["key: k, value: a", f"key: k, value: '*', {LIMIT}"],
        ["key: k, value: a*", f"key: k, {LIMIT}"],
        ["key: k_l, value: a_b", f"key: k_l, {LIMIT}"],
    ],
)
def test_a_descriptor_that_exempts_is_not_warned_of(descriptors: list[str]) -> None:
    assert warnings(*descriptors) == []


def test_warnings_come_from_every_level() -> None:
    (found,) = warnings("key: k, descriptors: [{key: below}]")

    assert found.startswith('1.yaml:3:27: warning: "below" does nothing')


@pytest.mark.parametrize(("requests", "expected"), [(5000, []), (5001, [
    ("1.yaml:3:12: warning: sliding_log remembers up to 5,001 moments in each counter; sub_windows lets no more "
    "through either, and remembers a few numbers [large-log]"),
])])  # fmt: skip
def test_a_huge_log_is_warned_of(requests: int, expected: list[str]) -> None:
    limit = f"{{unit: day, requests_per_unit: {requests}, algorithm: sliding_log}}"

    assert warnings(f"key: k, rate_limit: {limit}") == expected


@pytest.mark.parametrize(("unit", "expected"), [
    ("tokens", []),
    ("request", ["1.yaml:3:70: warning: clients know requests: write quota_unit: requests [quota-unit]"]),
    ("concurrent-requests", [
        "1.yaml:3:70: warning: limits with concurrency count concurrent-requests, and say so by themselves [quota-unit]"
    ]),
])  # fmt: skip
def test_a_quota_unit_that_clients_misunderstand_is_warned_of(unit: str, expected: list[str]) -> None:
    assert warnings(f"key: k, rate_limit: {{unit: day, requests_per_unit: 5, quota_unit: {unit}}}") == expected


def test_a_value_in_another_notation_is_warned_of_at_its_place() -> None:
    (found,) = warnings(f"key: k, value: 10.0.0.0/8, {LIMIT}")

    assert found.startswith('1.yaml:3:19: warning: value "10.0.0.0/8" is compared as text, not as a network')
    assert found.endswith("write cidr: 10.0.0.0/8 [cidr]")


def test_a_key_that_fits_everything_is_warned_of_at_its_place() -> None:
    (found,) = warnings(f"key: '*', {LIMIT}")

    assert found.startswith('1.yaml:3:9: warning: the * of key "*" fits every entry, whatever its key')
    assert found.endswith('if that is meant, add value: "*" [any-key]')
    assert warnings(f"key: '*', value: '*', {LIMIT}") == []


@pytest.mark.parametrize(
    ("unit", "really", "days"),
    [
        ("month", "a month is 30 days, counted from 1970-01-01, in no calendar", 30),
        ("2 months", "2 months are 60 days, counted from 1970-01-01, in no calendar", 60),
        ("year", "a year is 365 days, counted from 1970-01-01, in no calendar", 365),
        ("week", "a week begins on a Thursday at 00:00 UTC, as 1970-01-01 was one", 7),
        ("week, unit_multiplier: 2", "2 weeks begin on a Thursday at 00:00 UTC, as 1970-01-01 was one", 14),
    ],
)
def test_a_window_that_seems_to_follow_the_calendar_says_what_it_is(unit: str, really: str, days: int) -> None:
    true = f"; for the calendar's write calendar: {{unit: {unit}}}" if unit in {"week", "month", "year"} else ""
    instead = f"if that is meant, write unit: {days} days, which counts the same"

    found = warnings(f"key: k, rate_limit: {{requests_per_unit: 1, unit: {unit}}}")

    assert found == [f"1.yaml:3:53: warning: {really}{true}; {instead} [calendar]"]


@pytest.mark.parametrize(
    "unit",
    ["30 days", "day", "5 minutes", "month, anchor: first_request", "week, algorithm: sliding_window", "365 days"],
)
def test_a_window_that_is_what_it_seems_is_not_warned_of(unit: str) -> None:
    assert warnings(f"key: k, rate_limit: {{requests_per_unit: 1, unit: {unit}}}") == []


@pytest.mark.parametrize("days", [7, 30, 365])
def test_what_silences_the_warning_is_the_same_limit_with_the_same_counters(days: int) -> None:
    unit = {7: "week", 30: "month", 365: "year"}[days]

    written, silenced = (
        book(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: {text}, requests_per_unit: 1}}}}]\n").rules[0]
        for text in (unit, f"{days} days")
    )

    assert written.limit == silenced.limit
    assert counter_key(written, (("k", "v"),)) == counter_key(silenced, (("k", "v"),))


def test_all_windows_of_a_file_that_say_the_same_have_one_warning() -> None:
    month = "rate_limit: {unit: month, requests_per_unit: 1}"

    found = warnings(*(f"key: k{number}, {month}" for number in range(13)), f"key: k, {month.replace('month', 'week')}")

    assert [one.split(":")[1] for one in found] == ["3", "16"]
    assert "(also in lines 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, …) [calendar]" in found[0]


@pytest.mark.parametrize(
    ("value", "kind", "instead"),
    [
        ("10.0.0.0/8", "cidr", "write cidr: 10.0.0.0/8"),
        ("10.1.2.9/24", "cidr", "write cidr: 10.1.2.0/24"),
        ("10.1.2.3/32", "cidr", 'write value: "10.1.2.3"'),
        ("0.0.0.0/0", "cidr", "leave the value out to fit any"),
        ("2001:db8::/32", "cidr", "write cidr: 2001:db8::/32"),
        ("1.2.3.4,1.2.3.5", "list", "write values: [1.2.3.4, 1.2.3.5]"),
        ("10.0.0.0/8, 2001:db8::1", "list", "write cidr: [10.0.0.0/8, 2001:db8::1]"),
        ("GET|POST", "list", "write values: [GET, POST]"),
        ("/cart,/checkout", "list", "write values: [/cart, /checkout]"),
        ("2001:DB8::1", "address", 'write value: "2001:db8::1"'),
        ("2001:0db8:0:0::1", "address", 'write value: "2001:db8::1"'),
        ("::FFFF:10.0.0.1", "address", 'write value: "::ffff:10.0.0.1"'),
        ("2001:0DB8:*", "address", 'write value: "2001:db8:*"'),
        ("010.000.000.001", "address", 'write value: "10.0.0.1"'),
        ("192.168.001.*", "address", 'write value: "192.168.1.*"'),
        ("^/api/v[0-9]+/.*", "regex", 'write value: "/api/v*/*"'),
        ("^/api", "regex", 'write value: "/api*"'),
        ("^/api$", "regex", 'write value: "/api"'),
        ("/api/.*", "regex", 'write value: "/api/*"'),
        (r"/users/\d+", "regex", 'write value: "/users/*"'),
        (r"/users/\d+/cart\.json$", "regex", 'write value: "/users/*/cart.json"'),
        ("(free|trial)", "regex", 'write value: "*"'),
        (".*@shop.example", "regex", 'write value: "*@shop.example"'),
        ("(?i)admin(", "regex", "write a descriptor for each text that is meant"),
        ("/api/**", "glob", 'write value: "/api/*"'),
        ("/v?/users", "glob", 'write value: "/v*/users"'),
        ("10.0.0.?", "glob", 'write value: "10.0.0.*"'),
        ("user-??", "glob", 'write value: "user-*"'),
        ("/v[123]/users", "glob", 'write value: "/v*/users"'),
        ("/file[!0-9].txt", "regex", 'write value: "/file*.txt"'),
        ("/api/{v1,v2}/users", "glob", 'write value: "/api/*/users"'),
    ],
)
def test_a_value_in_another_notation_is_told_with_what_to_write(value: str, kind: str, instead: str) -> None:
    odd = lint_value("k", value)

    assert odd is not None
    assert odd.kind == kind
    assert instead in odd.message
    assert "compared as text" in odd.message or "**" in odd.message


@pytest.mark.parametrize(
    "value",
    [
        *("", "ada", "free", "10.0.0.1", "10.*", "*", "www.*", "*.shop.example", "user_*", "/a/*/b", "/files/*"),
        *("/v1.2/x", "/index.html", "/path/1/2", "/12", "a/24", "/search?q=*", "/search?*", "/login?next=/home"),
        *("/.well-known/*", "/user/{id}", "/user/[id]", "/user/:id", "/c++/x", "/a;v=1", "/a.*", "/items[0]"),
        *("ada@shop.example", "ada.l+tag@shop.example", "dependabot[bot]", "*[bot]", "DOMAIN\\doe", "DOMAIN\\s*"),
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36",
        "Mozilla/4.7 [en] (X11; I; Linux)",
        "curl/8.5.0",
        *('{"a":1,"b":2}', '["a","b"]', "[1,2]", "{}", "key=value;other=1", "text/html,application/json;q=0.9"),
        *("1.2.3", "^1.2.3", "^1.2.x", "~1.2", "v1.0.0-rc.1", "1.02.3", "10.04", "2024-01-31", "12:30:45"),
        *("de,en", "en-US,en;q=0.5", "Doe, John", "a|b", "what?", "100%", "US$", "$5", "a$b", "x^2", "f(x)"),
        *("::1", "2001:db8::1", "2001:db8:*", "::ffff:10.0.0.1", "fe80::1%eth0", "[2001:db8::1]:80", "shop:8080"),
        *("00:1A:2B:3C:4D:5E", "00:1A:2B:FF:FE:3C:4D:5E", "00:1A:*", "A::B", "DB::Add", "Foo::Bar", "urn:isbn:045"),
        *("arn:aws:iam::123456789012:user/ada", "sha256:00ab", "Basic YWRhOmxvdmU=", "0123456789", "00:00:00"),
    ],
)
def test_a_good_value_is_not_warned_of(value: str) -> None:
    assert lint_value("k", value) is None


def test_networks_are_the_values_of_envoys_masked_addresses() -> None:
    assert lint_value("masked_remote_address", "10.0.0.0/8") is None
    assert lint_value("masked_remote_address", "2001:db8::/32") is None
    odd = lint_value("masked_remote_address", "10.1.2.3/8")
    assert odd is not None
    assert 'Envoy sends this network otherwise: write value: "10.0.0.0/8"' in odd.message


def test_a_header_of_forwarded_addresses_is_a_list_of_them() -> None:
    assert lint_value("x-forwarded-for", "10.0.0.1, 10.0.0.2") is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("*", "", "fits every entry, whatever its key"),
        ("user*", "", "stands for any text in key and value together"),
        ("*", "*", None),
        ("*", "ada", None),
        ("user", "*", None),
        ("user", "", None),
    ],
)
def test_a_key_with_a_wildcard_and_no_value_is_told_what_it_fits(key: str, value: str, words: str | None) -> None:
    odd = lint_key(key, value)

    assert (odd is not None) == (words is not None)
    assert words is None or (odd is not None and words in odd.message and odd.kind == "any-key")


@pytest.mark.parametrize("pattern", ["[ab]*a[ab]{900}c", ".*(a.{0,300}b){2}.*x"])
def test_a_regex_that_is_slow_on_some_value_is_a_warning(pattern: str) -> None:
    (warning,) = lint(book(f"domain: d\ndescriptors: [{{key: k, regex: '{pattern}', {LIMIT}}}]\n"))

    assert str(warning).startswith(f'1.yaml:2:16: warning: regex "{pattern}" takes ')
    assert " ms for some value of 2,048 bytes, in which no other request is answered; " in str(warning)
    assert str(warning).endswith(" [slow-regex]")


@pytest.mark.parametrize(
    "pattern",
    [
        "/v[0-9]+/users/[0-9]+(/.*)?",
        "(a+)+$",
        r".*\.(php|asp|aspx|jsp|cgi)",
        "/v[0-9]+/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"(?i)straße|\p{Greek}+",
        ".*a.*b.*c.*d.*",
    ],
)
def test_other_regexes_are_not(pattern: str) -> None:
    assert lint(book(f"domain: d\ndescriptors: [{{key: k, regex: '{pattern}', {LIMIT}}}]\n")) == []
