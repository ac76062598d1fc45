"""The texts of `/rlconfig` and `/stats`: the rules and the counters, as envoyproxy writes them."""

from collections.abc import Iterator, Sequence

from ratelimit_service.rules.rule import Rule, counting_in_words
from ratelimit_service.server.metrics import method_name
from ratelimit_service.server.series import STATS, emptied, plain, sum_tallies
from ratelimit_service.server.state import ServiceState
from ratelimit_service.telemetry.metric import BLOCK

_RATE_LIMIT = "ratelimit.service.rate_limit"


def rules_text(rules: Sequence[Rule]) -> Iterator[str]:
    """One line for each rule, in the order of the files; in blocks."""
    for start in range(0, len(rules), BLOCK):
        yield "".join([_rule_line(rule) for rule in rules[start : start + BLOCK]])


def _rule_line(rule: Rule) -> str:
    limit = rule.limit
    unit, requests = ("UNKNOWN", 0) if limit is None else (limit.unit.name, limit.requests)
    # What envoyproxy does not have comes last, and only where a rule uses it.
    times = 1 if limit is None else limit.window // limit.unit.window
    if limit is not None and not limit.kind.in_windows:
        unit, times = "UNKNOWN", 1
    ours = [f"unit_multiplier: {times}"] if times > 1 else ["deny: true"] if rule.deny else []
    if limit is not None and limit.calendar is not None:
        ours.append(str(limit.calendar))
    return (
        f"{'.'.join(map(plain, rule.path))}: unit={unit} requests_per_unit={requests},"
        f" shadow_mode: {str(rule.shadow).lower()}, quota_mode: {str(rule.quota).lower()}"
        f"{''.join(f', {text}' for text in ours + counting_in_words(rule))}\n"
    )


def stats_text(state: ServiceState) -> Iterator[str]:
    """Everything that envoyproxy counts, a line `name: value` for each; in blocks."""
    counted, loading = state.counted, state.loading
    found = yield from sum_tallies(counted, lambda path: ".".join(map(plain, path)))
    for key, (numbers, shown) in found.items():
        yield "".join(
            [
                f"{_RATE_LIMIT}.{key}.{stat.name}: {number}\n"
                for stat, number in zip(STATS, numbers[: len(STATS)], strict=True)
                if number or stat.name in shown
            ]
        )
    yield from emptied(found)
    for path, tally in counted.unknown_domains.items():
        yield f"{_RATE_LIMIT}.{plain(path[0])}.domain_not_found: {tally.total_hits}\n"
    totals = counted.totals
    yield (
        f"ratelimit.service.call.should_rate_limit.redis_error: {totals.store_errors}\n"
        f"ratelimit.service.call.should_rate_limit.service_error: {totals.service_errors}\n"
        f"ratelimit.service.config_load_error: {loading.failures}\n"
        f"ratelimit.service.config_load_success: {loading.successes}\n"
        f"ratelimit.service.global_shadow_mode: {totals.global_shadow_mode}\n"
    )
    yield f"ratelimit_server.{method_name(state.method)}.total_requests: {state.method.calls}\n"
