"""`ratelimit init`: a first rules file."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click
import yaml

from ratelimit_service.commands.terminal import echo
from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.model import MAX_REQUESTS
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from ratelimit_service.rules.sources.yaml_text import YamlText

_UNITS: Final = ("second", "minute", "hour", "day")
_MAX_RULES: Final = 100
_MAX_DIGITS: Final = 16

_T = TypeVar("_T")

EXAMPLE: Final = """\
# Three rules to begin with. The domain is that of Envoy's filter; each key is a descriptor_key of its actions.

domain: shop

descriptors:
  # Every user may log in 5 times a minute; each user has a counter.
  - key: login
    rate_limit:
      unit: minute
      requests_per_unit: 5

  # Every user has 100 requests an hour, 20 of them at once.
  - key: user
    rate_limit:
      algorithm: token_bucket
      unit: hour
      requests_per_unit: 100
      burst: 20

  # On the free plan each user has 50 a day.
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit:
          unit: day
          requests_per_unit: 50
"""


@click.command(
    epilog="""\b
By questions:
  ratelimit init

\b
Examples:
  ratelimit init first/rules.yaml --example
  ratelimit init first/rules.yaml --example --force"""
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("rules/rules.yaml"))
@click.option("--example", is_flag=True, help="Write three commented rules, without questions.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(*, file: Path, example: bool, force: bool) -> None:
    """Write a first rules file, by a few questions or as an example.

    FILE is rules/rules.yaml unless it is given. A file that exists is kept, unless --force is given. The rules are
    checked together with others in the same folder before they are written. Answers may come from a pipe, a line each:
    domain, key, number, unit; then, where it goes on, whether it only counts and whether there is another rule, y or n.
    """
    if file.exists() and not force:
        raise click.ClickException(f"{file} exists: name another file, or add --force to replace it")
    text, asked = (EXAMPLE, "shop login=ada") if example else _by_questions()
    _check(file, text)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error
    echo(f"wrote {file}, which `ratelimit check` finds good. Next, and the second in another terminal:")
    echo(f"  ratelimit serve --rules {shlex.quote(str(file.parent))}")
    echo(f"  ratelimit call localhost:8081 {asked}")


def _by_questions() -> tuple[str, str]:
    """The text of the file, and the arguments of a call that its first rule limits."""
    echo("Rules limit what has a key, such as user, for each of its values. Enter takes what is in brackets.")
    domain = _ask("Domain, as in Envoy's filter", "shop", _word)
    rules: dict[str, dict[str, object]] = {}
    while len(rules) < _MAX_RULES:
        key = _ask("Key to limit, as in Envoy's descriptor_key", "user", _word)
        if key in rules:
            echo(f"{key} has a limit already")
            continue
        requests = _ask("Requests that each value of it has", "100", _number)
        unit = _ask(f"In each ({', '.join(_UNITS)})", "minute", _unit)
        rule: dict[str, object] = {"key": key, "rate_limit": {"unit": unit, "requests_per_unit": requests}}
        if _ask("Only count, and refuse nothing yet? y or n", "n", _yes, optional=True):
            rule["shadow_mode"] = True
        rules[key] = rule
        if not _ask("Another rule? y or n", "n", _yes, optional=True):
            break
    body = {"domain": domain, "descriptors": list(rules.values())}
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100)
    entry = shlex.quote(f"{next(iter(rules))}=ada")
    return text, f"{shlex.quote(domain)} {entry}"


def _ask(question: str, default: str, read: Callable[[str], _T], *, optional: bool = False) -> _T:
    """The answer, asked for until `read` raises no ValueError; at the end of a pipe the default, if it is optional."""
    while True:
        try:
            text = input(f"{question} [{default}]: ").strip() or default
        except EOFError:
            echo("")
            if sys.stdin.isatty():
                raise click.Abort from None
            if not optional:
                raise click.ClickException(f"the answers end before {question!r}; nothing was written") from None
            text = default
        try:
            return read(text)
        except ValueError as error:
            echo(f"{text!r} {error}")


def _word(text: str) -> str:
    if not text.isprintable() or "=" in text:
        raise ValueError("is not a word without =")
    return text


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) > MAX_REQUESTS:
        raise ValueError(f"is not a number from 0 to {MAX_REQUESTS:,}, written without marks")
    return int(text)


def _unit(text: str) -> str:
    if text not in _UNITS:
        raise ValueError(f"is not one of {', '.join(_UNITS)}")
    return text


def _yes(text: str) -> bool:
    if text.lower() not in {"y", "yes", "n", "no"}:
        raise ValueError("is not y or n")
    return text.lower().startswith("y")


def _check(file: Path, text: str) -> None:
    """Raise an error if the rules of the folder with this file would have problems or warnings of their own."""
    try:
        others = read_files(file.parent) if any(file.parent.glob("*.y*ml")) else []
        sources = [source for source in others if Path(source.name) != file]
        book = parse([*sources, YamlText(str(file), text.encode())])
    except RulesError as error:
        raise RulesError([*error.problems, Problem(str(file), 0, 0, "was not written")]) from error
    if found := [warning for warning in lint(book) if warning.path == str(file)]:
        raise RulesError([Problem(str(file), each.line, each.column, each.message) for each in found])
