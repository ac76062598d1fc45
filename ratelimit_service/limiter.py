"""The limiter: match the descriptors, have the store charge them, judge what came of it. Hot path.

A request reads `book` once, so a reload in the middle of it changes nothing for it.
"""

from collections.abc import Callable, Sequence

from ratelimit_service.errors import RpcError, Status, StoreError
from ratelimit_service.model import MAX_REQUESTS, Decision, Descriptor, Request
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import ALONE, REQUEST, Entries, Rule, counter_key, near_threshold, tally_of
from ratelimit_service.stores.store import Store
from ratelimit_service.tally import Tallies, Totals
from ratelimit_service.verdict import Hit, Verdict, in_groups, spare, tightest_of

Reply = Callable[[Verdict | RpcError], None]

UNLIMITED = Decision(True, MAX_REQUESTS, 0, 0, 0)

_OTHER = ("other",)


class Limiter:
    """Answers requests by the rules of `book` and the counters of the store.

    `shadow_mode` lets every request pass; `quota_mode` treats every rule as a quota; `near_ratio` is the share of an
    override's limit from which it counts as near; at most `most_values` overrides and unknown domains are tallied
    apart.
    """

    def __init__(
        self,
        store: Store,
        *,
        shadow_mode: bool = False,
        quota_mode: bool = False,
        near_ratio: float = 0.8,
        most_values: int = 1000,
    ) -> None:
        self.book: RuleBook | None = None
        self.store = store
        self.totals = Totals()
        self.overrides = Tallies(_OTHER, most_values)
        self.unknown_domains = Tallies(_OTHER, most_values)
        """Requests for domains without rules, counted in `total_hits`."""
        self._shadow_mode = shadow_mode
        self._quota_mode = quota_mode
        self._near_ratio = near_ratio

    def check(self, request: Request, reply: Reply) -> None:
        """Charge the request and reply with its verdict, or with why there is none; now or when the store answers."""
        book = self.book
        if book is None:
            self.totals.service_errors += 1
            reply(RpcError(Status.UNAVAILABLE, "no rate limit configuration loaded"))
            return

        hits = self._match(book, request)
        charged = [hit for hit in hits if hit is not None and hit.key]
        if not charged:
            reply(self._judge(request, hits))
            return
        joint = book.joint
        if joint:
            charged = in_groups(charged)

        def done(error: StoreError | None) -> None:
            if error is not None:
                self.totals.store_errors += 1
                reply(RpcError(Status.UNAVAILABLE, str(error)))
                return
            if joint:
                spare(charged)
                reply(self._judge(request, [_tightest(hit) for hit in hits]))
            else:
                reply(self._judge(request, hits))

        self.store.hit(charged, done)

    def _match(self, book: RuleBook, request: Request) -> list[Hit | None]:
        """A hit for each descriptor, or None where nothing limits it."""
        domain = request.domain
        if domain not in book.domains:
            self.unknown_domains.of((domain,)).total_hits += 1
            return [None] * len(request.descriptors)
        hits: list[Hit | None] = []
        replaced: frozenset[str] = frozenset()
        for descriptor in request.descriptors:
            entries = descriptor.entries
            if descriptor.override is not None:
                rule: Rule | None = self._override(book, domain, descriptor)
            else:
                rule = book.match(domain, entries)
            if rule is None:
                hits.append(None)
                continue
            if rule.replaces:
                replaced |= rule.replaces
            hit = Hit(
                rule,
                "" if rule.limit is None else counter_key(rule, entries),
                descriptor.cost,
                tally=tally_of(rule, entries),
                quota=rule.quota or self._quota_mode,
            )
            if rule.limit is None:
                hit.decision = UNLIMITED
            if rule.together or rule.beside:
                _join(hit, entries, len(hits))
                for beside in rule.beside:
                    replaced |= beside.replaces
            hits.append(hit)
        return [_unless_replaced(hit, replaced) for hit in hits] if replaced else hits

    def _override(self, book: RuleBook, domain: str, descriptor: Descriptor) -> Rule:
        limit = descriptor.override
        assert limit is not None
        path = (domain, *(f"{key}_{value}" if value else key for key, value in descriptor.entries))
        return Rule.overriding(
            domain,
            limit,
            near_threshold(limit.requests, self._near_ratio),
            tally=self.overrides.of(path),
            together=REQUEST if domain in book.together else ALONE,
        )

    def _judge(self, request: Request, hits: Sequence[Hit | None]) -> Verdict:
        """Count every decision and sum them up: refused when a limit is, or when no quota of several has room."""
        refused = False
        quotas = exhausted = 0
        for hit in hits:
            if hit is None:
                continue
            rule = hit.rule
            if rule.limit is None:
                hit.tally.unlimited += abs(hit.cost)
                continue
            if hit.spared:
                hit.tally.spare(hit.cost)
            else:
                hit.tally.count(hit.cost, hit.decision, rule.scale, rule.shadow)
            if hit.quota:
                quotas += 1
                exhausted += hit.over
            elif hit.over:
                refused = True
        allowed = not refused and (quotas == 0 or exhausted < quotas)
        if not allowed and self._shadow_mode:
            self.totals.global_shadow_mode += 1
            allowed = True
        return Verdict(allowed, request, hits)


_GROUP_OF_REQUEST = 1
_FIRST_GROUP_OF_LIST = 2


def _join(hit: Hit, entries: Entries, index: int) -> None:
    """Put the hits of the descriptor's other limits beside its first, and say which are charged together.

    What refuses nothing, a shadow rule or one quota of several, must not keep others from being charged: its limits are
    charged together among themselves only.
    """
    rule = hit.rule
    if rule.together == REQUEST and rule.limit is not None and not rule.shadow and not hit.quota:
        hit.together = _GROUP_OF_REQUEST
    elif rule.together and rule.beside:
        hit.together = _FIRST_GROUP_OF_LIST + index
    if rule.beside:
        hit.beside = [
            Hit(
                beside,
                counter_key(beside, entries),
                hit.cost,
                tally=tally_of(beside, entries),
                quota=hit.quota,
                together=hit.together,
            )
            for beside in rule.beside
        ]


def _unless_replaced(hit: Hit | None, replaced: frozenset[str]) -> Hit | None:
    """What is left of a descriptor's hits: the first, with the others beside it."""
    if hit is None:
        return None
    left = []
    for each in (hit, *hit.beside):
        if each.rule.name in replaced:
            each.tally.replaced += abs(each.cost)
        else:
            left.append(each)
    if not left:
        return None
    first, *first.beside = left
    return first


def _tightest(hit: Hit | None) -> Hit | None:
    """The hit that answers for its descriptor; those beside it are counted here, as `_judge` counts it."""
    if hit is None or not hit.beside:
        return hit
    hits = (hit, *hit.beside)
    tightest = tightest_of(hits)
    for each in hits:
        if each is tightest:
            continue
        rule = each.rule
        if each.spared:
            each.tally.spare(each.cost)
        else:
            each.tally.count(each.cost, each.decision, rule.scale, rule.shadow)
    return tightest
