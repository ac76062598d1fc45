"""`ratelimit explain`: which rule does a descriptor meet, and why?"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ratelimit_service.commands.entries import ENTRY, Entry, one_descriptor
from ratelimit_service.commands.sources import (
    env_file_option,
    merge_option,
    read_book,
    read_settings,
    rules_flags,
    rules_option,
)
from ratelimit_service.rules.explain import Candidate, Explanation, Met, Step, explain

MOST_SHOWN = 10
"""Candidates of one step that are shown though they do not matter; a level may have thousands."""


@click.command(
    epilog="""\b
Examples:
  ratelimit explain shop user=ada
  ratelimit explain shop path=/cart user=ada --rules config/shop.yaml
  ratelimit explain shop user=ada --json"""
)
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@rules_option
@env_file_option
@merge_option
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    rules: Path | None,
    env_file: Path | None,
    merge_domains: bool,
    as_json: bool,
) -> None:
    """Tell which rule a descriptor meets, and why.

    The descriptor is made of the KEY=VALUE entries, in their order. Shows at each level what was tried and why it
    fitted or not; then the rule with its place, its limit, its counter's key and its name in the metrics.
    """
    asked = one_descriptor(entries, "explain")
    settings, _ = read_settings(rules_flags(rules, merge_domains=merge_domains), env_file)
    explanation = explain(read_book(settings), domain, asked)
    if as_json:
        click.echo(json.dumps(_as_json(explanation), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(render(explanation)))


def render(explanation: Explanation) -> Iterator[str]:
    """The explanation as lines of text."""
    yield f"domain {explanation.domain}"
    for number, step in enumerate(explanation.steps, 1):
        yield f"{number}. {step.key}={step.value}"
        yield from _render_step(step)
    yield explanation.outcome
    for met in explanation.met:
        yield from _render_rule(met)


def _render_rule(met: Met) -> Iterator[str]:
    rule = met.rule
    yield f"  limit    {met.limit}"
    yield f"  counter  {met.counter or 'none'}"
    yield f"  metrics  {'.'.join(met.metric)}"
    if rule.name:
        yield f"  name     {rule.name}"
    if rule.replaces:
        yield f"  replaces {', '.join(sorted(rule.replaces))}"
    if rule.shadow:
        yield "  shadow_mode: counted, never refused"
    if rule.quota:
        yield "  quota_mode: refused when all quotas of a request are used up"


def _render_step(step: Step) -> Iterator[str]:
    last = len(step.candidates) - 1
    hidden = 0
    for index, candidate in enumerate(step.candidates):
        if candidate.chosen or index < MOST_SHOWN or index == last:
            yield _render_candidate(candidate)
        else:
            hidden += 1
    if hidden:
        yield f"     … and {hidden:,} more"


_KINDS = {"exact": "exact value", "wildcard": "wildcard", "key": "key alone"}


def _render_candidate(candidate: Candidate) -> str:
    mark = "→" if candidate.chosen else " "
    place = f"  ({candidate.place})" if candidate.place else ""
    return f"   {mark} {_KINDS[candidate.kind]:<11}  {candidate.name}: {candidate.reason}{place}"


def _as_json(explanation: Explanation) -> dict[str, Any]:
    rules = [_rule_as_json(met) for met in explanation.met]
    return {
        "domain": explanation.domain,
        "steps": [
            {
                "key": step.key,
                "value": step.value,
                "candidates": [
                    {**candidate._asdict(), "place": str(candidate.place) if candidate.place else None}
                    for candidate in step.candidates
                ],
            }
            for step in explanation.steps
        ],
        "outcome": explanation.outcome,
        "rule": rules[0] if rules else None,
        "beside": rules[1:],
    }


def _rule_as_json(met: Met) -> dict[str, Any]:
    rule = met.rule
    limit = rule.limit
    return {
        "place": str(rule.place),
        "limit": met.limit,
        "requests_per_unit": limit.requests if limit else None,
        "unit": limit.unit.name.lower() if limit else None,
        "unit_multiplier": limit.window // limit.unit.window if limit else None,
        "algorithm": rule.algorithm.name if limit else None,
        "counter": met.counter or None,
        "metric": ".".join(met.metric),
        "name": rule.name or None,
        "replaces": sorted(rule.replaces),
        "shadow_mode": rule.shadow,
        "quota_mode": rule.quota,
    }
