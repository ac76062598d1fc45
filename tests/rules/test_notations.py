"""Values in a notation that rules do not have are warned of, and good values are not."""

import pytest

from ratelimit_service.rules.lint import lint_key, lint_value


@pytest.mark.parametrize(
    ("value", "kind", "instead"),
    [
        ("10.0.0.0/8", "cidr", 'write value: "10.*"'),
        ("10.1.2.0/24", "cidr", 'write value: "10.1.2.*"'),
        ("10.1.2.3/32", "cidr", 'write value: "10.1.2.3"'),
        ("0.0.0.0/0", "cidr", "leave the value away to fit any"),
        ("172.16.0.0/12", "cidr", 'v4_prefix_mask_len: 12, and write that key with value: "172.16.0.0/12"'),
        ("2001:db8::/32", "cidr", 'v6_prefix_mask_len: 32, and write that key with value: "2001:db8::/32"'),
        ("1.2.3.4,1.2.3.5", "list", "write a descriptor for each address"),
        ("10.0.0.0/8, 2001:db8::1", "list", "write a descriptor for each address"),
        ("GET|POST", "list", "write a descriptor for each method"),
        ("/cart,/checkout", "list", "write a descriptor for each path"),
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
