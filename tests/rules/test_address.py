"""Addresses and networks have one form each, and are what the standard library says."""

from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.address import IPV4, address_text, by_prefix, parse_address, parse_network


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("2001:db8::", "2001:db8::"),
        ("fe80::1%eth0", "fe80::1"),
        ("::", "::"),
        ("0::ffff:0:1", "0.0.0.1"),
        ("64:ff9b::10.0.0.1", "64:ff9b::a00:1"),
    ],
)
def test_an_address_has_one_form(text: str, canonical: str) -> None:
    number = parse_address(text)

    assert number is not None
    assert address_text(number) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "10.0.0",
            "10.0.0.256",
            "010.0.0.1",
            "10.0.0.1.",
            "10.0.0.1/8",
            " 10.0.0.1",
            "10.0.0.1:80",
            "1.2.3.٤",
        ),
        *(":", ":::", "1::2::3", "12345::", "g::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8:9", "1_0::"),
        *("-1::", "::1%", "::1%a%b", "[::1]", "::1.2.3", "1.2.3.4::", "::+1", ":1", "1:", "10.0.0.1%eth0", "1" * 100),
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None


ALIKE = st.text(alphabet="0123af:.%/ g", max_size=20)
NUMBERS = st.one_of(
    st.integers(0, 2**128 - 1), st.builds(lambda high, low: high << 64 | low, st.integers(0, 2**64 - 1), st.just(0))
)


@given(
    st.one_of(
        ALIKE, NUMBERS.map(lambda number: str(IPv6Address(number))), NUMBERS.map(lambda n: IPv6Address(n).exploded)
    )
)
def test_the_same_texts_are_addresses_as_in_the_standard_library(text: str) -> None:
    expected: int | None = None
    try:
        address = ip_address(text)
    except ValueError:
        pass
    else:
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else address
        expected = int(address) if mapped is None else IPV4 | int(mapped)

    assert parse_address(text) == expected


@given(NUMBERS)
def test_a_number_is_written_as_by_the_standard_library(number: int) -> None:
    assert address_text(number) == str(IPv6Address(number))


@pytest.mark.parametrize(
    ("text", "network", "as_written"),
    [
        ("10.0.0.0/8", "10.0.0.0/8", True),
        ("10.1.2.3/8", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3/32", True),
        ("2001:DB8::/32", "2001:db8::/32", True),
        ("2001:db8::1", "2001:db8::1/128", True),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8", True),
        ("::ffff:10.0.0.1", "10.0.0.1/32", True),
        ("::ffff:0:0/96", "0.0.0.0/0", True),
        ("::fffe:0:0/95", "::fffe:0:0/95", True),
        ("::/0", "::/0", True),
    ],
)
def test_a_network_has_one_form(text: str, network: str, as_written: bool) -> None:
    found = parse_network(text)

    assert found is not None
    assert (str(found), found.as_written) == (network, as_written)


@pytest.mark.parametrize(
    "text",
    ["", "/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/-1", "10/8", "fe80::%a/64", "10.*"],
)
def test_what_is_no_network_is_none(text: str) -> None:
    assert parse_network(text) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**128 - 1), st.integers(0, 128))
def test_a_network_holds_the_addresses_of_the_standard_librarys(v4: int, bits4: int, v6: int, bits6: int) -> None:
    for text in (f"{ip_address(v4)}/{bits4}", f"{IPv6Address(v6)}/{bits6}"):
        expected = ip_network(text, strict=False)
        found = parse_network(text)

        assert found is not None
        if expected.version == 4 or int(expected[0]) >> 32 != 0xFFFF:
            offset = IPV4 if expected.version == 4 else 0
            assert (found.low - offset, found.end - offset - 1) == (int(expected[0]), int(expected[-1]))


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_addresses_are_counted_by_their_prefix(value: str, counted: str) -> None:
    assert by_prefix(24, 64)(value) == counted


def test_a_prefix_of_the_whole_length_is_the_address() -> None:
    group = by_prefix(32, 128)

    assert [group("::ffff:10.1.2.3"), group("2001:DB8::1")] == ["10.1.2.3", "2001:db8::1"]
