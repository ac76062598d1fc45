"""`ratelimit simulate`: what rules would have answered to the requests of an access log, or of a pattern."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click

from ratelimit_service.algorithms import NAMES
from ratelimit_service.commands.duration import DURATION
from ratelimit_service.commands.simulate.logs import FORMATS, Reader, Record, UnreadLine
from ratelimit_service.commands.simulate.mapping import Mapping
from ratelimit_service.commands.simulate.output import as_csv, as_json, as_svg, lines
from ratelimit_service.commands.simulate.patterns import FIELDS, MAX_PATTERN, PATTERNS, count_of, generate
from ratelimit_service.commands.simulate.replay import Replay, Side, counted_by
from ratelimit_service.commands.sources import (
    env_file_option,
    exit_broken,
    merge_option,
    read_books,
    read_region_options,
    read_settings,
    rules_flags,
)
from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.errors import RulesError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import plural
from ratelimit_service.settings import Section
from ratelimit_service.system.clock import DAY, MINUTE

NOTHING: Final = 1
"""Exit code: no request could be read. `BROKEN`: the rules cannot be."""

_SIDES: Final = 2
_EVERY: Final = 4096
"""Requests of a pattern between two moves of the bar."""


@click.command(
    short_help="Show what rules would have refused.",
    epilog="""\b
Examples:
  ratelimit simulate config/example.yaml --log config/tests/access.log --descriptor 'user={user}'
  ratelimit simulate config --domain shop --log config/tests/access.log --descriptor 'path={path} + user={user}'
  ratelimit simulate config --compare new --domain shop --pattern attack --descriptor 'login={user}' --svg a.svg
  ratelimit simulate config/example.yaml --pattern burst --descriptor 'login={user}' --algorithm sliding_log

\b
Fields of the common and combined formats: remote_host, ident, user, method, uri, path (without the query), query,
protocol, status, bytes, referer, user_agent. Of JSON lines: names, or paths with dots: {request.headers.x-user}.
Of CSV: the columns. Of a pattern: user, remote_host, path, method.""",
)
@click.argument("rules", type=click.Path(path_type=Path))
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Access log; .gz too. Several are read one after the other.",
)
@click.option("--pattern", type=click.Choice(PATTERNS), help="Generated traffic in place of a log.")
@click.option(
    "--descriptor",
    "templates",
    multiple=True,
    required=True,
    metavar="TEMPLATE",
    help="Descriptor for each line: KEY=VALUE... with {field} in values; + begins another one. May be repeated.",
)
@click.option("--domain", help="Domain of the requests.  [default: that of the rules, if there is one only]")
@click.option("--compare", type=click.Path(path_type=Path), help="Other rules, for the same requests.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    type=click.Choice(NAMES),
    help="Count all limits by this algorithm; given twice: compare both.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format of the log.  [default: detected]")
@click.option(
    "--time",
    "time_field",
    metavar="FIELD",
    help="Field with the time, in JSON lines or CSV.  [default: time, timestamp, ts, …]",
)
@click.option(
    "--took",
    metavar="FIELD[:ms]",
    help="Field with the time that requests took, in seconds or milliseconds; limits with concurrency need it.",
)
@click.option(
    "--settle",
    metavar="FIELD",
    help="Field with what requests have cost, such as bytes; where the domain has settle, they are charged it when "
    "they end.",
)
@click.option("--columns", metavar="NAME,...", help="Columns of a CSV without a header.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1_000_000, min_open=True),
    default=10.0,
    show_default=True,
    help="Requests per second of a pattern, on average.",
)
@click.option("--for", "duration", type=DURATION, help="How long a pattern lasts.  [default: 10m; diurnal 24h]")
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Users of a pattern.")
@click.option(
    "--top", type=click.IntRange(0, 1000), default=10, show_default=True, help="How many refused keys to list."
)
@click.option("--json", "as_json_", is_flag=True, help="Print the result as JSON.")
@click.option("--csv", "as_csv_", is_flag=True, help="Print what was asked and refused over time, as CSV.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the same to this file.")
@env_file_option
@merge_option
def command(
    *,
    rules: Path,
    logs: Sequence[Path],
    pattern: str | None,
    templates: Sequence[str],
    domain: str | None,
    compare: Path | None,
    algorithms: Sequence[str],
    form: str | None,
    time_field: str | None,
    took: str | None,
    settle: str | None,
    columns: str | None,
    rate: float,
    duration: int | None,
    keys: int,
    top: int,
    as_json_: bool,
    as_csv_: bool,
    svg: Path | None,
    env_file: Path | None,
    merge_domains: bool,
) -> None:
    """Show which requests of an access log RULES would have refused, by which rule and when.

    The requests are answered by the code of the service, at the times that they have in the log, with untouched
    counters in memory at the start. RULES is a folder or a file; SHADOW_MODE and QUOTA_MODE have no effect. A
    descriptor with a field that a line does not have (or has as - or empty) is left out. A request whose time is before
    that of a line above it counts at the latest time so far. docs/testing.md says more.

    Exits with 0, or 1 when no request could be read, or 2 when the rules are wrong.
    """
    _check(logs, pattern, compare, algorithms)
    if as_json_ and as_csv_:
        raise click.UsageError("give either --json or --csv")
    mapping = Mapping(templates, took, settle)
    settings, _ = read_settings(rules_flags(None, merge_domains=merge_domains), env_file, Section.RULES)
    paths = [path for path in (rules, compare) if path is not None]
    try:
        books = read_books(paths, settings, read_region_options(env_file)._replace(may_share=False))
    except RulesError as error:
        exit_broken(error, as_json=False)
    domain = _domain(books, domain)
    sides = _sides(books, paths, domain, mapping, algorithms)
    replay = Replay(sides)
    reader = Reader(mapping.fields, form=form, time_field=time_field, columns=columns.split(",") if columns else ())
    if pattern is not None:
        duration = duration or (DAY if pattern == "diurnal" else 10 * MINUTE)
        _run_pattern(replay, mapping, pattern, rate, duration, keys)
    else:
        _run_logs(replay, reader, logs)
    problems = _shown(reader.problems, books, domain)
    if not replay.requests:
        for problem in problems:
            echo(f"ratelimit: {problem.path}:{problem.line}: {problem.reason}", err=True)
        echo("ratelimit: there is no request to replay; --format says how lines look", err=True)
        sys.exit(NOTHING)
    if took is None and any(side.took_places for side in sides):
        message = "limits with concurrency cannot be full here: --took FIELD says how long each request took"
        echo(f"ratelimit: {message}", err=True)
    if message := _about_costs(sides, settle):
        echo(f"ratelimit: {message}", err=True)
    if svg is not None:
        _write(svg, replay)
    if as_json_:
        echo_json(as_json(replay, reader.unread, problems, top))
    elif as_csv_:
        echo(*as_csv(replay).rstrip("\n").split("\n"))
    else:
        echo(*lines(replay, reader.unread, problems, top))


def _about_costs(sides: Sequence[Side], settle: str | None) -> str:
    """What is odd about what requests cost."""
    if settle is not None:
        return "" if any(side.mark for side in sides) else "--settle has no effect: the rules have no settle"
    if any(side.settlements.by_rule for side in sides):
        return "what limits reserve stays charged here: --settle FIELD says what requests cost"
    if any(side.mark and not side.reserves for side in sides):
        return "each request is charged as one that costs 1 here: --settle FIELD says what requests cost"
    return ""


def _check(logs: Sequence[Path], pattern: str | None, compare: Path | None, algorithms: Sequence[str]) -> None:
    if bool(logs) == bool(pattern):
        raise click.UsageError("give either --log FILE or --pattern NAME")
    if len(algorithms) > _SIDES or (compare is not None and len(algorithms) > 1):
        raise click.UsageError("two sides are compared, not more: --compare with one --algorithm at most, or two")


def _write(svg: Path, replay: Replay) -> None:
    try:
        svg.write_text(as_svg(replay), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{svg} cannot be written: {error.strerror}") from error


def _domain(books: Sequence[RuleBook], domain: str | None) -> str:
    names = [name for name in books[0].domains if name != "*"]
    if domain is None:
        if len(names) != 1:
            raise click.UsageError(f"name a --domain; the rules have {', '.join(names)[:200] or 'none'}")
        return names[0]
    if all(book.name_of(domain) is None for book in books):
        raise click.UsageError(f"there is no domain {domain} in the rules; they have {', '.join(names)[:200]}")
    return domain


def _sides(
    books: Sequence[RuleBook], paths: Sequence[Path], domain: str, mapping: Mapping, algorithms: Sequence[str]
) -> list[Side]:
    for name in algorithms:
        for book in books:
            kept = [(rule, why) for rule in book.rules if (why := counted_by(rule, name)[1])]
            for rule, why in kept[:1]:
                first = f"{'.'.join(rule.path)}: {why}"
                echo(f"ratelimit: {plural(len(kept), 'rule')} cannot be counted by {name} ({first})", err=True)
    if len(algorithms) > 1:
        return [Side(name, books[0], domain, mapping, name, books) for name in algorithms]
    algorithm = algorithms[0] if algorithms else ""
    names = [algorithm] if algorithm and len(books) == 1 else map(str, paths)
    return [Side(name, book, domain, mapping, algorithm, books) for name, book in zip(names, books, strict=True)]


def _run_logs(replay: Replay, reader: Reader, logs: Sequence[Path]) -> None:
    try:
        sizes = [path.stat().st_size for path in logs]
    except OSError as error:
        raise click.UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    with _progress(sum(sizes)) as moved_to:

        def records() -> Iterator[Record]:
            before = 0
            for path, size in zip(logs, sizes, strict=True):
                yield from reader.records(path, partial(_moved, moved_to, before))
                before += size

        replay.run(records())


def _moved(moved_to: Callable[[int], None], before: int, read: int) -> None:
    moved_to(before + read)


@contextmanager
def _progress(length: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; what it yields moves it to a place."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, file=sys.stderr, label="replaying") as bar:
        yield lambda place: bar.update(place - bar.pos)


def _run_pattern(replay: Replay, mapping: Mapping, pattern: str, rate: float, duration: int, keys: int) -> None:
    if unknown := [name for name in mapping.fields if name not in FIELDS]:
        raise click.UsageError(f"a pattern has no field {unknown[0]}; there are {', '.join(FIELDS)}")
    count = count_of(pattern, rate, duration)
    if count > MAX_PATTERN:
        raise click.UsageError(f"that is {count:,} requests, more than {MAX_PATTERN:,}; lower --rate or --for")
    with _progress(count) as moved_to:

        def records() -> Iterator[Record]:
            for number, record in enumerate(generate(pattern, rate, duration, keys, mapping.fields)):
                if number % _EVERY == 0:
                    moved_to(number)
                yield record

        replay.run(records())


def _shown(problems: Sequence[UnreadLine], books: Sequence[RuleBook], domain: str) -> Sequence[UnreadLine]:
    """The lines that cannot be read; without their text, and reasons that quote it, where some values are secret."""
    roots = [book.root(domain) for book in books]
    if any(root is not None and root.secrets.keys for root in roots):
        return [problem._replace(reason="not in this format", text="") for problem in problems]
    return problems
