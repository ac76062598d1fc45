"""`ratelimit rules test`: what requests get from the rules, checked against a table of cases.

And the commands on rules that a running service keeps, of `stored.py`.
"""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ratelimit_service.api.headers import header_names
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.commands.rules.cases import Case, read_cases
from ratelimit_service.commands.rules.run import Mismatch, run_case
from ratelimit_service.commands.rules.stored import COMMANDS
from ratelimit_service.commands.sources import (
    env_file_option,
    exit_broken,
    merge_option,
    read_all,
    read_book,
    read_settings,
    rules_flags,
    rules_option,
)
from ratelimit_service.commands.terminal import GREEN, RED, echo, echo_json
from ratelimit_service.errors import RulesError, StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import entries_in_words, plural
from ratelimit_service.rules.sources.files import read_files

FAILED: Final = 1
"""Exit code: a case failed. `BROKEN`: the rules or a file of cases cannot be read."""


@click.group(
    short_help="Test rules, and change those that a service keeps.",
    epilog="""\b
Examples:
  ratelimit rules test config/tests/*.cases --rules config
  ratelimit rules get --at localhost:6070""",
)
def command() -> None:
    """Test rules, and change those that a running service keeps (RULES_STORE)."""


for _stored in COMMANDS:
    command.add_command(_stored)


class _Result(NamedTuple):
    case: Case
    name: str
    mismatches: Sequence[Mismatch]


@command.command(
    "test",
    epilog="""\b
Examples:
  ratelimit rules test config/tests/*.cases --rules config
  ratelimit rules test shop.yaml --rules config/shop.yaml --junit report.xml

\b
A file has cases, each with a request as for `ratelimit call`, and what it must get:
  domain: shop
  cases:
    - request: login=ada
      limit: 5 per minute
      steps:
        - {times: 5, answer: allowed}
        - {answer: refused, until_reset: 60s}
        - {after: 60s, answer: allowed}""",
)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@rules_option
@env_file_option
@merge_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the results to this file, as JUnit XML.",
)
def test(
    *,
    paths: Sequence[Path],
    rules: Path | None,
    env_file: Path | None,
    merge_domains: bool,
    as_json: bool,
    junit: Path | None,
) -> None:
    """Test what requests get from the rules, by the cases of YAML files.

    A FILE may be a folder: then all *.yaml and *.yml files in it. Each case begins with untouched counters in memory,
    and its time passes only where it says `after`. The rules are those that serve would load, or those of --rules;
    SHADOW_MODE and QUOTA_MODE have no effect. docs/testing.md describes the files.

    Exits with 0 when all cases pass, 1 when one fails, 2 when the rules or a FILE are wrong.
    """
    settings, _ = read_settings(rules_flags(rules, merge_domains=merge_domains), env_file)
    try:
        cases = chain.from_iterable(read_all(paths, _read))
        book = read_book(settings)
    except (RulesError, StartError) as error:
        exit_broken(error, as_json=as_json)
    encoder = ResponseEncoder(header_names(settings), dynamic_metadata=True, draw=lambda: 0)
    results = [_Result(case, _name(case, book), run_case(case, book, encoder)) for case in cases]
    if as_json:
        echo_json(_as_json(results))
    else:
        echo(*_lines(results, settings.rules_path, len(book.rules)))
    if junit is not None:
        try:
            ET.ElementTree(_as_junit(results)).write(junit, encoding="utf-8", xml_declaration=True)
        except OSError as error:
            raise click.UsageError(f"{junit} cannot be written: {error.strerror}") from error
    if any(result.mismatches for result in results):
        sys.exit(FAILED)


def _read(path: Path) -> list[Case]:
    return [case for source in read_files(path) for case in read_cases(source)]


def _name(case: Case, book: RuleBook) -> str:
    """The case's own, or its request, with digests in place of secret values: reports lie about in CI."""
    request = (entries_in_words(book.shown(case.domain, entries)) for entries in case.request)
    return case.name or " + ".join(request) or "without a name"


def _lines(results: Sequence[_Result], rules: Path, number: int) -> Iterator[str]:
    for result in results:
        verdict = RED("FAIL") if result.mismatches else GREEN("ok  ")
        case = result.case
        yield f"{verdict} {case.path}:{case.line}:{case.column}  {result.name}"
        for mismatch in result.mismatches:
            what, expected, got, *by = _diff(case, mismatch)
            yield from (f"       {line}" for line in (what, RED(expected), GREEN(got), *by))
    failed = sum(bool(result.mismatches) for result in results)
    counts = f"{plural(len(results) - failed, 'case')} passed, {failed:,} failed"
    yield f"{(RED if failed else GREEN)(counts)} ({plural(number, 'rule')} of {rules})"


def _diff(case: Case, mismatch: Mismatch) -> Iterator[str]:
    where = "" if mismatch.line == case.line else f" in the step at {case.path}:{mismatch.line}"
    yield f"{mismatch.what}{where}"
    yield f"- expected {mismatch.expected}"
    yield f"+ got      {mismatch.got}"
    if mismatch.rule:
        yield f"  ({mismatch.rule})"


def _as_json(results: Sequence[_Result]) -> dict[str, Any]:
    failed = sum(bool(result.mismatches) for result in results)
    return {
        "passed": len(results) - failed,
        "failed": failed,
        "cases": [
            {
                "file": case.path,
                "line": case.line,
                "column": case.column,
                "name": name,
                "passed": not mismatches,
                "mismatches": [mismatch._asdict() for mismatch in mismatches],
            }
            for case, name, mismatches in results
        ],
    }


def _as_junit(results: Sequence[_Result]) -> ET.Element:
    """The results as JUnit's XML, which CI systems read: a suite for each file."""
    root = ET.Element("testsuites")
    for path, group in groupby(results, key=lambda result: result.case.path):
        some = list(group)
        failed = sum(bool(result.mismatches) for result in some)
        suite = ET.SubElement(root, "testsuite", name=path, tests=f"{len(some)}", failures=f"{failed}")
        for case, name, mismatches in some:
            found = ET.SubElement(
                suite, "testcase", name=printable(name), classname=path, file=path, line=f"{case.line}"
            )
            if mismatches:
                first = mismatches[0]
                message = printable(f"{first.what}: expected {first.expected}, got {first.got}")
                failure = ET.SubElement(found, "failure", message=message)
                failure.text = "\n".join(line for each in mismatches for line in _diff(case, each))
    return root
