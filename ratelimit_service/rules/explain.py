"""Why a request meets the rules that it meets: the walk through the book, retold step by step."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.book import Node, RuleBook
from ratelimit_service.rules.hints import hints_of
from ratelimit_service.rules.report import nearest, quoted
from ratelimit_service.rules.rule import Entries, Place, Rule, counter_key, metric_path, sent_path
from ratelimit_service.rules.words import counting_in_words, limit_in_words
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Path, Tally

MOST_LISTED = 10
"""Wildcards of one step that are listed though they were not chosen, and domains; a level may have thousands."""

_MOST_COMPARED = 1000


class Candidate(NamedTuple):
    """A descriptor of one level that an entry might have met, in the order in which they are tried."""

    name: str
    kind: str
    """`exact`, `wildcard` or `key`."""
    place: Place | None
    """None when the book has none of that name."""
    chosen: bool
    reason: str


class Step(NamedTuple):
    """What one entry met."""

    key: str
    value: str
    candidates: tuple[Candidate, ...]
    hidden: int = 0
    """More wildcards of this key that were not chosen."""


class Met(NamedTuple):
    """A rule that the last entry met, or the limit that came with the descriptor."""

    rule: Rule
    limit: str
    """In words."""
    counter: str
    """The counter's key; empty for an unlimited rule, which has none."""
    metric: Path
    replaced_by: tuple[Rule, ...] = ()
    """The rules of the request that replace it; then it does not apply."""


class Explanation(NamedTuple):
    """The walk of one descriptor, and what is at its end."""

    entries: Entries
    steps: tuple[Step, ...]
    outcome: str
    """One sentence."""
    met: tuple[Met, ...] = ()
    """The rule at the end of the walk, or those of a list; empty when nothing limits the entries."""
    hints: tuple[str, ...] = ()
    """What may have been meant, a sentence each."""


class Explained(NamedTuple):
    """A whole request."""

    domain: str
    problem: str
    """Not empty when there is no such domain, so that there is nothing to explain."""
    descriptors: tuple[Explanation, ...]


def explain(book: RuleBook, request: Request) -> Explained:
    """What the book makes of the request, as the planner does, with reasons."""
    domain = request.domain
    root = book.domains.get(domain)
    if root is None:
        return Explained(domain, _unknown(domain, list(book.domains)), ())
    found = [_explain(book, root, domain, descriptor) for descriptor in request.descriptors]
    replacing = [met.rule for explanation in found for met in explanation.met if met.rule.replaces]
    return Explained(domain, "", tuple(_after_replacing(explanation, replacing) for explanation in found))


def _unknown(domain: str, known: Sequence[str]) -> str:
    near = nearest(domain, known[:_MOST_COMPARED])
    names = ", ".join(map(quoted, known[:MOST_LISTED])) or "none"
    more = f" and {len(known) - MOST_LISTED:,} more" if len(known) > MOST_LISTED else ""
    hint = f"; did you mean {near}?" if near else f"; there are: {names}{more}."
    return f"No limit: there is no domain {quoted(domain)}{hint}"


def _explain(book: RuleBook, root: Node, domain: str, descriptor: Descriptor) -> Explanation:
    entries = descriptor.entries
    if descriptor.override is not None:
        return _of_sent(book, domain, entries, descriptor.override)
    steps: list[Step] = []
    walk = [root]
    for key, value in entries:
        found, step = _try(walk[-1], key, value)
        steps.append(step)
        if found is None:
            outcome = f"No limit: no descriptor fits entry {len(steps)} of {len(entries)}."
            return Explanation(entries, tuple(steps), outcome, hints=hints_of(walk, entries))
        walk.append(found)

    rule = walk[-1].rule
    if rule is None:
        outcome = "No limit: the descriptor that the last entry met has no rate_limit."
        return Explanation(entries, tuple(steps), outcome, hints=hints_of(walk, entries))
    met = tuple(_met(each, counter_key(each, entries), metric_path(each, entries)) for each in (rule, *rule.beside))
    if len(met) == 1:
        outcome = f"The rule at {rule.place} applies: {met[0].limit}."
    else:
        outcome = f"The {len(met)} limits at {rule.place} apply: {'; '.join(each.limit for each in met)}."
    return Explanation(entries, tuple(steps), outcome, met)


def _of_sent(book: RuleBook, domain: str, entries: Entries, limit: Limit) -> Explanation:
    """Of a limit that came with the descriptor: the tree is not walked."""
    rule = book.overriding(domain, entries, limit, 0, Tally())
    met = _met(rule, counter_key(rule, entries), sent_path(domain, entries))
    replaced = book.match(domain, entries)
    outcome = f"The limit that came with the request applies: {met.limit}."
    hints: tuple[str, ...] = ()
    if replaced is not None:
        outcome = outcome.replace(" applies", f" applies in place of the rule at {replaced.place}")
        if any(counter_key(each, entries) == met.counter for each in (replaced, *replaced.beside)):
            hints = ("Both count in fixed windows of the same length, so they share the counter.",)
    return Explanation(entries, (), outcome, (met,), hints)


def _met(rule: Rule, counter: str, metric: Path) -> Met:
    counting = counting_in_words(rule)
    limit = limit_in_words(rule.limit) + (f" ({', '.join(counting)})" if counting else "")
    return Met(rule, limit, "" if rule.limit is None else counter, metric)


def _after_replacing(explanation: Explanation, replacing: Sequence[Rule]) -> Explanation:
    met = tuple(
        each._replace(replaced_by=tuple(rule for rule in replacing if each.rule.name in rule.replaces))
        for each in explanation.met
    )
    gone = [each for each in met if each.replaced_by]
    if not gone:
        return explanation
    by = f"replaced by the one at {gone[0].replaced_by[0].place}, which the request meets too"
    if len(gone) < len(met):
        outcome = f"{explanation.outcome} But {quoted(gone[0].rule.name)} is {by}."
    else:
        outcome = f"No limit: the rule at {gone[0].rule.place} fits, and is {by}."
    return explanation._replace(met=met, outcome=outcome)


def _try(node: Node, key: str, value: str) -> tuple[Node | None, Step]:
    text = f"{key}_{value}"
    exact = node.children.get(text)
    wild = node.wildcards.find(text) if node.wildcards is not None and exact is None else None
    bare = node.children.get(key)
    found = exact or wild or bare
    candidates = [_candidate(text, "exact", exact, found, fits=exact is not None)]
    hidden = 0
    passed = exact is not None
    for name, child in node.children.items() if node.wildcards is not None else ():
        if not _is_of_key(name, key) or child is exact:
            continue
        if child is not wild and len(candidates) > MOST_LISTED:
            hidden += 1
            continue
        candidates.append(_candidate(name, "wildcard", child, wild, fits=passed or child is wild))
        passed = passed or child is wild
    candidates.append(_candidate(key, "key", bare, found, fits=bare is not None))
    return found, Step(key, value, tuple(candidates), hidden)


def _candidate(name: str, kind: str, child: Node | None, found: Node | None, *, fits: bool) -> Candidate:
    if child is None:
        return Candidate(name, kind, None, False, "there is none")
    if child is found:
        return Candidate(name, kind, child.place, True, "fits")
    reason = "not tried: an earlier one fits" if fits else "does not fit"
    return Candidate(name, kind, child.place, False, reason)


def _is_of_key(name: str, key: str) -> bool:
    """Whether it is a wildcard that some value of this key fits."""
    start, star, _ = name.partition("*")
    return bool(star) and (start.startswith(f"{key}_") or f"{key}_".startswith(start))


def as_json(explained: Explained) -> dict[str, Any]:
    """For programs, and for what is sent from a service to the command."""
    return {
        "domain": explained.domain,
        "problem": explained.problem,
        "descriptors": [_described(explanation) for explanation in explained.descriptors],
    }


def _described(explanation: Explanation) -> dict[str, Any]:
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
        "rules": [_described_rule(met) for met in explanation.met],
    }


def _described_rule(met: Met) -> dict[str, Any]:
    rule = met.rule
    limit = rule.limit
    return {
        "place": _placed(rule.place),
        "limit": met.limit,
        "requests_per_unit": limit.requests if limit else None,
        "unit": limit.unit.name.lower() if limit else None,
        "unit_multiplier": limit.window // limit.unit.window if limit else None,
        "algorithm": rule.algorithm.name if limit else None,
        "counter": met.counter or None,
        "metric": ".".join(met.metric),
        "name": rule.name or None,
        "replaces": sorted(rule.replaces),
        "replaced_by": [_placed(other.place) for other in met.replaced_by],
        "shadow_mode": rule.shadow,
        "quota_mode": rule.quota,
        "override": rule.override,
    }


def _placed(place: Place | None) -> str | None:
    return None if place is None else str(place)


def state(
    rule: Rule, remaining: int | None, reset_after: int, *, used: int | None = None, retry_after: int | None = None
) -> dict[str, Any]:
    """What is in the counter of a rule now, for its `state`; without a `retry_after` that is not known."""
    limit = rule.limit
    assert limit is not None, "an unlimited rule has no counter"
    wait = None if retry_after is None or retry_after < 0 else retry_after / SECOND
    return {
        "used": used,
        "remaining": remaining,
        "capacity": limit.burst or limit.requests,
        "reset_after": reset_after / SECOND,
        "retry_after": wait,
    }


def charged(explained: Explained) -> Iterator[tuple[int, int, Met]]:
    """Each rule that applies and has a counter, with its indices in `descriptors` and in `rules` of the JSON."""
    for index, explanation in enumerate(explained.descriptors):
        for number, met in enumerate(explanation.met):
            if met.counter and not met.replaced_by:
                yield index, number, met
