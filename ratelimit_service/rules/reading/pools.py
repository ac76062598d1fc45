"""The pools of a domain, and the limits that borrow from them by `elastic`.

A pool belongs to its domain, which several files may share. So members get their pool when all files are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms import token_bucket
from ratelimit_service.algorithms.kinds import pool as pools
from ratelimit_service.algorithms.kinds.pool import Pool
from ratelimit_service.errors import Problem
from ratelimit_service.model import MAX_REQUESTS, PLAIN, Limit
from ratelimit_service.rules.book import Node, all_nodes
from ratelimit_service.rules.problems import Place, Report, quoted
from ratelimit_service.rules.rule import Rule, pool_rule
from ratelimit_service.rules.syntax.document import YamlMap
from ratelimit_service.rules.syntax.maps import given, read_options
from ratelimit_service.rules.syntax.options import MapType
from ratelimit_service.rules.syntax.values import Excess, did_you_mean

_WITHOUT: Final = ("exceed", "block_for", "block_up_to")
"""Options that an elastic limit cannot have; as defaults of the file they do not apply to it."""


class Membership(NamedTuple):
    """The pool that `elastic` of a limit names."""

    pool: str
    strict: bool
    at: Place
    """Of the name of the pool."""
    rule: Rule


class _WrittenPool(NamedTuple):
    """A pool as it is written."""

    pool: Pool
    limit: Limit
    """Its window, with the unit, and its requests."""
    reserve: int | None
    at: Place
    reserve_at: Place


class DomainPools:
    """The pools of a domain, and their members, as they are read."""

    def __init__(self) -> None:
        self._pools: dict[str, _WrittenPool] = {}
        self._members: dict[Place, Membership] = {}
        """By the place of the limit, which its rule keeps."""
        self._strict: set[str] = set()
        """Pools with a strict member."""

    def add(self, items: Sequence[YamlMap], report: Report) -> None:
        """Add the pools of a file."""
        for item in items:
            values = read_options(item, MapType.POOL, report)
            if not {"name", "unit", "requests_per_unit"} <= values.keys():
                continue
            name, requests = values["name"], values["requests_per_unit"]
            burst = values.get("burst", max(1, requests // 10))
            reserve = values.get("reserve")
            window = values["unit"]
            limit = Limit(requests, window.unit, window.microseconds)
            pool = Pool(name, requests, burst, reserve or 0)
            if reason := token_bucket.problem(pools.counter(pool, limit)):
                report.add(item, f"pool {quoted(name)}: {reason}; write a smaller burst")
            at, at_reserve = (item.fields[key].value if key in item.fields else item for key in ("name", "reserve"))
            if reserve is not None and reserve >= burst:
                report.add(
                    at_reserve, f"reserve leaves nothing to lend: it must be less than the burst of the pool, {burst:,}"
                )
            if name in self._pools:
                report.add(at, f"pool {quoted(name)} is given twice in this domain, first at {self._pools[name].at}")
            read = _WrittenPool(
                pool,
                limit,
                reserve,
                report.place(at),
                report.place(at_reserve),
            )
            self._pools.setdefault(name, read)

    def add_member(self, membership: Membership) -> None:
        """Add a limit that has `elastic`."""
        assert membership.rule.place is not None, "it is in a file"
        self._members[membership.rule.place] = membership
        if membership.strict:
            self._strict.add(membership.pool)

    def problems(self) -> Iterator[Problem]:
        """The problems between limits and their pools."""
        first: dict[str, Membership] = {}
        for membership in self._members.values():
            name, rule, limit = membership.pool, membership.rule, membership.rule.limit
            assert limit is not None, "it is a limit"
            read = self._pools.get(name)
            if read is None:
                known = f"there are {', '.join(map(quoted, self._pools))}" if self._pools else "write pools at the top"
                hint = did_you_mean(name, self._pools) or f"; {known}"
                yield Problem(*membership.at, f"domain {quoted(rule.domain)} has no pool {quoted(name)}{hint}")
                continue
            if limit.window != read.limit.window:
                windows = f"per {limit.window_in_words}, and the pool at {read.at} per {read.limit.window_in_words}"
                yield Problem(*membership.at, f"the limit is {windows}: write the same unit for both")
            other = first.setdefault(name, membership).rule
            if other.quota_unit != rule.quota_unit:
                counts = f"this limit counts {rule.quota_unit}, and the one at {other.place} {other.quota_unit}"
                yield Problem(*membership.at, f"{counts}: members of one pool count the same, so use another pool")
            if membership.strict and self._pool(name).reserve == 0:
                message = (
                    f"pool {quoted(name)} has no reserve, and the limit at {rule.place} is strict: loans could keep "
                    "its requests out for ever; write a burst of 2 at least, and leave reserve out or above 0"
                )
                yield Problem(*read.reserve_at, message)

    def joined(self, children: Mapping[str, Node], default: Rule | None) -> Rule | None:
        """Give each member below these nodes its pool, if there are no problems; returns the default with its pool."""
        if not self._members:
            return default
        for child in children.values():
            for node in all_nodes(child):
                if node.rule is not None:
                    node.rule = self._joined(node.rule)
        return None if default is None else self._joined(default)

    def rules(self, domain: str) -> Mapping[str, Rule]:
        """All pools by name, as rules."""
        return {
            name: pool_rule(domain, name, pools.counter(self._pool(name), read.limit), read.at)
            for name, read in self._pools.items()
        }

    def _joined(self, rule: Rule) -> Rule:
        membership = None if rule.place is None else self._members.get(rule.place)
        limit = rule.limit
        if membership is not None and limit is not None:
            limit = pools.member(limit, self._pool(membership.pool), strict=membership.strict)
        elif not rule.beside:
            return rule
        return replace(rule, limit=limit, beside=tuple(map(self._joined, rule.beside)))

    def _pool(self, name: str) -> Pool:
        read = self._pools[name]
        if read.reserve is None and name in self._strict:
            return replace(read.pool, reserve=read.pool.burst // 2)
        return read.pool


def read_elastic(
    block: YamlMap, options: Mapping[str, Any], limit: Limit, report: Report
) -> tuple[Limit, Mapping[str, Any]]:
    """The limit as `elastic` makes it, with what may be borrowed as its `exceed`; and the values of `elastic`."""
    values = read_options(options["elastic"], MapType.ELASTIC, report)
    for key in _WITHOUT:
        if given(block, key):
            report.add(block.fields[key].key, f"{key} has no meaning with elastic, whose ceiling says what is allowed")
    if options.get("count_refused"):
        report.add(block.fields["count_refused"].key, "count_refused has no meaning with elastic: remove it")
    if not limit.requests:
        message = "elastic needs requests_per_unit of 1 at least; write 1 for a limit that lives on what it borrows"
        report.add(block.fields["requests_per_unit"].value, message)
    written: Excess | None = values.get("ceiling")
    ceiling = limit.requests if written is None else written.of(limit.requests)
    if not limit.requests <= ceiling <= MAX_REQUESTS:
        least = f"ceiling {ceiling:,} is not between requests_per_unit, {limit.requests:,}, and {MAX_REQUESTS:,}"
        report.add(options["elastic"].fields["ceiling"].value, f"{least}; write one such as 200%")
        ceiling = limit.requests
    return replace(limit, count_refused=False, exceed=ceiling - limit.requests, kind=PLAIN), values
