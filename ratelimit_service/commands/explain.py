"""`ratelimit explain`: which rules does a request meet, and why?"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import uvloop

from ratelimit_service.commands.entries import ENTRY, Entry, descriptors
from ratelimit_service.commands.explain_at import explain_at
from ratelimit_service.commands.explain_text import render
from ratelimit_service.commands.limits import LIMIT
from ratelimit_service.commands.messages import as_message
from ratelimit_service.commands.sources import (
    env_file_option,
    merge_option,
    read_book,
    read_settings,
    rules_flags,
    rules_option,
)
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.explain import (
    RequestExplanation,
    charged_rules,
    counter_state,
    explain,
    explanation_as_json,
)
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend
from ratelimit_service.stores.redis.counters_decode import Content

UNKNOWN, FAILED = 1, 3
"""Exit codes: there is no such domain; the service that was to explain gives no answer."""


@click.command(
    epilog="""\b
Examples:
  ratelimit explain shop login=ada
  ratelimit explain shop plan=free user=ada --rules config/example.yaml
  ratelimit explain shop login=ada + path=/cart --limit '10/5 minutes'
  ratelimit explain shop login=ada --at localhost:6070
  ratelimit explain shop login=ada --json"""
)
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@click.option("--limit", type=LIMIT, help="A limit in place of the rule's, as a request may bring one.")
@rules_option
@env_file_option
@merge_option
@click.option("--at", metavar="HOST:PORT", help="Ask the running service whose debug port this is, not the rules here.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the explanation as JSON.")
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    limit: Limit | None,
    rules: Path | None,
    env_file: Path | None,
    merge_domains: bool,
    at: str | None,
    json_wanted: bool,
) -> None:
    """Tell which rules a request meets, and why.

    A descriptor is made of the KEY=VALUE entries, in their order; a + between them begins another descriptor of the
    same request. Shows for each entry what was tried, as it is compared: login_ada is the entry login=ada. Then the
    rule with its place, its limit, its counter's key and its name in the metrics; and what is in the counter now, if
    the settings name a Redis. With --at a running service explains, by the rules that it has loaded and with the
    counters that it has, in its memory too. Looking charges nothing. Exits with 1 when there is no such domain, with 3
    when the service gives no answer.
    """
    if at is not None and (rules is not None or merge_domains):
        raise click.UsageError("--at asks a service for its own rules: leave --rules and --merge-domains out")
    asked = [Descriptor(each, 0, None, limit) for each in descriptors(entries)]
    found = _of_rules_here(domain, asked, rules, env_file, merge_domains) if at is None else _of(at, domain, asked)
    if json_wanted:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(render(found)))
    if found["problem"]:
        sys.exit(UNKNOWN)


def _of(at: str, domain: str, asked: Sequence[Descriptor]) -> Mapping[str, Any]:
    """The explanation of the service there."""
    found = explain_at(at, as_message(domain, asked))
    if isinstance(found, str):
        click.echo(f"ratelimit: {at}: {found}", err=True)
        sys.exit(FAILED)
    return found


def _of_rules_here(
    domain: str, asked: Sequence[Descriptor], rules: Path | None, env_file: Path | None, merge_domains: bool
) -> Mapping[str, Any]:
    settings, _ = read_settings(rules_flags(rules, merge_domains=merge_domains), env_file)
    book = read_book(settings)
    explained = explain(book, Request(domain, asked))
    found = explanation_as_json(explained)
    if settings.backend_type is Backend.REDIS:
        found["store"] = uvloop.run(_look(settings, book, explained, found))
    return found


async def _look(
    settings: Settings, book: RuleBook, explained: RequestExplanation, found: dict[str, Any]
) -> dict[str, str]:
    """Add to each rule what is in its counter now; says which store that is, and why it cannot be asked."""
    from ratelimit_service.stores.redis.counters import Counters

    async with aclosing(Counters(settings, book)) as counters:
        try:
            for index, number, met in charged_rules(explained):
                rule, entries = met.rule, explained.descriptors[index].entries
                [batch] = await counters.of_descriptor(explained.domain, entries, [rule], overriding=False)
                # A counter of a limit that came with a request has no rule of the book; here it has.
                batch = batch._replace(counters=[counter._replace(rule=rule) for counter in batch.counters])
                [(_, content)] = await counters.read(batch)
                found["descriptors"][index]["rules"][number]["state"] = _state(rule, content)
        except StoreError as error:
            return {"name": "redis", "problem": str(error)}
    return {"name": "redis", "problem": ""}


def _state(rule: Rule, content: Content | None) -> dict[str, Any]:
    if content is None:
        content = Content(0, rule.room - rule.limit.exceed if rule.limit else None, 0, 0, None)
    return counter_state(
        rule, content.remaining, content.reset_after, used=content.used, retry_after=content.retry_after
    )
