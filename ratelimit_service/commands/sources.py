"""Finds settings and rules for every command: by the flags, variables and `.env` file of `ratelimit serve`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import click

from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.leasing import lease_options
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.regions import ONE_REGION, RegionOptions, region_options, regions_of
from ratelimit_service.rules.response import response_options
from ratelimit_service.rules.secret import HashValue, hash_value_of
from ratelimit_service.rules.sources.files import ensure_exists, read_files
from ratelimit_service.settings import Section, Settings, default_env_file, load_settings

_T = TypeVar("_T")

BROKEN: Final = 2
"""Exit code of commands that compare or try out rules: these, or a file beside them, cannot be used."""

env_file_option = click.option(
    "--env-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with settings, one NAME=VALUE per line.  [default: .env if it exists]",
)

rules_option = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="Folder or file of the rules.  [env: RULES_PATH; default: as for serve, the three RUNTIME_ folders joined]",
)

merge_option = click.option(
    "--merge-domains",
    is_flag=True,
    help="Allow several files to have rules of the same domain.  [env: MERGE_DOMAIN_CONFIG]",
)


def read_settings(
    flags: Mapping[str, object], env_file: Path | None, section: Section | None = None
) -> tuple[Settings, list[str]]:
    """The settings and the warnings; `flags` are by field, None where not given. With a section, only its settings."""
    return load_settings(os.environ, flags, env_file or default_env_file(), section)


def rules_flags(rules: Path | None, *, merge_domains: bool) -> dict[str, object]:
    """The flags of a command that reads rules, by field of the settings."""
    return {"rules_path": rules, "merge_domain_config": "true" if merge_domains else None}


def read_book(settings: Settings) -> RuleBook:
    """The rules that a service with these settings would load, for a command; StartError if they do not exist.

    A digest in place of a secret value stands for that value.
    """
    ensure_exists(settings.rules_path)
    sources = read_files(settings.rules_path)
    return parse(
        sources,
        merge_domains=settings.merge_domain_config,
        leases=lease_options(settings),
        regions=region_options(settings),
        hash_value=hash_value_of(settings, keep_digests=True),
        response=response_options(settings),
    )


def read_region_options(env_file: Path | None) -> RegionOptions:
    """The settings' options of regions, for a command that has no counters, as if there were a home Redis."""
    return regions_of(read_settings({}, env_file, Section.REGIONS)[0])


def read_books(paths: Sequence[Path], settings: Settings, regions: RegionOptions = ONE_REGION) -> list[RuleBook]:
    """The rules of each path, a book for each; one RulesError with the problems of all.

    A digest in place of a secret value stands for that value.
    """
    hash_value = HashValue(settings.hash_key.get_secret_value(), keep_digests=True)

    def read(path: Path) -> RuleBook:
        sources, merge_domains = read_files(path), settings.merge_domain_config
        return parse(sources, merge_domains=merge_domains, regions=regions, hash_value=hash_value)

    return read_all(paths, read)


def read_all(paths: Sequence[Path], read: Callable[[Path], _T]) -> list[_T]:
    """What `read` makes of each path; one RulesError with the problems of all."""
    found: list[_T] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(read(path))
        except RulesError as error:
            problems += error.problems
    if problems:
        raise RulesError(problems)
    return found


def exit_broken(error: RulesError | StartError, *, as_json: bool) -> NoReturn:
    """Print why the rules cannot be used, and exit with `BROKEN`."""
    if as_json:
        problems = error.problems if isinstance(error, RulesError) else [Problem("", 0, 0, str(error))]
        echo_json({"errors": [problem._asdict() for problem in problems]})
    else:
        lines = map(str, error.problems) if isinstance(error, RulesError) else [f"ratelimit: {error}"]
        echo(*lines, err=True)
    sys.exit(BROKEN)
