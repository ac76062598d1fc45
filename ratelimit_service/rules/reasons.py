"""Explains why a request matches the rules that it matches, or none: the walk through the book, step by step.

`why_unlimited` is cheap, because it runs where calls are answered: for the debug log, and for callers that ask.
`explain` looks further: for `ratelimit explain` and the console. Both show digests in place of secret values.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from ratelimit_service.errors import TooLongError
from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.bans import Bans, find_ban
from ratelimit_service.rules.book import ANY_DOMAIN, Domain, Node, RuleBook
from ratelimit_service.rules.candidates import MAX_LISTED, Step, candidates_step
from ratelimit_service.rules.pattern_work import DEFAULT_BOUNDS, PatternBounds, PatternWork, unbounded
from ratelimit_service.rules.problems import Place, nearest, quoted, shortened
from ratelimit_service.rules.regions import worst_case
from ratelimit_service.rules.response import response_in_words
from ratelimit_service.rules.rule import (
    Entries,
    Rule,
    counted_entries,
    counter_key,
    entries_in_words,
    metric_entries,
    metric_path,
    override_path,
    pool_rule,
    rule_in_full,
)
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Path, Tally

_MAX_COMPARED = 1000
"""Domains that a misspelt one is compared with."""


class MatchedRule(NamedTuple):
    """A rule that the last entry matched, or the limit that came with the descriptor."""

    rule: Rule
    limit: str
    """In words."""
    counter: str
    """The counter's key; empty for a rule without a limit, which has no counter."""
    metric: Path
    replaced_by: tuple[Rule, ...] = ()
    """The rules of the request that replace it; if any, it does not apply."""


class DescriptorExplanation(NamedTuple):
    """The walk of one descriptor through the book, and its result."""

    entries: Entries
    """As they are shown."""
    steps: tuple[Step, ...]
    outcome: str
    """One sentence."""
    matched: tuple[MatchedRule, ...] = ()
    """The rule at the end of the walk, or the rules of a list; empty when no rule matches."""
    hints: tuple[str, ...] = ()
    """What the author probably meant; a sentence each."""


class RequestExplanation(NamedTuple):
    """The explanation of a whole request."""

    domain: str
    problem: str
    """Why there is nothing to explain: the domain does not exist; else empty."""
    descriptors: tuple[DescriptorExplanation, ...]
    response: tuple[str, ...] = ()
    """What responses of the domain have beside the decision, in words."""


def explain(book: RuleBook, request: Request, bounds: PatternBounds = DEFAULT_BOUNDS) -> RequestExplanation:
    """Match the request as the limiter does, and record each step with its reason."""
    domain = request.domain
    root = book.root(domain)
    if root is None:
        return RequestExplanation(domain, _unknown(domain, list(book.domains)), ())
    work = PatternWork(bounds)
    found = [_explain_settle(book, root, domain, descriptor, work) for descriptor in request.descriptors]
    if domain not in book.domains:
        of_any = f"Domain {quoted(domain)} has no rules of its own: those of domain {quoted(ANY_DOMAIN)} apply."
        found = [each._replace(hints=(of_any, *each.hints)) for each in found]
    replacing = [matched.rule for explanation in found for matched in explanation.matched if matched.rule.replaces]
    return RequestExplanation(
        domain,
        "",
        tuple(_after_replacing(explanation, replacing) for explanation in found),
        () if root.response is None else tuple(response_in_words(root.response)),
    )


def _unknown(domain: str, known: Sequence[str]) -> str:
    near = nearest(domain, known[:_MAX_COMPARED])
    names = ", ".join(map(quoted, known[:MAX_LISTED])) or "none"
    more = f" and {len(known) - MAX_LISTED:,} more" if len(known) > MAX_LISTED else ""
    hint = f"; did you mean {near}?" if near else f"; there are: {names}{more}."
    return f"No limit: there is no domain {quoted(domain)}{hint}"


def _explain_settle(
    book: RuleBook, root: Domain, domain: str, descriptor: Descriptor, work: PatternWork
) -> DescriptorExplanation:
    """As `_explain`, without the last entry if it says that the descriptor settles."""
    entries = descriptor.entries
    if not root.settle or not entries or entries[-1][0] != root.settle:
        return _explain(book, root, domain, descriptor, work)
    found = _explain(book, root, domain, replace(descriptor, entries=entries[:-1]), work)
    hint = f"The last entry, {root.settle}, settles: the cost is charged in full, also above the limit."
    return found._replace(hints=(hint, *found.hints))


def _explain(
    book: RuleBook, root: Domain, domain: str, descriptor: Descriptor, work: PatternWork
) -> DescriptorExplanation:
    entries, shown = descriptor.entries, book.shown(domain, descriptor.entries)
    steps: list[Step] = []
    try:
        if descriptor.override is not None:
            return _explain_override(book, domain, entries, descriptor.override, work)
        return _explain_walk(book, root, domain, entries, steps, work)
    except TooLongError as error:
        return DescriptorExplanation(shown, tuple(steps), f"Refused, whatever its rule is: {error}.")


def _explain_walk(
    book: RuleBook, root: Domain, domain: str, entries: Entries, steps: list[Step], work: PatternWork
) -> DescriptorExplanation:
    shown = book.shown(domain, entries)
    walk: list[Node] = [root]
    looked_up = book.matched_entries(domain, entries)
    for (key, value), entry in zip(looked_up, entries, strict=True):
        found, step = candidates_step(walk[-1], key, value, root.secrets, work)
        steps.append(step._replace(lookup=_lookup_in_words(root, entry)))
        if found is None:
            break
        walk.append(found)

    why = ""
    hints: tuple[str, ...] = ()
    rule = book.match(domain, entries, work)
    if rule is None or rule.default:
        hints = tuple(_hints(root, walk, looked_up, work))
        if len(walk) > len(entries):
            why = "the descriptor that the last entry matched has no rate_limit"
        else:
            why = f"no descriptor fits entry {len(steps)} of {len(entries)}"
    if rule is None:
        return DescriptorExplanation(shown, tuple(steps), f"No limit: {why}.", hints=hints)
    counted = counted_entries(rule, entries)
    named = metric_entries(rule, entries, looked_up, counted)
    matched = tuple(
        _matched_rule(each, counter_key(each, counted), metric_path(each, named)) for each in (rule, *rule.beside)
    )
    if len(matched) == 1:
        outcome = f"{'default' if rule.default else 'rule'} at {rule.place} applies: {matched[0].limit}."
    else:
        outcome = f"{len(matched)} limits at {rule.place} apply: {'; '.join(each.limit for each in matched)}."
    outcome = f"{why[0].upper()}{why[1:]}: the {outcome}" if why else f"The {outcome}"
    return DescriptorExplanation(shown, tuple(steps), outcome, matched, hints)


def _lookup_in_words(root: Domain, entry: tuple[str, str]) -> str:
    lookup = root.lookups.get(entry[0])
    if lookup is None:
        return ""
    came = quoted_entries(root.secrets.hide((entry,)))
    found = lookup.entry(entry[1])
    if found is None:
        return f"{came} is not in {lookup.path}, and the lookup has no else: it stays as it is"
    by = f"by {lookup.path}" if lookup.listed(entry[1]) else f"by else: it is not in {lookup.path}"
    return f"{came} is {quoted_entries((found,))} {by}"


def _explain_override(
    book: RuleBook, domain: str, entries: Entries, limit: Limit, work: PatternWork
) -> DescriptorExplanation:
    """The explanation of a limit that came with the descriptor; then the tree is not walked."""
    rule = book.overriding(domain, entries, limit, 0, Tally(), work)
    shown = book.shown(domain, entries)
    matched = _matched_rule(rule, counter_key(rule, counted_entries(rule, entries)), override_path(domain, shown))
    replaced = book.match(domain, entries, work)
    outcome = f"The limit that came with the request applies: {matched.limit}."
    hints: tuple[str, ...] = ()
    if replaced is not None:
        outcome = outcome.replace(" applies", f" applies in place of the rule at {replaced.place}")
        charged = (counter_key(each, counted_entries(each, entries)) for each in (replaced, *replaced.beside))
        if matched.counter in charged:
            hints = ("Both count in fixed windows of the same length, so they share the counter.",)
    return DescriptorExplanation(shown, (), outcome, (matched,), hints)


def _matched_rule(rule: Rule, counter: str, metric: Path) -> MatchedRule:
    return MatchedRule(rule, rule_in_full(rule), "" if rule.limit is None else counter, metric)


def _after_replacing(explanation: DescriptorExplanation, replacing: Sequence[Rule]) -> DescriptorExplanation:
    matched = tuple(
        each._replace(replaced_by=tuple(rule for rule in replacing if each.rule.name in rule.replaces))
        for each in explanation.matched
    )
    gone = [each for each in matched if each.replaced_by]
    if not gone:
        return explanation
    by = f"replaced by the one at {gone[0].replaced_by[0].place}, which the request matches too"
    if len(gone) < len(matched):
        outcome = f"{explanation.outcome} But {quoted(gone[0].rule.name)} is {by}."
    else:
        outcome = f"No limit: the rule at {gone[0].rule.place} fits, and is {by}."
    return explanation._replace(matched=matched, outcome=outcome)


def explanation_as_json(explained: RequestExplanation, now: int) -> dict[str, Any]:
    """The explanation as JSON, for programs, and for the command that asks a running service."""
    return {
        "domain": explained.domain,
        "problem": explained.problem,
        "descriptors": [_described(explanation, now) for explanation in explained.descriptors],
        "response": explained.response,
    }


def add_bans(
    found: dict[str, Any], bans: Bans, book: RuleBook, request: Request, bounds: PatternBounds = DEFAULT_BOUNDS
) -> None:
    """Add to each descriptor of the request's explanation the ban that fits it, or None."""
    work = PatternWork(bounds)
    for descriptor, described in zip(request.descriptors, found["descriptors"], strict=False):
        ban = find_ban(bans, book, request.domain, descriptor.entries, work)
        described["ban"] = None if ban is None else ban.as_json()


def _described(explanation: DescriptorExplanation, now: int) -> dict[str, Any]:
    return {
        "entries": [{"key": key, "value": value} for key, value in explanation.entries],
        "steps": [
            {
                **step._asdict(),
                "candidates": [
                    {**candidate._asdict(), "place": _placed(candidate.place)} for candidate in step.candidates
                ],
            }
            for step in explanation.steps
        ],
        "outcome": explanation.outcome,
        "hints": explanation.hints,
        "rules": [_described_rule(matched, now) for matched in explanation.matched],
    }


def _described_rule(matched: MatchedRule, now: int) -> dict[str, Any]:
    rule = matched.rule
    limit = rule.limit
    return {
        "place": _placed(rule.place),
        "limit": matched.limit,
        "requests_per_unit": limit.requests if limit else None,
        "unit": limit.unit.name.lower() if limit else None,
        "unit_multiplier": limit.window // limit.unit.window if limit else None,
        "hold": None,
        "algorithm": rule.algorithm.name if limit else None,
        "window": _described_window(limit.calendar, now) if limit and limit.calendar else None,
        "counter": matched.counter or None,
        "elastic": None,
        "regions": _described_regions(rule) if rule.regions else None,
        "metric": ".".join(matched.metric),
        "name": rule.name or None,
        "replaces": sorted(rule.replaces),
        "replaced_by": [_placed(other.place) for other in matched.replaced_by],
        "deny": rule.deny,
        "shadow_mode": rule.shadow,
        "quota_mode": rule.quota,
        "override": rule.override,
        **(limit.kind.described(limit, rule.common_key) if limit else {}),
    }


def _described_regions(rule: Rule) -> dict[str, Any]:
    """Describe how the regions share the limit, and what may go wrong; without numbers if they do not here."""
    regions = rule.limit.regions if rule.limit else None
    floor = rule.limit.floor if rule.limit else None
    return {
        "written": rule.regions,
        "mode": regions.mode if regions else None,
        "number": regions.number if regions else None,
        "requests_per_unit": regions.whole if regions else None,
        "floor": floor.requests if floor else None,
        "worst_case": worst_case(rule),
    }


def common_rule(rule: Rule) -> Rule | None:
    """The rule that stands for the second counter which the limit has in common with others; None without one."""
    kind = None if rule.limit is None else rule.limit.kind
    if kind is None or kind.common_limit is None:
        return None
    return pool_rule(rule.counter_domain, kind.common, kind.common_limit)


def _described_window(calendar: Calendar, now: int) -> dict[str, str]:
    """The present window, in the time of its zone."""
    begin, end = calendar.edges(now)[:2]
    return {"begins": calendar.local_text(begin), "ends": calendar.local_text(end), "zone": calendar.zone}


def _placed(place: Place | None) -> str | None:
    return None if place is None else str(place)


def counter_state(
    rule: Rule,
    remaining: int | None,
    reset_after: int,
    *,
    used: int | None = None,
    retry_after: int | None = None,
    blocked_for: int = 0,
) -> dict[str, Any]:
    """The `state` of a rule in the JSON: what its counter contains now. Without `retry_after` that is not known."""
    limit = rule.limit
    assert limit is not None, "a rule without a limit has no counter"
    wait = None if retry_after is None or retry_after < 0 else retry_after / SECOND
    return {
        "used": used,
        "remaining": remaining,
        "capacity": limit.capacity,
        "reset_after": reset_after / SECOND,
        "retry_after": wait,
        "blocked_for": blocked_for / SECOND if blocked_for else None,
    }


def charged_rules(explained: RequestExplanation) -> Iterator[tuple[int, int, MatchedRule]]:
    """The rules that apply and have a counter, each with its indices in `descriptors` and in `rules` of the JSON."""
    for index, explanation in enumerate(explained.descriptors):
        for number, matched in enumerate(explanation.matched):
            if matched.counter and not matched.replaced_by:
                yield index, number, matched


_MAX_TRIED = 1000
"""Entries that are tried in another order, and nodes that are visited below the last; a book may have a million."""
_MAX_NAMED = 5


def _hints(root: Domain, walk: Sequence[Node], entries: Entries, work: PatternWork) -> Iterator[str]:
    """Hints at what the author probably meant. `walk` is the domain's node and those that the first entries matched."""
    last, matched = walk[-1], len(walk) - 1
    other = in_another_order(root, entries, _MAX_TRIED, work)
    entries = root.secrets.hide(entries)
    if other is not None:
        order, rule = other
        applies = f"In the order {entries_in_words(order)} the rule at {rule.place} applies"
        yield f"{applies}: entries are matched in the order of the file."
    if matched == len(entries):
        if below := _rules_below(last):
            more = ", ".join(f"{path} ({rule.place})" for path, rule in below)
            yield f"There are rules with more entries: after {entries_in_words(entries)} come {more}."
    elif last.rule is not None:
        alone = f"it applies to {entries_in_words(entries[:matched])} alone, in a descriptor of its own"
        yield f"The rule at {last.rule.place} ends with entry {matched}: {alone}."
    if matched < len(entries) and other is None:
        yield from _names_hint(last, *entries[matched])


def in_another_order(root: Domain, entries: Entries, max_tried: int, work: PatternWork) -> tuple[Entries, Rule] | None:
    """The entries, as they are shown, in an order that ends at a rule, or None; at most `max_tried` are tried."""
    tried = 0
    waiting: list[tuple[Node, Entries, Entries]] = [(root, (), entries)]
    with suppress(TooLongError):
        while waiting and tried < max_tried:
            node, before, left = waiting.pop()
            if not left and node.rule is not None:
                return root.secrets.hide(before), node.rule
            for index, (key, value) in enumerate(left):
                tried += 1
                if (child := node.child(key, value, root.secrets, work)) is not None:
                    waiting.append((child, (*before, left[index]), (*left[:index], *left[index + 1 :])))
    return None


def _names_hint(node: Node, key: str, value: str) -> Iterator[str]:
    """A hint with the names of the level at which an entry matched nothing."""
    if not node.children:
        return
    some = list(islice(node.children, _MAX_TRIED))
    near = nearest(f"{key}_{value}", some) or nearest(key, some)
    if near:
        yield f"Did you mean {quoted(near)} ({node.children[near].place})?"
    else:
        names = ", ".join(map(quoted, islice(node.children, _MAX_NAMED)))
        more = len(node.children) - _MAX_NAMED
        yield f"At this level there are {names}{f' and {more:,} more' if more > 0 else ''}."


def _rules_below(node: Node) -> list[tuple[str, Rule]]:
    """The nearest rules below a node, each with the path to it."""
    found: list[tuple[str, Rule]] = []
    waiting = deque([("", node)])
    looked = 0
    while waiting and len(found) < _MAX_NAMED and looked < _MAX_TRIED:
        path, parent = waiting.popleft()
        for name, child in islice(parent.children.items(), _MAX_TRIED):
            looked += 1
            if child.rule is not None:
                found.append((f"{path}{name}", child.rule))
            else:
                waiting.append((f"{path}{name} ", child))
    return found[:_MAX_NAMED]


_MAX_TRIED_IN_A_CALL: Final = 50
"""Entries that `why_unlimited` tries to find another order: enough for four."""


def why_unlimited(book: RuleBook, domain: str, entries: Entries, work: PatternWork | None = None) -> str:
    """The reason why no rule applies to the entries: where the walk through the book ended."""
    work = work or unbounded()
    root = book.root(domain)
    if root is None:
        return f"domain {quoted(domain)} has no rules"
    rule = book.match(domain, entries, work)
    if rule is not None:
        return f"another limit of the request replaces the rule at {rule.place}"
    nodes = book.walk(domain, entries, work)
    entries = book.matched_entries(domain, entries)
    shown = book.shown(domain, entries)
    last, count = nodes[-1], len(nodes) - 1
    here = f"the descriptor at {last.place}" if count else f"domain {quoted(domain)}"
    if count < len(entries):
        entry = quoted_entries(shown[count : count + 1])
        why = f"entry {count + 1} of {len(entries)}, {entry}, fits nothing below {here}"
    else:
        why = f"{here} has no limit"
    other = in_another_order(root, entries, _MAX_TRIED_IN_A_CALL, work)
    if other is not None:
        order, rule = other
        return f"{why}; in the order {quoted_entries(order)} the rule at {rule.place} applies"
    if count < len(entries) and last.rule is not None:
        further = len(entries) - count
        return f"{why}: the rule there ends {'1 entry' if further == 1 else f'{further} entries'} earlier"
    return f"{why}, and the rules below it need further entries" if count == len(entries) and last.children else why


def quoted_entries(entries: Entries) -> str:
    """`user="ada" path="/cart"` of entries as they are shown: shortened, and without control characters."""
    return " ".join(f"{shortened(key)}={quoted(value)}" for key, value in entries)
