"""`ratelimit explain`: which rules does a request match, and why?"""

import http.client
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from google.protobuf.json_format import MessageToJson

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.commands.operator_port import (
    DEBUG_PORT_HINT,
    AccessFiles,
    OperatorPort,
    PortAccess,
    access_options,
    at_option,
    read_access,
    with_rules,
)
from ratelimit_service.commands.request import ENTRY, LIMIT, Entry, as_message, descriptors
from ratelimit_service.commands.sources import (
    env_file_option,
    merge_option,
    read_book,
    read_settings,
    rules_flags,
    rules_option,
)
from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Descriptor, Limit, RegionMode, Request
from ratelimit_service.rules.address import from_operator
from ratelimit_service.rules.bans import Bans, moment_in_words, read_ban
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reasons import (
    RequestExplanation,
    add_bans,
    charged_rules,
    common_rule,
    counter_state,
    explain,
    explanation_as_json,
)
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend
from ratelimit_service.stores.redis.counter_looks import Content
from ratelimit_service.system.clock import SECOND, duration_in_words, system_clock
from ratelimit_service.telemetry.reservations import Reservations, in_words

UNKNOWN, FAILED = 1, 3
"""Exit codes: the domain does not exist; the service that `--at` names gave no explanation."""


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
@at_option("Debug port of a running service whose rules and counters are used.")
@access_options
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    limit: Limit | None,
    rules: Path | None,
    env_file: Path | None,
    merge_domains: bool,
    at: str | None,
    access_files: AccessFiles,
    as_json: bool,
) -> None:
    """Show which rules a request matches, and why.

    The KEY=VALUE entries are a descriptor, in their order; a + between them begins another descriptor of the same
    request. For each entry the command shows the candidates in the form in which they are compared: login_ada is the
    entry login=ada. Then it shows the rule with its place, its limit, the key of its counter and its name in the
    metrics; and the current content of the counter, if the settings name a Redis. With --at a running service explains
    by the rules that it has loaded, and by its counters, also those in memory. Nothing is charged. Exits with 1 when
    the domain does not exist, with 3 when the service gives no explanation.
    """
    if at is not None and (rules is not None or merge_domains):
        raise click.UsageError("--at asks a service for its own rules: leave --rules and --merge-domains out")
    asked = [Descriptor(each, 0, None, limit) for each in descriptors(entries)]
    access = read_access(access_files, env_file)
    if at is None:
        settings, _ = read_settings(rules_flags(rules, merge_domains=merge_domains), env_file)
        found = _explain_here(domain, asked, with_rules(settings, access))
    else:
        found = _explain_at_or_exit(at, domain, asked, access)
    if as_json:
        echo_json(found)
    else:
        echo(*_render(found))
    if found["problem"]:
        sys.exit(UNKNOWN)


def _explain_at_or_exit(at: str, domain: str, asked: Sequence[Descriptor], access: PortAccess) -> Mapping[str, Any]:
    """The explanation by the service at this address; exits when there is none."""
    found = _explain_at(at, as_message(domain, asked), access)
    if isinstance(found, str):
        echo(f"ratelimit: {at}: {found}", err=True)
        sys.exit(FAILED)
    return found


def _explain_here(domain: str, asked: Sequence[Descriptor], settings: Settings) -> Mapping[str, Any]:
    book = read_book(settings)
    for each in asked:
        each.entries = from_operator(each.entries)
    explained = explain(book, Request(domain, asked))
    found = explanation_as_json(explained, system_clock())
    if settings.backend_type is Backend.REDIS:
        found["store"] = uvloop.run(_add_states(settings, book, asked, explained, found))
        if not found["store"]["problem"] and (why := _add_bans(settings, book, Request(domain, asked), found)):
            found["store"]["bans_problem"] = why
    return found


async def _add_states(
    settings: Settings,
    book: RuleBook,
    asked: Sequence[Descriptor],
    explained: RequestExplanation,
    found: dict[str, Any],
) -> dict[str, str]:
    """Add to each rule the state of its counter; returns the store's name, and why it is unavailable, if it is."""
    from ratelimit_service.stores.redis.counters import Counters

    async with aclosing(Counters(settings, book)) as counters:
        try:
            for index, number, matched in charged_rules(explained):
                rule, entries = matched.rule, asked[index].entries
                read: list[Content] = []
                for batch in await counters.of_descriptor(explained.domain, entries, [rule], overriding=False):
                    # The counter of a limit that came with a request has no rule in the book; here the rule is known.
                    known = [counter._replace(rule=rule) for counter in batch.counters]
                    read += [content for _, content in await counters.read(batch._replace(counters=known))]
                if not read:
                    return {"name": "redis", "problem": "the slot of a counter moves to another node"}
                content, *home = read
                state = _state(rule, content)
                if home:
                    state["at_home"] = home[0].remaining
                limit, pool = rule.limit, common_rule(rule)
                if limit is not None and pool is not None and pool.limit is not None:
                    [(_, of_pool)] = await counters.read(await counters.of_pool(pool))
                    if of_pool.used is not None and content.used is not None:
                        left_in_pool = pool.limit.capacity - of_pool.used
                        state |= limit.kind.look(limit, limit.ceiling - content.used, left_in_pool)
                found["descriptors"][index]["rules"][number]["state"] = state
        except StoreError as error:
            return {"name": "redis", "problem": str(error)}
    return {"name": "redis", "problem": ""}


def _add_bans(settings: Settings, book: RuleBook, request: Request, found: dict[str, Any]) -> str:
    """Add to each descriptor the ban that fits it; returns why bans are unavailable, if they are."""
    from ratelimit_service.commands.ban_client import RedisBanClient

    bans = Bans()
    try:
        listed = RedisBanClient(settings).list(None)
    except StoreError as error:  # such as that of an ACL user with the rights to look at counters only
        return str(error)
    for ban in listed.bans:
        bans.put(ban, quietly=True)
    add_bans(found, bans, book, request)
    return ""


def _state(rule: Rule, content: Content) -> dict[str, Any]:
    return counter_state(
        rule,
        content.remaining,
        content.reset_after,
        used=content.used,
        retry_after=content.retry_after,
        blocked_for=content.blocked_for,
    )


_PATH: Final = "/explain"


def _explain_at(address: str, request: RateLimitRequest, access: PortAccess) -> dict[str, Any] | str:
    """The explanation by the service with this debug port, as JSON; or in one line why there is none."""
    try:
        reply = OperatorPort(address, access).ask("POST", _PATH, MessageToJson(request))
    except StoreError as error:
        return str(error)
    # Another version, or another program, may respond with anything.
    found = reply.json()
    if found is not None and {"domain", "problem", "descriptors"} <= found.keys():
        return found
    if reply.status in {404, 405} and "/rlconfig" in reply.text:
        return f"that service is older than this command: it has no POST {_PATH}"
    if reply.status in {http.client.BAD_REQUEST, http.client.SERVICE_UNAVAILABLE}:
        return reply.text.strip()
    return f"it answers {reply.status} to POST {_PATH}: that is not a debug port of this service; {DEBUG_PORT_HINT}"


Json = Mapping[str, Any]


def _render(explained: Json) -> Iterator[str]:
    """The explanation as lines of text. The JSON is from this process, or from a running service."""
    yield f"domain {explained['domain']}"
    if explained["problem"]:
        yield explained["problem"]
        return
    several = len(explained["descriptors"]) > 1
    store = explained.get("store", {})
    for number, descriptor in enumerate(explained["descriptors"], 1):
        if several:
            yield ""
            yield f"descriptor {number}: {_entries_in_words(descriptor['entries'])}"
        yield from _render_descriptor(descriptor, store.get("problem", ""))
    if problem := store.get("bans_problem"):
        yield f"Whether it is banned is not known: {problem}"
    if told := explained.get("response"):  # which an older service does not say
        yield ""
        yield f"responses have {', '.join(told)}"


def _entries_in_words(entries: Sequence[Json]) -> str:
    return " ".join(f"{entry['key']}={entry['value']}" for entry in entries)


def _render_descriptor(descriptor: Json, problem: str) -> Iterator[str]:
    for number, step in enumerate(descriptor["steps"], 1):
        text = f"{step['key']}={step['value']}, compared as {step['key']}_{step['value']}"
        yield f"{number}. {text}"
        if step.get("lookup"):  # a service of an earlier release has none
            yield f"     lookup: {step['lookup']}"
        hidden = step["hidden"]
        for candidate in step["candidates"]:
            if hidden and candidate["kind"] == "key":
                yield f"     … and {hidden:,} more"
            yield _candidate(candidate)
    yield descriptor["outcome"]
    if descriptor.get("ban"):
        yield _ban_in_words(descriptor["ban"])
    for rule in descriptor["rules"]:
        yield from _render_rule(rule, problem)
    for hint in descriptor["hints"]:
        yield f"  hint: {hint}"


_KINDS: Final = {
    "exact": "exact value",
    "wildcard": "wildcard",
    "list": "list",
    "range": "networks",
    "regex": "regex",
    "not": "not",
    "key": "key alone",
}


def _candidate(candidate: Json) -> str:
    mark = "→" if candidate["chosen"] else " "
    place = f"  ({candidate['place']})" if candidate["place"] else ""
    return f"   {mark} {_KINDS[candidate['kind']]:<11}  {candidate['name']}: {candidate['reason']}{place}"


def _render_rule(rule: Json, problem: str) -> Iterator[str]:
    yield f"  limit    {rule['limit']}"
    if window := rule.get("window"):
        yield f"  window   {window['begins']} to {window['ends']}, {window['zone']}"
    yield f"  counter  {rule['counter'] or 'none'}"
    if rule.get("state"):
        leased = (rule.get("regions") or {}).get("mode") == RegionMode.LEASED
        yield f"  now      {(_leased_in_words if leased else _state_in_words)(rule['state'])}"
    elif problem and rule["counter"] and not rule["replaced_by"]:
        yield f"  now      not known: {problem}"
    for subject, words in _reservations_in_words(rule).items():
        yield f"  {subject:<8} {words}"
    if elastic := rule.get("elastic"):
        yield f"  pool     {_pool_in_words(elastic['pool'], rule.get('state', {}))}"
    if regions := rule.get("regions"):
        yield f"  regions  {regions['written']}"
        yield from (f"           {sentence}" for sentence in regions["worst_case"])
    yield f"  metrics  {rule['metric']}"
    if rule["name"]:
        yield f"  name     {rule['name']}"
    if rule["replaces"]:
        yield f"  replaces {', '.join(rule['replaces'])}"
    if rule["replaced_by"]:
        yield f"  replaced by the rule at {', '.join(rule['replaced_by'])}"
    if rule["shadow_mode"]:
        yield "  shadow_mode: counted, denies nothing"
    if rule["quota_mode"]:
        yield "  quota_mode: refused when all quotas of a request are used up"


def _ban_in_words(found: Json) -> str:
    ban = read_ban(json.dumps(found))
    return f"But it is banned {moment_in_words(ban.until)}, by {ban.who}, because: {ban.why} (the ban of {ban})"


def _reservations_in_words(rule: Json) -> Mapping[str, str]:
    """Of a rule that reserves, as a running service says it."""
    told = rule.get("reservations")
    if not told:
        return {}
    found = Reservations(**{name: told[name] for name in Reservations._fields if name in told})
    return in_words(found, rule["reserve"]["estimate"] or 0)


def _state_in_words(state: Json) -> str:
    if state["remaining"] is None:
        return "not known: what is in the counter cannot be read"
    if state.get("blocked_for"):
        return f"blocked for {_span(state['blocked_for'])}"
    used = state.get("used") or 0
    text = f"{state['remaining']:,} of {state['capacity']:,} left"
    if used > state["capacity"]:
        text = f"{used:,} of {state['capacity']:,} used"
    if holders := state.get("holders"):
        text += f" and {state['held']:,} leased to {' and '.join(_holder_in_words(each) for each in holders)}"
    if state.get("on_loan"):
        text += f", {state['on_loan']:,} on loan"
    if state["retry_after"]:
        return f"{text}, room for one in {_span(state['retry_after'])}"
    return f"{text}, untouched in {_span(state['reset_after'])}" if state["remaining"] < state["capacity"] else text


def _leased_in_words(state: Json) -> str:
    """Lines about a limit that regions lease from home."""
    if state["remaining"] is None:
        return _state_in_words(state)
    at_home = state.get("at_home")  # which a service does not know
    more = "" if at_home is None else f", {at_home:,} at home to be leased"
    return f"{state['remaining']:,} left to this region by itself{more}"


def _holder_in_words(holder: Json) -> str:
    """`worker 1 (pid 4711: 30)`."""
    worker = f"worker {holder['worker']}" if holder["worker"] else "the service"
    units = "not known" if holder["units"] is None else f"{holder['units']:,}"
    return f"{worker} (pid {holder['pid']}: {units})"


def _pool_in_words(pool: Json, state: Json) -> str:
    text = f"{pool['name']}, {pool['counter']}"
    left = state.get("pool_left")
    if left is None:
        return text
    if left < 0:
        return f"{text}: {-left:,} in debt, until it is paid nothing is lent"
    return f"{text}: {left:,} of {pool['burst']:,} left, {max(0, left - pool['reserve']):,} to lend"


def _span(seconds: float) -> str:
    return duration_in_words(round(seconds * SECOND))
