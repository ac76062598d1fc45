"""An explanation as lines of text. It is JSON: this process's own, or what a running service has answered."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ratelimit_service.commands.counters_table import span
from ratelimit_service.rules.report import printable
from ratelimit_service.system.clock import SECOND

Json = Mapping[str, Any]


def render(explained: Json) -> Iterator[str]:
    """The lines."""
    yield f"domain {printable(explained['domain'])}"
    if explained["problem"]:
        yield explained["problem"]
        return
    several = len(explained["descriptors"]) > 1
    store = explained.get("store", {})
    for number, descriptor in enumerate(explained["descriptors"], 1):
        if several:
            yield ""
            yield f"descriptor {number}: {_words(descriptor['entries'])}"
        yield from _render_descriptor(descriptor, store.get("problem", ""))


def _words(entries: Sequence[Json]) -> str:
    return printable(" ".join(f"{entry['key']}={entry['value']}" for entry in entries))


def _render_descriptor(descriptor: Json, problem: str) -> Iterator[str]:
    for number, step in enumerate(descriptor["steps"], 1):
        text = f"{step['key']}={step['value']}, compared as {step['key']}_{step['value']}"
        yield f"{number}. {printable(text)}"
        hidden = step["hidden"]
        for candidate in step["candidates"]:
            if hidden and candidate["kind"] == "key":
                yield f"     … and {hidden:,} more"
            yield printable(_candidate(candidate))
    yield descriptor["outcome"]
    for rule in descriptor["rules"]:
        yield from _render_rule(rule, problem)
    for hint in descriptor["hints"]:
        yield f"  hint: {printable(hint)}"


_KINDS: Final = {"exact": "exact value", "wildcard": "wildcard", "key": "key alone"}


def _candidate(candidate: Json) -> str:
    mark = "→" if candidate["chosen"] else " "
    place = f"  ({candidate['place']})" if candidate["place"] else ""
    return f"   {mark} {_KINDS[candidate['kind']]:<11}  {candidate['name']}: {candidate['reason']}{place}"


def _render_rule(rule: Json, problem: str) -> Iterator[str]:
    yield f"  limit    {rule['limit']}"
    yield printable(f"  counter  {rule['counter'] or 'none'}")
    if rule.get("state"):
        yield f"  now      {_state(rule['state'])}"
    elif problem and rule["counter"] and not rule["replaced_by"]:
        yield printable(f"  now      not known: {problem}")
    yield printable(f"  metrics  {rule['metric']}")
    if rule["name"]:
        yield f"  name     {rule['name']}"
    if rule["replaces"]:
        yield f"  replaces {', '.join(rule['replaces'])}"
    if rule["replaced_by"]:
        yield f"  replaced by the rule at {', '.join(rule['replaced_by'])}"
    if rule["shadow_mode"]:
        yield "  shadow_mode: counted, never refused"
    if rule["quota_mode"]:
        yield "  quota_mode: refused when all quotas of a request are used up"


def _state(state: Json) -> str:
    if state["remaining"] is None:
        return "not known: what is in the counter cannot be read"
    text = f"{state['remaining']:,} of {state['capacity']:,} left"
    if state["retry_after"]:
        return f"{text}, room for one in {_span(state['retry_after'])}"
    return f"{text}, untouched in {_span(state['reset_after'])}" if state["remaining"] < state["capacity"] else text


def _span(seconds: float) -> str:
    return span(round(seconds * SECOND))
