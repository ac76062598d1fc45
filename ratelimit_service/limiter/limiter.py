"""The limiter: plans what a request charges, has the store decide the hits, sums the decisions up. Hot path."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Final, TypeVar

from ratelimit_service.errors import RpcError, Status, StoreError, TooHeavyError
from ratelimit_service.limiter.hit_log import MAX_PENDING, HitLogs
from ratelimit_service.limiter.plan import Plan, Planner
from ratelimit_service.limiter.queued import QueuedRequests
from ratelimit_service.limiter.refusals import RefusalLog
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.limiter.verdict import OnVerdict, Verdict, by_descriptor
from ratelimit_service.model import ByPolicy, Cancel, Decision, Request
from ratelimit_service.rules.bans import Bans, BanSummary
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.pattern_work import DEFAULT_BOUNDS, PatternBounds
from ratelimit_service.rules.rule import Entries
from ratelimit_service.stores.hit import Hit, spare
from ratelimit_service.stores.store import Store
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from ratelimit_service.telemetry.heavy_hitters import HeavyNames
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.tally import OTHER, DomainTallies, Tallies, Tally, Totals

log = logging.getLogger(__name__)

T = TypeVar("T")


class Limiter:
    """Answers requests by the rules of `book` and the counters of the store.

    `shadow_mode` allows every request; `quota_mode` treats every rule as a quota; `near_ratio` is the share of an
    override's limit from which a hit counts as near the limit. At most `max_values` overrides and unknown domains
    have a tally of their own. A request may have at most `max_hits` hits, and cost no more than `pattern_bounds` where
    its values are tried with patterns.
    """

    def __init__(  # noqa: PLR0913 - the store, six settings, and what waits
        self,
        store: Store,
        *,
        shadow_mode: bool = False,
        quota_mode: bool = False,
        near_ratio: float = 0.8,
        max_values: int = 1000,
        max_hits: int = 500,
        pattern_bounds: PatternBounds = DEFAULT_BOUNDS,
        turns: TurnQueues | None = None,
    ) -> None:
        self.domains = DomainTallies()
        self.bans = Bans()
        """Each change of them makes another edition, so that plans need no look at them."""
        self.bans.on_change = self._begin_edition
        self.book = None
        self.store = store
        self.totals = Totals()
        self.overrides = Tallies(OTHER, max_values)
        self.unknown_domains = Tallies(OTHER, max_values)
        """Requests for domains without rules, counted in `total_hits`."""
        self.unmatched = HeavyNames()
        """Descriptors that match no rule, by domain and keys. First come, made-up keys would fill the list for ever."""
        self.waits = Latency()
        """Time that requests waited for a store that does not answer at once."""
        self.turns = turns or TurnQueues()
        """Requests that wait in queues."""
        self.top = HitLogs()
        """Who is asked about, and refused, most."""
        self.refusals = RefusalLog()
        """Some of the requests that are refused, with why."""
        self.pattern_bounds = pattern_bounds
        self._charge = store.charge
        self._planner = Planner(
            domains=self.domains,
            overrides=self.overrides,
            unknown_domains=self.unknown_domains,
            unmatched=self.unmatched,
            near_ratio=near_ratio,
            quota_mode=quota_mode,
            max_hits=max_hits,
            pattern_bounds=pattern_bounds,
            bans=self.bans,
        )
        self._shadow_mode = shadow_mode
        self._queued = QueuedRequests(store, self.turns, self.waits, self._judge_late, shadow_mode=shadow_mode)

    @property
    def book(self) -> RuleBook | None:
        """The rules in force."""
        return self._book

    @book.setter
    def book(self, book: RuleBook | None) -> None:
        if book is not None:
            self.domains.add_domains(book.domains)
        self._book = book
        self._begin_edition()

    @property
    def shadow_mode(self) -> bool:
        """Every request is allowed."""
        return self._shadow_mode

    @property
    def ban_summary(self) -> BanSummary:
        """The bans for the page."""
        return self.bans.summary()

    @property
    def gauges(self) -> Mapping[Tally, Gauges]:
        """The gauges of rules now, by their tallies, of those that have any."""
        found = dict(self.store.leased())
        for rule in () if self._book is None else self._book.measured:
            if rule.measured is not None and (gauges := rule.measured.gauges()) != NO_GAUGES:
                found[rule.tally] = gauges
        return found

    def plan(self, request: Request) -> Plan:
        """The plan for a request by the book in force; RpcError if there is no book."""
        if self._book is None:
            raise RpcError(Status.UNAVAILABLE, "no rate limit configuration loaded")
        return self._planner.plan(request, self._book, self.edition)

    def shown(self, domain: str, entries: Entries) -> Entries:
        """The entries as logs and responses may show them; while there are no rules, none of the values."""
        if self._book is None:
            return tuple([(key, "...") for key, _ in entries])
        return self._book.shown(domain, entries)

    def _begin_edition(self) -> None:
        self.edition = object()
        """Identifies the time in which book and bans are the same. A plan of an earlier edition must not be used."""

    def count_unplanned(self) -> None:
        """Count a request that ends with an error before it has a plan."""
        self.totals.service_errors += 1
        self.domains.other.failed += 1

    def decide_now(self, plan: Plan, encode: Callable[[Verdict, bytes], T], body: bytes) -> T | None:
        """Charge the plan, judge it, encode the verdict. None if the store cannot answer at once; then nothing is done.

        The verdict's decisions end with `encode`: the plan is shared by all requests that are alike.
        """
        charged = plan.charged
        if charged and (self._charge is None or not self._charge(charged)):
            return None
        response = encode(self._judge(plan), body)
        for hit in charged:  # kept in the plan, decisions are spread over the memory: 15 % of a call
            del hit.decision
        return response

    def decide_later(
        self, plan: Plan, on_verdict: OnVerdict, timeout: int | None = None, caller: bytes = b""
    ) -> Cancel | None:
        """Charge the plan; `on_verdict` is called once, when the store has answered, unless the charge is cancelled.

        `timeout`: microseconds until the caller's deadline, if it has one. `caller`: its address.
        """
        if plan.queued_bytes:
            return self._queued.decide(plan, on_verdict, timeout, caller)
        asked = plan.again()
        began = perf_counter_ns()

        def done(error: StoreError | None) -> None:
            self.waits.observe(perf_counter_ns() - began)
            on_verdict(self._judge_late(asked, error))

        return self.store.hit(asked.charged, done, timeout)

    def _judge_late(self, plan: Plan, error: StoreError | None = None) -> Verdict | RpcError:
        """The verdict on a request that has waited, or what it ends with. Raises nothing: its caller waits for this."""
        try:
            return self._judge(plan) if error is None else self._judge_failed(plan, error)
        except Exception:
            log.exception("a request could not be decided")
            self.totals.service_errors += 1
            plan.domain.failed += 1
            return RpcError(Status.INTERNAL, "the request could not be decided")

    def _judge_failed(self, plan: Plan, error: StoreError) -> Verdict | RpcError:
        """The error of a request that the store could not decide, and no policy did."""
        if isinstance(error, TooHeavyError):
            self.totals.service_errors += 1
            plan.domain.failed += 1
            return RpcError(Status.INVALID_ARGUMENT, str(error))
        if plan.denied and not self._shadow_mode and any(map(_refuses_without_counter, plan.hits)):
            return self._judge_without_store(plan, error)
        self._count_failed(plan)
        return RpcError(Status.UNAVAILABLE, str(error))

    def _judge(self, plan: Plan) -> Verdict:  # noqa: PLR0912 - several functions would cost each call
        """Count every decision in the tallies, and make the verdict of them."""
        for tally, number, cost in plan.increments:
            tally.add(number, cost)
        verdict = plan.verdict
        if plan.has_bundles:
            spare(plan.charged)
            verdict.hits = by_descriptor(plan.hits)
        if plan.measured:
            _measure(plan.charged)
        denied, by_policy = plan.denied, False
        top = self.top
        for hit in plan.charged:
            rule, decision = hit.rule, hit.decision
            if hit.by_policy is not None:
                by_policy = True
                _count_by_policy(hit, hit.by_policy)
            elif hit.spared:
                hit.tally.spare(hit.cost)
            else:
                hit.tally.count(hit.cost, decision, rule.scale, rule.shadow)
            allowed = decision.allowed
            if not allowed:
                denied = True
            log = top.allowed if allowed or rule.shadow else top.refused
            if len(log.pending) < MAX_PENDING:
                log.pending.append(hit)
            else:
                log.skipped += 1
        if not denied and not by_policy and plan.ruled:
            verdict.allowed = True
            plan.domain.allowed += 1
            return verdict
        if plan.refused:
            top.refused.add(plan.refused)
        verdict.allowed = not denied or verdict.passes()
        refused = not verdict.allowed
        if refused and plan.settles and _only_settles(plan):
            refused, verdict.allowed = False, self._shadow_mode
        elif refused and self._shadow_mode:
            self.totals.global_shadow_mode += 1
            verdict.allowed = True
        elif refused:
            self.refusals.note(verdict)
        plan.domain.add(_outcome(plan, refused=refused, by_policy=by_policy), 1)
        return verdict

    def _judge_without_store(self, plan: Plan, error: StoreError) -> Verdict:
        """The verdict on a request that is refused whatever the store would have decided."""
        # With an error in its place, a gateway that then lets requests pass would let in whom a rule denies always.
        for hit in plan.charged:
            if not hasattr(hit, "decision"):
                hit.decision = _UNDECIDED
                hit.by_policy = ByPolicy("error", str(error))
        return self._judge(plan)

    def _count_failed(self, plan: Plan) -> None:
        """Count a request that ends with the error of its store."""
        self.totals.store_errors += 1
        plan.domain.failed += 1
        for hit in plan.charged:
            if hit.by_policy is not None and hit.by_policy.policy == "error":
                hit.tally.count_by_policy(hit.cost, "error", "failed")


_UNDECIDED: Final = Decision(True, 0, 0, 0, 0)
"""The decision in place of one that the store could not take: it is not what refuses the request."""


def _only_settles(plan: Plan) -> bool:
    """No request is refused: it only says that what has come about is above a limit."""
    return not plan.refused and not any(hit.over and not hit.limit.owes for hit in plan.charged)


def _refuses_without_counter(hit: Hit | None) -> bool:
    return hit is not None and not hit.key and hit.over and not hit.quota


def _measure(hits: Sequence[Hit]) -> None:
    """Note how many places are taken of each counter, how much it has on loan, or what is reserved."""
    for hit in hits:
        measured = hit.rule.measured
        if measured is not None and hit.by_policy is None:
            measured.measure(hit.limit, hit.cost, hit.decision)


def _count_by_policy(hit: Hit, answered: ByPolicy) -> None:
    if not hit.spared:
        outcome = "failed" if answered.policy == "error" else "refused" if hit.over else "allowed"
        hit.tally.count_by_policy(hit.cost, answered.policy, outcome)


def _outcome(plan: Plan, *, refused: bool, by_policy: bool) -> str:
    """The counter of DomainTally that the request adds to. `refused`: it is, or would be without SHADOW_MODE."""
    if by_policy:
        return "policy_allowed" if plan.verdict.allowed else "policy_refused"
    if not plan.verdict.allowed:
        return "refused" if refused else "allowed"  # those that are not refused only settle
    if not plan.ruled:
        return "unlimited"
    # A quota that is used up while another one is not makes no shadow: nothing would refuse the request.
    hits = chain(plan.charged, plan.hits)
    shadow = refused or any(hit is not None and hit.rule.shadow and not hit.decision.allowed for hit in hits)
    return "shadow" if shadow else "allowed"
