"""`ratelimit rules get|put|delete|diff|history|rollback`: the rules that a running service keeps, by its API."""

import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import click

from ratelimit_service.commands.diff import change_lines
from ratelimit_service.commands.operator_port import (
    AccessFiles,
    OperatorPort,
    PortReply,
    access_options,
    at_option,
    default_url,
    read_access,
    who,
)
from ratelimit_service.commands.sources import env_file_option, exit_broken, read_settings
from ratelimit_service.commands.table import aligned
from ratelimit_service.commands.terminal import GREEN, RED, echo, echo_json
from ratelimit_service.errors import Problem, RulesError, StoreError
from ratelimit_service.rules.problems import Report, printable
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.sources import open_document
from ratelimit_service.rules.syntax.document import Scalar, YamlMap
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.disk import read_file
from ratelimit_service.telemetry.logs import iso_time

DIFFERENT: Final = 1
"""Exit code of `diff`."""

_TYPES: Final = {"yaml": "application/yaml", "json": "application/json"}
_STDIN: Final = "-"

Json = Mapping[str, Any]
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _ReadRules(NamedTuple):
    """A document of rules in a file."""

    domain: str
    kind: str
    text: bytes


class _RulesClient:
    """The rules API of the service at `at`, or of that with the settings on this machine."""

    def __init__(self, at: str | None, env_file: Path | None, access_files: AccessFiles) -> None:
        access = read_access(access_files, env_file)
        self._port = OperatorPort(at or default_url(read_settings({}, env_file)[0]), access)

    def ask(
        self, verb: str, path: str, body: _ReadRules | None = None, headers: Mapping[str, str] | None = None
    ) -> PortReply:
        """The reply. StoreError, or RulesError, with what is wrong."""
        reply = self._ask(verb, path, body, headers or {})
        if reply.status in {http.client.OK, http.client.CREATED}:
            return reply
        found: Any = None
        with suppress(ValueError):
            found = json.loads(reply.text)
        errors = found.get("errors") if isinstance(found, dict) else None
        if reply.status == http.client.UNPROCESSABLE_ENTITY and errors:
            places = [each | {"file": f"{each['file']}{each.get('pointer', '')}"} for each in errors]
            raise RulesError([Problem(*(each[name] for name in _OF_PROBLEM)) for each in places])
        raise StoreError(f"{self._port.url}: {printable(reply.why)}")

    def preconditions(self, domain: str, replaces: str | None) -> dict[str, str]:
        """The headers that name the version to be replaced: this one, or the present one."""
        if replaces:
            return {"If-Match": f'"{replaces}"'}
        present = self._ask("GET", path_of(domain), None, {})
        return {"If-Match": present.etag} if present.status == http.client.OK else {"If-None-Match": "*"}

    def _ask(self, verb: str, path: str, body: _ReadRules | None, headers: Mapping[str, str]) -> PortReply:
        named = dict(headers) | ({} if body is None else {"Content-Type": _TYPES[body.kind]})
        try:
            return self._port.ask(verb, path, None if body is None else body.text, named)
        except StoreError as error:
            raise type(error)(f"{self._port.url}: {error}") from error


_OF_PROBLEM: Final = ("file", "line", "column", "message")


def path_of(domain: str, rest: str = "", **query: str | None) -> str:
    """The path of a domain's rules, or of what is below it."""
    given = {name: value for name, value in query.items() if value}
    return f"/rules/{quote(domain, safe='')}{rest}{f'?{urlencode(given)}' if given else ''}"


def service_options(command: _Command) -> _Command:
    """The options of every command that asks a service."""
    at = at_option("Debug port of the service; without it, that of the settings on this machine.")
    return at(env_file_option(access_options(command)))


_why = click.option("--why", metavar="TEXT", help="The reason, for the history and the log.")
_replaces = click.option(
    "--replaces", metavar="VERSION", help="The version to be replaced.  [default: the one that is present now]"
)
_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON; times are seconds since the epoch.")


@click.command(
    epilog="""\b
Examples:
  ratelimit rules get
  ratelimit rules get shop > shop.yaml
  ratelimit rules get shop --version 6"""
)
@click.argument("domain", required=False)
@click.option("--version", metavar="VERSION", help="An old version, or its number.")
@_json
@service_options
def get(
    *,
    domain: str | None,
    version: str | None,
    as_json: bool,
    at: str | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Print the rules of a domain that a service keeps, as they were put; or list the domains."""
    if domain is None and version is not None:
        raise click.UsageError("--version needs a DOMAIN")
    client = _RulesClient(at, env_file, access_files)
    if domain is None:
        found = _object(client.ask("GET", "/rules"))
        if as_json:
            echo_json(found)
        else:
            echo(*_listed(found))
        return
    reply = client.ask("GET", path_of(domain, f"/history/{quote(version, safe='')}" if version else ""))
    if sys.stdout.isatty():
        echo(*reply.text.splitlines())
    else:
        sys.stdout.buffer.write(reply.text.encode())


@click.command(
    epilog="""\b
Examples:
  ratelimit rules put shop.yaml --why "ticket 4711"
  ratelimit rules put shop.yaml --replaces 7-3f9a2c1b04d5e6f7"""
)
@_file
@_why
@_replaces
@service_options
def put(
    *,
    file: Path,
    why: str | None,
    replaces: str | None,
    at: str | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Put the rules in FILE in place of those that a service keeps of their domain; - is standard input.

    They are accepted only if all rules of the service load with them, and hold on every instance within a second. If
    others have changed them meanwhile, nothing is done, and the present version is named. Exits with 1 then, and with 2
    when the rules cannot be loaded.
    """
    with _shown_problems():
        client, read = _RulesClient(at, env_file, access_files), _read(file)
        headers = client.preconditions(read.domain, replaces)
        reply = client.ask("PUT", path_of(read.domain, why=why, who=who()), read, headers)
    made = _object(reply)
    if not made["changed"]:
        echo(f"the rules of {read.domain} are the same already, version {made['version']}")
        return
    echo(GREEN(f"rules of {read.domain}: version {made['version']} in place of {made['replaces'] or 'none'}"))


@click.command(
    epilog="""\b
Examples:
  ratelimit rules delete shop --why "closed" """
)
@click.argument("domain")
@_why
@_replaces
@service_options
def delete(
    *,
    domain: str,
    why: str | None,
    replaces: str | None,
    at: str | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Delete the rules of a domain that a service keeps. For 30 days `rules rollback` has them again."""
    client = _RulesClient(at, env_file, access_files)
    headers = client.preconditions(domain, replaces)
    made = _object(client.ask("DELETE", path_of(domain, why=why, who=who()), headers=headers))
    echo(GREEN(f"rules of {domain} are deleted: version {made['version']} in place of {made['replaces']}"))


@click.command(
    epilog="""\b
Examples:
  ratelimit rules diff shop.yaml"""
)
@_file
@_json
@service_options
def diff(*, file: Path, as_json: bool, at: str | None, env_file: Path | None, access_files: AccessFiles) -> None:
    """Show which descriptors would get another limit if the rules in FILE were put; - is standard input.

    Exits with 0 when every request would get the same limit, 1 when one would get another, 2 when the rules cannot be
    loaded.
    """
    with _shown_problems(as_json=as_json):
        client, read = _RulesClient(at, env_file, access_files), _read(file)
        found = _object(client.ask("POST", path_of(read.domain, "/diff"), read))
    if as_json:
        echo_json(found)
    else:
        echo(*change_lines(found))
    if not found["same"]:
        sys.exit(DIFFERENT)


@click.command(
    epilog="""\b
Examples:
  ratelimit rules history shop"""
)
@click.argument("domain")
@_json
@service_options
def history(*, domain: str, as_json: bool, at: str | None, env_file: Path | None, access_files: AccessFiles) -> None:
    """List the last versions of a domain's rules: when, by whom, from which address, and why."""
    found = _object(_RulesClient(at, env_file, access_files).ask("GET", path_of(domain, "/history")))
    if as_json:
        echo_json(found)
    else:
        rows = [("version", "when", "what", "who", "from", "why"), *map(_row, found["versions"])]
        echo(*aligned(rows))


@click.command(
    epilog="""\b
Examples:
  ratelimit rules history shop
  ratelimit rules rollback shop 6 --why "the new limit was too low" """
)
@click.argument("domain")
@click.argument("version")
@_why
@_replaces
@service_options
def rollback(
    *,
    domain: str,
    version: str,
    why: str | None,
    replaces: str | None,
    at: str | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Make the rules of an old VERSION, or of its number, the present ones again: as a new version."""
    client = _RulesClient(at, env_file, access_files)
    headers = {"If-Match": f'"{replaces or _newest(client, domain)}"'}
    path = path_of(domain, "/rollback", to=version, why=why, who=who())
    with _shown_problems():
        made = _object(client.ask("POST", path, headers=headers))
    echo(GREEN(f"rules of {domain}: version {made['version']}, which is as {made['restores']}"))


COMMANDS: Final = (get, put, delete, diff, history, rollback)


@contextmanager
def _shown_problems(*, as_json: bool = False) -> Iterator[None]:
    """Print the problems of rules that cannot be loaded, and exit."""
    try:
        yield
    except RulesError as error:
        exit_broken(error, as_json=as_json)


def _read(file: Path) -> _ReadRules:
    """The rules in a file, and their domain. RulesError if they have none."""
    name = "standard input" if str(file) == _STDIN else str(file)
    try:
        text = sys.stdin.buffer.read() if str(file) == _STDIN else read_file(file)
    except OSError as error:
        raise RulesError([Problem(name, 0, 0, f"cannot be read: {(error.strerror or str(error)).lower()}")]) from error
    kind = "json" if file.suffix == ".json" else "yaml"
    report = Report(name)
    root = open_document(kind, SourceKind.API, name, text).nodes(report)
    domain = root.fields["domain"].value if isinstance(root, YamlMap) and "domain" in root.fields else None
    if not isinstance(domain, Scalar):
        raise RulesError([Problem(name, 0, 0, "has no domain; it must begin with one, such as domain: shop")])
    return _ReadRules(domain.text, kind, text)


def _newest(client: _RulesClient, domain: str) -> str:
    """The present version; also a deletion."""
    found: str = _object(client.ask("GET", path_of(domain, "/history")))["versions"][0]["version"]
    return found


def _object(reply: PortReply) -> dict[str, Any]:
    """The JSON of a reply."""
    try:
        found = json.loads(reply.text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreError("its response is not JSON: is that the debug port of this service?")
    return found


def _listed(found: Json) -> Iterator[str]:
    if found["trouble"]:
        yield RED(found["trouble"])
    if found["documents"]:
        header = ("domain", "version", "when", "who", "why")
        rows = [(each["domain"], each["version"], *_told(each)) for each in found["documents"]]
        yield from aligned([header, *rows])
    if found["store"]:
        yield f"{plural(len(found['documents']), 'domain')} in {found['store']}"


def _told(made: Json) -> Sequence[str]:
    return iso_time(round(made["at"] * SECOND)), made["who"], made["why"]


def _row(made: Json) -> Sequence[str]:
    what = "deleted" if made["deleted"] else f"as {made['restores']}" if made["restores"] else "put"
    when, named, why = _told(made)
    return made["version"], when, what, named, made["address"], why
