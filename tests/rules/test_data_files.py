"""Data files: what a line says, what is refused and where, and how much a file may have."""

import errno
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.data_files import (
    MAX_ALL_BYTES,
    MAX_BYTES,
    MAX_FILES,
    MAX_LINE,
    MAX_LINES,
    DataFile,
    DataFiles,
)
from ratelimit_service.rules.problems import Position, Report

AT = Position(7, 9)


def read(text: bytes) -> DataFile:
    return DataFile("keys.csv", text, Report("keys.csv"))


def problems(text: bytes) -> list[str]:
    with pytest.raises(RulesError) as refused:
        read(text)
    return list(map(str, refused.value.problems))


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (b"", {}),
        (b"ada", {"ada": ""}),
        (b"ada\nbob\n", {"ada": "", "bob": ""}),
        (b"ada,pro\nbob , free of charge \n", {"ada": "pro", "bob": "free of charge"}),
        (b"ada,\n", {"ada": ""}),
        (b"ada\r\n\r\nbob,pro\r\n", {"ada": "", "bob": "pro"}),
        (b"\xef\xbb\xbfada,pro\n", {"ada": "pro"}),
        (b"# who pays\n\n  # indented\nada,pro # since May, all year\nbob #\n", {"ada": "pro", "bob": ""}),
        (b"a#1,b#2\n#a\n", {"a#1": "b#2"}),
        (b'"ada, the first","pro, ""best"""\n', {"ada, the first": 'pro, "best"'}),
        (b'  "#1" , "# 2"  # comment\n', {"#1": "# 2"}),
        (b'""\n" "\n', {"": "", " ": ""}),
        (b'"ada",pro#1\n"bob"# at once\n', {"ada": "pro#1", "bob": ""}),
        (b'a"b,"c"\n', {'a"b': "c"}),
        ("zoë,größer\n".encode(), {"zoë": "größer"}),
        (b"10.0.0.0/8\n2001:db8::/32,office\n", {"10.0.0.0/8": "", "2001:db8::/32": "office"}),
    ],
)
def test_each_line_is_a_value_and_perhaps_its_name(text: bytes, entries: dict[str, str]) -> None:
    found = read(text)

    assert found.entries == entries
    assert list(found.entries) == list(entries)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"ada\nbob,pro,x\n", "keys.csv:2:9: a line is value or value,name, and this one goes on; "),
        (b"ada\n ,pro\n", "keys.csv:2:2: the line has a name and no value"),
        (b'ada\n  "bob\ncy"\n', "keys.csv:2:3: the quote is not closed on this line"),
        (b'ada,"pro\n', "keys.csv:1:5: the quote is not closed on this line"),
        (b'"ada" pro\n', "keys.csv:1:7: after a closing quote comes a comma, or the end of the line"),
        (b"ada\nb\xfcb\n", "keys.csv:2:2: byte 0xfc is not UTF-8"),
        (b"ada\nzo\xc3\xab\0\n", "keys.csv:2:4: the control character U+0000 is not allowed"),
        (b"ada\rbob\r", "keys.csv:1:4: the control character U+000D is not allowed"),
        (b"\x1f\x8b\x08\x00", "keys.csv:1:1: the control character U+001F is not allowed"),
        ("ada\n".encode("utf-16"), "keys.csv:1:1: is written in UTF-16; save it as UTF-8"),
        (b"ada\n" + b"x" * MAX_LINE + b"x\nbob", "keys.csv:2:1: the line is longer than 64 KiB"),
        (b"1\n" * (MAX_LINES + 1), "keys.csv:1000001:1: the file has more than 1,000,000 lines; split it"),
        (b"x" * (MAX_BYTES + 1), "keys.csv: is larger than 32 MiB; split it"),
    ],
)
def test_what_is_no_list_is_refused_with_its_place(text: bytes, problem: str) -> None:
    found = problems(text)

    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_file_and_a_line_may_have_as_much_as_is_allowed() -> None:
    assert len(read(b"".join(b"%d\n" % number for number in range(MAX_LINES))).entries) == MAX_LINES
    assert list(read(b"ada\n" + b"x" * (MAX_LINE - 1) + b"\n").entries) == ["ada", "x" * (MAX_LINE - 1)]


def test_all_malformed_lines_are_reported() -> None:
    assert [problem[:12] for problem in problems(b",a\nada\n,b\n")] == ["keys.csv:1:1", "keys.csv:3:1"]


def test_a_value_given_twice_is_a_warning() -> None:
    found = read(b"# keys\nada,pro\nbob\n  ada,pro\n")

    assert found.entries == {"ada": "pro", "bob": ""}
    assert [str(warning) for warning in found.warnings] == [
        "keys.csv:4:3: warning: the value is given twice, first in line 2 [duplicate]"
    ]


def test_a_value_given_two_names_is_an_error_with_both_lines() -> None:
    assert problems(b"# keys\nada,pro\nada\nada,free\n") == [
        'keys.csv:3:1: the value is given twice, first in line 2, with different names: "pro" there and "" here',
        'keys.csv:4:1: the value is given twice, first in line 2, with different names: "pro" there and "free" here',
    ]


def test_the_place_of_each_value_can_be_asked_for() -> None:
    text = b'# keys\n\nada,pro\n  "bob"\nada,pro\n'

    assert read(text).places() == {"ada": Position(3, 1), "bob": Position(4, 3)}


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


@given(st.dictionaries(TEXTS, TEXTS))
def test_quoted_values_come_back_as_they_were(entries: dict[str, str]) -> None:
    lines = [",".join('"' + text.replace('"', '""') + '"' for text in entry) for entry in entries.items()]

    assert read("\n".join(lines).encode()).entries == entries


@given(st.lists(st.sampled_from(["a", "b", " ", ",", '"', "#", "\n", "\r\n", "é", "\0"])).map("".join))
def test_any_text_gives_entries_or_problems_in_its_lines(text: str) -> None:
    report = Report("keys.csv")
    with suppress(RulesError):
        found = DataFile("keys.csv", text.encode(), report)
        assert list(found.places()) == list(found.entries)
        assert all(value == value.strip() or '"' in text for value in found.entries)

    assert all(1 <= problem.line <= text.count("\n") + 1 and problem.column >= 1 for problem in report.problems)


class Files:
    """A load that reads files from a dictionary."""

    def __init__(self, files: dict[str, bytes], previous: dict[str, DataFile] | None = None) -> None:
        self.report = Report("rules/shop.yaml")
        self.asked: list[str] = []
        self._files = files
        self.load = DataFiles(self._read, previous or {})

    def open(self, name: str) -> DataFile | None:
        return self.load.open(name, AT, "from", self.report)

    def _read(self, path: str) -> bytes:
        self.asked.append(path)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self._files[path]


def test_a_name_is_relative_to_the_rules_file_that_has_it_and_is_read_once() -> None:
    files = Files({"rules/keys.csv": b"ada", "rules/../lists/a.txt": b"bob", "/etc/keys": b"cy"})

    found = [files.open(name) for name in ("keys.csv", "../lists/a.txt", "/etc/keys", "keys.csv")]

    assert [file and list(file.entries) for file in found] == [["ada"], ["bob"], ["cy"], ["ada"]]
    assert files.asked == ["rules/keys.csv", "rules/../lists/a.txt", "/etc/keys"]


def test_a_file_that_would_be_read_as_rules_is_an_error() -> None:
    files = Files({"rules/keys.yaml": b"ada"})

    assert files.open("keys.yaml") is None
    [problem] = files.report.problems
    assert problem.message == ('from "rules/keys.yaml" is named like a rules file, and would be read as one; rename it')


def test_a_missing_file_is_an_error_everywhere_it_is_named() -> None:
    files = Files({})

    assert files.open("keys.csv") is None
    assert files.load.open("keys.csv", Position(9, 9), "values_from", files.report) is None
    assert list(map(str, files.report.problems)) == [
        'rules/shop.yaml:7:9: from "rules/keys.csv" cannot be read: no such file or directory',
        'rules/shop.yaml:9:9: values_from "rules/keys.csv" cannot be read: no such file or directory',
    ]


def test_a_malformed_file_is_reported_once_however_many_rules_name_it() -> None:
    files = Files({"rules/keys.csv": b",x"})

    assert files.open("keys.csv") is files.open("keys.csv") is None
    assert files.report.problems == ()
    assert list(map(str, files.load.problems)) == ["rules/keys.csv:1:1: the line has a name and no value"]


def test_a_file_with_the_same_bytes_is_taken_over_with_its_warnings() -> None:
    text = b"ada\nada\n"
    old = Files({"rules/keys.csv": text}).open("keys.csv")
    assert old is not None

    same = Files({"rules/keys.csv": bytes(bytearray(text))}, {"rules/keys.csv": old})
    other = Files({"rules/keys.csv": b"bob"}, {"rules/keys.csv": old})

    assert same.open("keys.csv") is old
    assert [warning.message for warning in same.load.warnings] == ["the value is given twice, first in line 1"]
    assert other.open("keys.csv") is not old
    assert other.load.warnings == []


def test_all_files_together_are_bounded() -> None:
    half = b"x\n" * 1000 + b" " * (MAX_LINE // 2)
    big = b"".join(b"%08d%s\n" % (number, b" " * 1000) for number in range(MAX_BYTES // 1009))
    files = Files({f"rules/{number}": big for number in range(3)} | {"rules/3": half})

    found = [files.open(str(number)) for number in range(4)]

    assert [file is not None for file in found] == [True, True, True, False]
    assert 3 * len(big) > MAX_ALL_BYTES
    assert list(map(str, files.report.problems)) == [
        'rules/shop.yaml:7:9: from: with "rules/2", all data files together are larger than 64 MiB or 2,000,000 lines'
    ]


def test_the_number_of_files_is_bounded() -> None:
    files = Files({f"rules/{number}": b"" for number in range(MAX_FILES + 1)})

    assert sum(files.open(str(number)) is not None for number in range(MAX_FILES + 1)) == 1000
    assert list(map(str, files.report.problems)) == [
        "rules/shop.yaml:7:9: from: the rules name more than 1,000 data files; join some"
    ]
