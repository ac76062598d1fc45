"""YAML documents: a tree with places, or an error with its place; and scalars as Go's yaml.v2 reads them."""

import math
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from yaml._yaml import CParser

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.problems import Report
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import MAX_BYTES, Composer, YamlText, resolve
from ratelimit_service.rules.syntax.document import Scalar, Value, YamlList, YamlMap, printed


def problem(text: bytes) -> str:
    """The first thing said about a file."""
    report = Report("a.yaml")
    with pytest.raises(RulesError):
        YamlText("a.yaml", text).nodes(report)
    return str(report.problems[0])


def test_every_node_knows_its_place() -> None:
    tree = YamlText("a.yaml", "a: [é, {b: 'x'}]\n".encode()).nodes(Report("a.yaml"))

    assert isinstance(tree, YamlMap)
    items = tree.fields["a"].value
    assert isinstance(items, YamlList)
    assert items[:2] == (1, 4)
    assert items.items[0] == Scalar(1, 5, "é", "é")
    inner = items.items[1]
    assert isinstance(inner, YamlMap)
    assert inner.fields["b"] == (Scalar(1, 9, "b", "b"), Scalar(1, 12, "x", "x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a: b: c", "a.yaml:1:5: is not valid YAML: mapping values are not allowed in this context"),
        (b"a: \xff", "a.yaml:1:4: byte 0xff is not UTF-8"),
        ("é: 1\r\nü: ".encode() + b"\xe2\x82", "a.yaml:2:4: byte 0xe2 is not UTF-8"),
        (b"a: 1\rb: \x00", "a.yaml:2:4: the control character U+0000 is not allowed in YAML"),
        (b"\xef\xbb\xbfab\x07", "a.yaml:1:3: the control character U+0007 is not allowed in YAML"),
        ("a: 1".encode("utf-16"), "a.yaml:1:1: is written in UTF-16; save it as UTF-8"),
        (
            b"a: 1\n---\nb: 2",
            "a.yaml:2:1: a second YAML document begins here, but a rules file has one; make it another file",
        ),
        (b"a: *b", "a.yaml:1:4: alias *b has no anchor &b before it"),
        (b"a: &b [*b]", "a.yaml:1:8: alias *b stands inside its own anchor &b"),
        (b"a: &b {<<: *b}", "a.yaml:1:12: alias *b stands inside its own anchor &b"),
        (b"[" * 101, "a.yaml:1:101: lists and maps are nested deeper than 100"),
        (b"- " * 101, "a.yaml:1:201: lists and maps are nested deeper than 100"),
        (b"%TAG !a! b\n" * 101, "a.yaml: has more than 100 %TAG directives, and needs none"),
        (b"a" * (MAX_BYTES + 1), "a.yaml: is larger than 16 MiB; split it"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_place(text: bytes, expected: str) -> None:
    assert problem(text) == expected


def test_a_quote_that_is_never_closed_is_told_with_its_beginning() -> None:
    assert problem(b"a: 'b\n") == (
        "a.yaml:2:1: is not valid YAML: found unexpected end of stream while scanning a quoted scalar, begun at 1:4"
    )


def test_a_tab_that_indents_is_told_apart() -> None:
    assert problem(b"a:\n\tb: c") == (
        "a.yaml:2:1: is not valid YAML: found character that cannot start any token "
        "while scanning for the next token, begun at 2:1 (a tab? indent with spaces)"
    )


def test_a_tab_after_spaces_is_told_apart_too() -> None:
    assert problem(b"- a: 1\n\tb: c") == (
        "a.yaml:2:1: is not valid YAML: found a tab character that violates indentation "
        "while scanning a plain scalar, begun at 1:6 (a tab? indent with spaces)"
    )


def test_half_a_surrogate_pair_is_refused() -> None:
    assert problem(b'a: "\\ud800"').startswith("a.yaml:1:7: is not valid YAML: found invalid Unicode character escape")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a: 1\nb: 2\na: 3", 'a.yaml:3:1: key "a" is given twice in this map, first at 1:1'),
        (b"a: !!python/object:os.system x", "a.yaml:1:4: tag !!python/object:os.system is not known; remove it"),
        (b"a: !mine x", "a.yaml:1:4: tag !mine is not known; remove it"),
        (b"a: !!binary YQ==", "a.yaml:1:4: tag !!binary is not known; remove it"),
        (b"a: !!str [x]", "a.yaml:1:4: tag !!str is not known here; remove it"),
        (b"a: !!int x", 'a.yaml:1:4: "x" is not what its tag !!int says'),
        (b"a: {<<: x}", 'a.yaml:1:9: << takes a map or a list of maps, not the text "x"'),
    ],
)
def test_what_need_not_stop_the_reading_is_reported(text: bytes, expected: str) -> None:
    report = Report("a.yaml")
    YamlText("a.yaml", text).nodes(report)

    assert [str(found) for found in report.problems] == [expected]


@pytest.mark.parametrize(
    "text", [b"a: 1\n---\n", b"a: 1\n...\n", b"---\na: 1\n---\n...\n---\n", b"\xef\xbb\xbfa: 1\r\n"]
)
def test_empty_documents_and_byte_order_marks_are_harmless(text: bytes) -> None:
    report = Report("a.yaml")
    tree = YamlText("a.yaml", text).nodes(report)

    assert isinstance(tree, YamlMap)
    assert list(tree.fields) == ["a"]
    assert report.problems == ()


def test_a_line_break_across_two_chunks_is_one() -> None:
    text = b"#" * (16 * 1024 - 1) + b"\r\n\xff"

    assert problem(text) == "a.yaml:2:1: byte 0xff is not UTF-8"


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 20)
)


def test_a_billion_laughs_are_refused_where_they_become_too_many() -> None:
    assert problem(LAUGHS.encode()) == "a.yaml:7:10: aliases expand the file to more than 2,000,000 nodes; split it"


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS.encode(),
        b"[" * MAX_BYTES,
        b"{" * MAX_BYTES,
        b"? " * (MAX_BYTES // 2),
        b"a" * 100_000_000,
        b"a: " + b"x" * (MAX_BYTES - 3),
        b"x\n" * (MAX_BYTES // 2),
        b'"' + b"\\" * (MAX_BYTES - 1),
        b"\n" * MAX_BYTES,
        b"# " * (MAX_BYTES // 2),
        b"%TAG !a! b\n" * (MAX_BYTES // 11),
        b"!a!b " * (MAX_BYTES // 5),
        b": " * (MAX_BYTES // 2),
    ],
    ids=lambda text: repr(bytes(text[:12])),
)
def test_no_bytes_within_the_bound_take_long(text: bytes) -> None:
    began = time.process_time()
    with pytest.raises(RulesError):
        parse([YamlText("a.yaml", text)])

    assert time.process_time() - began < 60  # two on a machine of today; what is quadratic takes hours


@pytest.mark.parametrize(
    "text",
    [
        b"a: [1, {c: ~}]\nx: &a {z: 1}\nw: {<<: *a, v: !!str 1, u: 'q'}\n",
        b"- |\n  x\n  y\n- >-\n  x\n  y\n",
        b"a: &b [*b]",
        b"a: *b",
        b"a: 1\n---\nb: 2",
        b"[" * 101,
    ],
)
def test_pyyamls_own_parser_gives_the_same_as_libyaml(text: bytes) -> None:
    def read(parser: Any) -> object:
        report = Report("a.yaml")
        try:
            return Composer(text, report, parser).document(), report.problems
        except RulesError:
            return report.problems

    assert read(yaml.SafeLoader) == read(CParser)


def test_half_a_surrogate_pair_is_refused_with_pyyamls_own_parser_too() -> None:
    report = Report("a.yaml")
    with pytest.raises(RulesError, match="half of a surrogate pair"):
        Composer(b'a: "\\ud800"', report, yaml.SafeLoader).document()


WORDS = [
    "domain: d\n", "descriptors:\n", "- key: a\n", "  value: x*\n", "  rate_limit:\n", "    unit: day\n",
    "    requests_per_unit: 1\n", "- ", "[", "]", "{", "}", "&a ", "*a", "<<: ", "---\n", "...\n", "'", '"', ">\n",
    "? ", ": ", "!!int ", "!x ", "\t", "\x00", "\ufeff", "  ", "\n", "\r\n", "~", "0x1", "1.5", "metadata: ", "%",
    "#", ",", "key: ", "\\", "é", "replaces: [{name: n}]", "\ud800",
]  # fmt: skip


def _encode(words: list[str]) -> bytes:
    return "".join(words).encode(errors="surrogatepass")


@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(WORDS), max_size=30).map(_encode)))
def test_any_bytes_give_a_book_or_a_rules_error(text: bytes) -> None:
    try:
        parse([YamlText("a.yaml", text)])
        problems: tuple[Problem, ...] = ()
    except RulesError as error:
        problems = error.problems

    assert all(problem.path == "a.yaml" and problem.message for problem in problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("Null", None), ("nUll", "nUll"),
        ("yes", True), ("Y", True), ("on", True), ("TRUE", True), ("tRue", "tRue"), ("n", False), ("Off", False),
        ("0", 0), ("00", 0), ("12", 12), ("-12", -12), ("+12", 12), ("1_000", 1000), ("_1", "_1"),
        ("0x1F", 31), ("0Xff", 255), ("-0x10", -16), ("0o17", 15), ("017", 15), ("0b101", 5),
        ("0x", "0x"), ("0b2", "0b2"), (".", "."), ("-", "-"),
        ("08", 8.0), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-1.5e-3", -0.0015),
        (".inf", math.inf), ("-.INF", -math.inf), ("1e999", "1e999"), ("1.2.3", "1.2.3"), ("10.0.0.1", "10.0.0.1"),
        ("9223372036854775807", 2**63 - 1), ("18446744073709551615", 2**64 - 1), ("18446744073709551616", 2.0**64),
        ("-9223372036854775808", -(2**63)), ("-9223372036854775809", -(2.0**63)),
        ("0xFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFF"),
        ("2024-01-31", "2024-01-31"), ("12:30:45", "12:30:45"), ("<<", "<<"), ("1 000", "1 000"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_a_plain_scalar_has_the_value_that_yaml_v2_gives_it(text: str, value: Value) -> None:
    found = resolve(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "in_go"),
    [
        ("~", "<nil>"), ("yes", "true"), ("off", "false"), ("0x1F", "31"), ("-017", "-15"), ("text", "text"),
        ("18446744073709551615", "18446744073709551615"), ("18446744073709551616", "1.8446744073709552e+19"),
        ("1.50", "1.5"), ("5.", "5"), ("1e3", "1000"), ("123456.7", "123456.7"), ("100000.0", "100000"),
        ("1000000.0", "1e+06"), ("1234567.5", "1.2345675e+06"), ("1e22", "1e+22"), ("1e100", "1e+100"),
        ("0.0001", "0.0001"), ("0.00012", "0.00012"), ("0.000099", "9.9e-05"), ("5e-324", "5e-324"),
        ("0.0", "0"), ("-0.0", "-0"), ("-2.5", "-2.5"), (".inf", "+Inf"), ("-.inf", "-Inf"), (".nan", "NaN"),
    ],
)  # fmt: skip
def test_a_value_is_printed_as_go_prints_it(text: str, in_go: str) -> None:
    assert printed(resolve(text)) == in_go


def test_nan_is_a_float() -> None:
    found = resolve(".nan")

    assert isinstance(found, float)
    assert math.isnan(found)


@given(st.text(alphabet="0123456789_xob.eE+-naif", max_size=5000))
def test_any_text_has_a_value(text: str) -> None:
    resolve(text)


def test_very_many_digits_are_no_integer_and_no_error() -> None:
    assert resolve("9" * 10_000) == "9" * 10_000
