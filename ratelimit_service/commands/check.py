"""`ratelimit check`: all errors in rules files, and warnings."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from ratelimit_service.commands.sources import env_file_option, merge_option, read_settings, rules_flags, rules_option
from ratelimit_service.commands.terminal import GREEN, RED, YELLOW, echo, echo_json
from ratelimit_service.errors import Problem, RulesError, SettingsError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import KINDS
from ratelimit_service.rules.checks.report import Findings, findings
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.regions import ONE_REGION, regions_of
from ratelimit_service.rules.response import SILENT, response_options
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.rules.sources.files import ensure_exists, read_files
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.settings import Section, Settings
from ratelimit_service.settings.fields import KeyFormat
from ratelimit_service.stores.redis.envoyproxy import counts_as_envoyproxy


@click.command(
    epilog="""\b
Examples:
  ratelimit check                               (what serve would load)
  ratelimit check config
  ratelimit check config/example.yaml config/every-option.yaml
  ratelimit check --json config"""
)
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@rules_option
@env_file_option
@merge_option
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="KIND",
    type=click.Choice(KINDS),
    help=f"Leave out warnings of this kind, the word in brackets at their end: {', '.join(KINDS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    *,
    paths: Sequence[Path],
    rules: Path | None,
    env_file: Path | None,
    merge_domains: bool,
    ignored: Sequence[str],
    as_json: bool,
) -> None:
    """Check rules files, and all rules files in folders.

    Without a PATH, the files that serve would load with the same settings. Prints every error as path:line:column, and
    a warning about what is allowed but probably not intended, such as a descriptor that no request reaches or a value
    that looks like a network. Also the timeout that Envoy's filter needs where limits have a queue, its items that
    give places back where they have concurrency or settle what a request has cost, and what limits need that regions
    share. Exits with 1 when there is an error, else with 0.
    """
    settings, _ = read_settings(rules_flags(rules, merge_domains=merge_domains), env_file, Section.RULES)
    if not paths:
        ensure_exists(settings.rules_path)
    elif rules is not None:
        raise click.UsageError("use PATH or --rules, not both")
    responses, regions, redis = (
        _settings_of(section, env_file) for section in (Section.RESPONSES, Section.REGIONS, Section.REDIS)
    )
    read = partial(
        parse,
        merge_domains=settings.merge_domain_config,
        regions=ONE_REGION if regions is None else regions_of(regions),
        hash_value=HashValue(settings.hash_key.get_secret_value()),
        response=SILENT if responses is None else response_options(responses),
    )
    book, errors = _load(paths or [settings.rules_path], read)
    by_envoyproxy = redis is not None and redis.key_format is KeyFormat.ENVOYPROXY
    found = Findings()
    if book is not None:
        has_home = regions is None or regions.home_redis is not None
        found = findings(book, has_home=has_home, counts_as_envoyproxy=counts_as_envoyproxy if by_envoyproxy else None)
    warnings = [warning for warning in found.warnings if warning.kind not in ignored]
    if as_json:
        echo_json(Findings(errors, warnings, found.notes).as_json(book))
    else:
        for warning in warnings:
            echo(YELLOW(str(warning), err=True), err=True)
        for error in errors:
            echo(RED(str(error), err=True), err=True)
        if book is not None:
            where = "" if paths else f" ({settings.rules_path})"
            echo(GREEN(f"{plural(len(book.rules), 'rule')} in {plural(len(book.domains), 'domain')} are good{where}"))
        for note in found.notes:
            echo(*str(note.note).split("\n"))
    if errors:
        sys.exit(1)


def _settings_of(section: Section, env_file: Path | None) -> Settings | None:
    """The settings of a section that is not about rules; None if one of them is wrong, which is not checked here."""
    try:
        return read_settings({}, env_file, section)[0]
    except SettingsError:
        return None


def _load(
    paths: Sequence[Path], read: Callable[[Sequence[Document]], RuleBook]
) -> tuple[RuleBook | None, list[Problem]]:
    sources: dict[str, YamlText] = {}
    errors: list[Problem] = []
    for path in paths:
        try:
            # A file that two arguments name is read once.
            sources |= {source.name: source for source in read_files(path)}
        except RulesError as error:
            errors += error.problems
    try:
        book = read(list(sources.values()))
    except RulesError as error:
        return None, errors + list(error.problems)
    return (None if errors else book), errors
