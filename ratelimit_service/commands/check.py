"""`ratelimit check`: are these rules files good? All errors at once, and warnings."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.advice import advise
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.files import read_sources
from ratelimit_service.rules.parse import parse
from ratelimit_service.rules.source import Source
from ratelimit_service.rules.words import counted


@click.command(
    epilog="""\b
Examples:
  ratelimit check config
  ratelimit check config/shop.yaml config/mail.yaml
  ratelimit check --json config | jq '.errors[].message'"""
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--merge-domains",
    is_flag=True,
    envvar="MERGE_DOMAIN_CONFIG",
    help="Several files may have rules of one domain.  [env: MERGE_DOMAIN_CONFIG]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(*, paths: Sequence[Path], merge_domains: bool, as_json: bool) -> None:
    """Check rules files, and all rules files in folders.

    Prints every error as path:line:column, and warns of descriptors that nothing reaches or that do nothing. Exits with
    1 when there is an error, else with 0.
    """
    book, errors = _load(paths, merge_domains)
    warnings = [] if book is None else advise(book)
    if as_json:
        click.echo(json.dumps(_findings(book, errors, warnings), indent=2, ensure_ascii=False))
    else:
        for warning in warnings:
            click.echo(f"{warning._replace(message=f'warning: {warning.message}')}", err=True)
        for error in errors:
            click.echo(error, err=True)
        if book is not None:
            click.echo(f"{counted(len(book.rules), 'rule')} in {counted(len(book.domains), 'domain')} are good")
    if errors:
        sys.exit(1)


def _load(paths: Sequence[Path], merge_domains: bool) -> tuple[RuleBook | None, list[Problem]]:
    sources: dict[str, Source] = {}
    errors: list[Problem] = []
    for path in paths:
        try:
            found = read_sources(path)
        except RulesError as error:
            errors += error.problems
            continue
        if not found:
            errors.append(Problem(str(path), 0, 0, "has no *.yaml or *.yml file"))
        # A file that two arguments lead to is one file.
        sources |= {source.path: source for source in found}
    try:
        book = parse(list(sources.values()), merge_domains=merge_domains)
    except RulesError as error:
        return None, errors + list(error.problems)
    return (None if errors else book), errors


def _findings(book: RuleBook | None, errors: Sequence[Problem], warnings: Sequence[Problem]) -> dict[str, object]:
    return {
        "rules": None if book is None else len(book.rules),
        "domains": None if book is None else len(book.domains),
        "errors": [_finding(error) for error in errors],
        "warnings": [_finding(warning) for warning in warnings],
    }


def _finding(problem: Problem) -> dict[str, object]:
    return {"file": problem.path, "line": problem.line, "column": problem.column, "message": problem.message}
