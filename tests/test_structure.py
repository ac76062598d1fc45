"""The shape of the package, as CONTRIBUTING.md promises it to a reader."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratelimit_service

PACKAGE = Path(ratelimit_service.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "generated" not in path.parts)
PEOPLE = re.compile(r"\b(nobody|somebody|anybody|whoever|whomever)\b", re.IGNORECASE)


def classes(path: Path) -> Iterator[str]:
    """The names of a file's classes."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name


def test_no_two_classes_of_the_package_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for name in classes(path):
            places[name].append(str(path.relative_to(PACKAGE)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_parts_of_the_program_are_not_called_people(path: Path) -> None:
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)

    assert [f"{number}: {line}" for number, line in lines if PEOPLE.search(line)] == []
