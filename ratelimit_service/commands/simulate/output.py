"""The result of a replay: a table for the terminal, JSON, CSV and a picture."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import starmap
from typing import Any, Final

from ratelimit_service.commands.picture import Points, draw
from ratelimit_service.commands.simulate.logs import UnreadLine
from ratelimit_service.commands.simulate.replay import HEAVIEST, Loans, Refused, Replay, RuleSums, Side, Span
from ratelimit_service.commands.simulate.settled import Settled
from ratelimit_service.commands.table import aligned, share
from ratelimit_service.commands.terminal import GREEN, RED, YELLOW
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import Rule, plural, rule_in_words
from ratelimit_service.system.clock import MINUTE, SECOND, delay_in_words, duration_in_words

_MAX_RULES: Final = 20
"""The rules in the table, the busiest; JSON has all."""
_MAX_DRAWN: Final = 4
"""Members of pools, each with a line."""
_TICKS: Final = 4
_SLIGHTLY: Final = MINUTE
"""Out of order by no more, as lines are that servers write when requests end."""


def lines(replay: Replay, unread: int, problems: Sequence[UnreadLine], top: int) -> Iterator[str]:
    """The result for a terminal; with the `top` keys that were refused most."""
    lasted = duration_in_words(replay.last - replay.first)
    yield f"{plural(replay.requests, 'request')} in {lasted}, {_moment(replay.first)} to {_moment(replay.last)} UTC"
    if unread:
        yield YELLOW(f"{plural(unread, 'line')} could not be read, such as:")
        yield from (printable(f"  {each.path}:{each.line}: {each.reason}  {each.text}".rstrip()) for each in problems)
    if replay.early:
        by = duration_in_words(replay.earliest)
        what = f"{plural(replay.early, 'request')} came up to {by} before an earlier line, and count at its time"
        yield what if replay.earliest <= _SLIGHTLY else YELLOW(f"{what}: put the files, or lines, in order of time")
    for side in replay.sides:
        yield ""
        yield from _side(side, top)
    if len(replay.sides) > 1:
        first, second = (printable(side.name) for side in replay.sides)
        yield ""
        yield f"refused by {first} alone: {replay.differences.only_first:,}"
        yield f"refused by {second} alone: {replay.differences.only_second:,}"


def _side(side: Side, top: int) -> Iterator[str]:
    allowed = side.requests - side.refused - side.failed
    yield printable(side.name)
    yield GREEN(f"  allowed {allowed:13,}  {share(allowed, side.requests):>7}")
    yield (RED if side.refused else GREEN)(f"  refused {side.refused:13,}  {share(side.refused, side.requests):>7}")
    if side.delayed:
        part, longest = share(side.delayed, side.requests), delay_in_words(side.longest_delay)
        yield f"  delayed {side.delayed:13,}  {part:>7}  (of the allowed, by up to {longest})"
    if side.failed:
        yield RED(f"  failed  {side.failed:13,}  {side.failure}")
    if side.unlimited:
        yield f"  no rule {side.unlimited:13,}  {share(side.unlimited, side.requests):>7}  (of the allowed)"
    if side.store.evicted:
        yield YELLOW(f"  {side.store.evicted:,} counters did not fit into memory and began anew: too few are refused")
    rules = sorted(side.rules.items(), key=lambda item: -item[1].refused - item[1].shadow)
    if rules:
        rows = [_rule_row(rule, sums) for rule, sums in rules[:_MAX_RULES]]
        yield from _table(("refused", "by rule", "limit", "first", "last"), rows)
    if len(rules) > _MAX_RULES:
        yield f"  … and {plural(len(rules) - _MAX_RULES, 'rule')} more"
    if settled := side.settlements.by_rule:
        yield from _table(_SETTLED, starmap(_settled_row, settled.items()), right=5)
    if loans := side.loans():
        yield from _table(_LOANS, _loan_rows(side, loans), right=4)
    heavy = side.heaviest.top(top)
    if heavy:
        found = [
            (f"{each.times:,}", each.key.entries, _path(each.key.rule), _moment(each.first), _moment(each.last))
            for each in heavy
        ]
        yield from _table(("refused", "most", "by rule", "first", "last"), found)
    if top and len(side.heaviest) > top:
        least = ", at least" if side.heaviest.missed else ""
        yield f"  … of {plural(len(side.heaviest), 'key')} that were refused{least}"
    if side.heaviest.missed:
        yield f"  (of more than {2 * HEAVIEST:,} keys: each number is up to {side.heaviest.missed:,} too low)"


_SETTLED: Final = ("settled", "reserved", "cost", "overran", "unsettled", "most of the limit", "by rule")


def _settled_row(rule: Rule, sums: Settled) -> tuple[str, ...]:
    window = duration_in_words(rule.limit.window) if rule.limit is not None else ""
    counts = (f"{sums.requests:,}", f"{sums.reserved:,}", f"{sums.cost:,}", share(sums.overran, sums.requests))
    return (*counts, f"{sums.unsettled:,}", f"{100 * sums.most_used:.1f} % in {window}", _path(rule))


_LOANS: Final = ("asked", "by right", "on loan", "refused", "most", "of the pool", "by rule")


def _loan_rows(side: Side, loans: Mapping[Rule, Loans]) -> Iterator[tuple[str, ...]]:
    """A row for each member of a pool, then one for each pool; `most` is what was allowed in one span of time."""
    pools: dict[str, list[Rule]] = {}
    for rule, sums in loans.items():
        pool = _pool_of(rule)
        pools.setdefault(pool, []).append(rule)
        yield _loan_row(side, [rule], sums, pool, _path(rule))
    for pool, members in pools.items():
        sums = Loans()
        for rule in members:
            sums.add(loans[rule])
        yield _loan_row(side, members, sums, pool, "(all)")


def _loan_row(side: Side, members: Sequence[Rule], sums: Loans, pool: str, name: str) -> tuple[str, ...]:
    spans = side.timeline.spans
    most = max(sum(span.elastic[rule].allowed for rule in members if rule in span.elastic) for span in spans)
    counts = (sums.asked, sums.by_right, sums.on_loan, sums.refused)
    width = duration_in_words(side.timeline.width)
    return (*(f"{count:,}" for count in counts), f"{most:,} in {width}", pool, name)


def _pool_of(rule: Rule) -> str:
    assert rule.limit is not None, "it has a pool"
    return rule.limit.kind.common


def _rule_row(rule: Rule, sums: RuleSums) -> tuple[str, ...]:
    count = f"{sums.refused:,}" if not sums.shadow else f"{sums.shadow:,} (shadow)"
    place = f" ({rule.place})" if rule.place else ""
    words = f"{rule_in_words(rule)}, {rule.algorithm.name}" if rule.limit else rule_in_words(rule)
    return count, _path(rule), f"{words}{place}", _moment(sums.first), _moment(sums.last)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 1) -> Iterator[str]:
    yield ""
    for line in aligned([head, *([printable(cell) for cell in row] for row in rows)], right=right):
        yield f"  {line}"


def as_json(replay: Replay, unread: int, problems: Sequence[UnreadLine], top: int) -> dict[str, Any]:
    """The result for programs."""
    return {
        "requests": replay.requests,
        "first": _iso(replay.first),
        "last": _iso(replay.last),
        "early": {"requests": replay.early, "seconds": replay.earliest / SECOND},
        "unread": {"lines": unread, "first": [problem._asdict() for problem in problems]},
        "sides": [_side_as_json(side, top) for side in replay.sides],
        "differences": {
            "refused_by_first_alone": replay.differences.only_first,
            "refused_by_second_alone": replay.differences.only_second,
        }
        if len(replay.sides) > 1
        else None,
    }


def _side_as_json(side: Side, top: int) -> dict[str, Any]:
    return {
        "name": side.name,
        "allowed": side.requests - side.refused - side.failed,
        "refused": side.refused,
        "delayed": side.delayed,
        "longest_delay_seconds": side.longest_delay / SECOND,
        "failed": side.failed,
        "no_rule": side.unlimited,
        "evicted_counters": side.store.evicted,
        "rules": [
            {
                "rule": _path(rule),
                "place": str(rule.place) if rule.place else None,
                "limit": rule_in_words(rule),
                "algorithm": rule.algorithm.name if rule.limit else None,
                "refused": sums.refused,
                "shadow": sums.shadow,
                "first": _iso(sums.first),
                "last": _iso(sums.last),
            }
            for rule, sums in sorted(side.rules.items(), key=lambda item: -item[1].refused)
        ],
        "elastic": [
            {"rule": _path(rule), "pool": _pool_of(rule), **asdict(loans)} for rule, loans in side.loans().items()
        ],
        "settled": [{"rule": _path(rule), **asdict(sums)} for rule, sums in side.settlements.by_rule.items()],
        "most_refused": [
            {**_key(each.key), "refused": each.times, "first": _iso(each.first), "last": _iso(each.last)}
            for each in side.heaviest.top(top)
        ],
        "most_refused_too_low_by": side.heaviest.missed,
        "seconds": side.timeline.width // SECOND,
        "timeline": [
            {"start": _iso(span.start), "requests": span.requests, "refused": span.refused}
            for span in side.timeline.spans
        ],
    }


def _key(key: Refused) -> dict[str, str]:
    return {"entries": key.entries, "rule": _path(key.rule)}


def as_csv(replay: Replay) -> str:
    """A row for each span of time and side, one for each rule that refused in it, and for each member of a pool."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("side", "start", "seconds", "rule", "requests", "refused"))
    for side in replay.sides:
        seconds = side.timeline.width // SECOND
        for span in side.timeline.spans:
            start = _iso(span.start)
            writer.writerow((side.name, start, seconds, "", span.requests, span.refused))
            for rule, loans in span.elastic.items():
                writer.writerow((side.name, start, seconds, _path(rule), loans.asked, loans.refused))
            for rule, count in span.by_rule.items():
                if rule not in span.elastic:
                    writer.writerow((side.name, start, seconds, _path(rule), "", count))
    return text.getvalue()


def as_svg(replay: Replay) -> str:
    """Requests per second over time: all, and those that each side allows; or of a single side by member of a pool."""
    timeline = replay.sides[0].timeline
    points = partial(_points, replay)
    chart = {"requests": points(replay.sides[0], lambda span: span.requests)}
    for number, side in enumerate(replay.sides, 1):
        name = "allowed" if len(replay.sides) == 1 else f"{number}: {_short(side.name)}"
        chart[name] = points(side, lambda span: span.allowed)
    members = [*replay.sides[0].loans()][:_MAX_DRAWN] if len(replay.sides) == 1 else []
    for rule in members:
        chart[_short(rule.path[-1])] = points(replay.sides[0], partial(_allowed, rule))
    if members:  # loans are small beside all that is asked
        del chart["requests"]
    begin, end = timeline.spans[0].start, timeline.spans[-1].start + timeline.width
    ticks = [begin + (end - begin) * step / _TICKS for step in range(_TICKS + 1)]
    form = "%H:%M:%S" if end - begin < 86_400 * SECOND else "%m-%d %H:%M"
    span = duration_in_words(timeline.width)
    title = f"{_moment(begin)} to {_moment(end)} UTC, by {span}"
    return draw(chart, title, "requests per second", ticks, lambda x: _date(int(x)).strftime(form), linear=True)


def _allowed(rule: Rule, span: Span) -> int:
    loans = span.elastic.get(rule)
    return 0 if loans is None else loans.allowed


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"…{name[-15:]}"


def _points(replay: Replay, side: Side, number: Callable[[Span], int]) -> Points:
    """Steps: each span has two corners; where nothing came, the line is at 0."""
    points: list[tuple[float, float]] = []
    for begin, end, count in _steps(replay, side, number):
        if points and begin > points[-1][0]:
            points += [(points[-1][0], 0.0), (begin, 0.0)]
        rate = count * SECOND / (end - begin)
        points += [(begin, rate), (end, rate)]
    return points


def _steps(replay: Replay, side: Side, number: Callable[[Span], int]) -> list[tuple[float, float, int]]:
    """Begin, end and number of each span; of the first and the last one, the part that the log covers.

    Otherwise a log that begins within a minute would seem to begin slowly. Less than half a span is joined with the one
    beside it. One that stands alone is whole: a burst is not a log that was cut.
    """
    width = side.timeline.width
    steps: list[tuple[float, float, int]] = [
        (span.start, span.start + width, number(span)) for span in side.timeline.spans
    ]
    begin, end = replay.first, replay.last + (replay.last - replay.first) / max(replay.requests - 1, 1)
    if len(steps) > 1 and steps[0][1] == steps[1][0]:
        (_, middle, count), (_, after, more) = steps[:2]
        steps[:2] = [(begin, after, count + more)] if middle - begin < width / 2 else [(begin, middle, count), steps[1]]
    # A queue has turns after the log's end.
    if len(steps) > 1 and steps[-2][1] == steps[-1][0] < end < steps[-1][1]:
        (before, _, more), (middle, _, count) = steps[-2:]
        steps[-2:] = [(before, end, count + more)] if end - middle < width / 2 else [steps[-2], (middle, end, count)]
    return steps


def _path(rule: Rule) -> str:
    return ".".join(rule.path)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _date(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _moment(microseconds: int) -> str:
    return f"{_date(microseconds):%Y-%m-%d %H:%M:%S}"


def _iso(microseconds: int) -> str:
    return f"{_date(microseconds):%Y-%m-%dT%H:%M:%S}Z"
