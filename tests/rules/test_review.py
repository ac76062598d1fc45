"""Each warning about limits: a file that has it, and one that is almost the same and has not."""

from collections.abc import Sequence
from random import Random

import pytest

from ratelimit_service.algorithms import State
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.rule import Rule
from tests.books import book


def warnings(descriptors: str) -> list[str]:
    """The warnings about a domain with these descriptors, which begin at 2:15."""
    return [str(warning) for warning in lint(book(f"domain: d\ndescriptors: [{descriptors}]\n"))]


def limit(options: str) -> str:
    return f"{{key: k, rate_limit: {{{options}}}}}"


def nested(upper: str, lower: str, beside_upper: str = "", beside_lower: str = "") -> str:
    below = f"{{key: l, {beside_lower} rate_limit: {{{lower}}}}}"
    return f"{{key: k, {beside_upper} rate_limit: {{{upper}}}, descriptors: [{below}]}}"


MINUTE = "unit: minute, requests_per_unit"
DAY = "unit: day, requests_per_unit"
RATE = "rate_limit: {unit: day, requests_per_unit: 1}"
LOG = "algorithm: sliding_log"
BUCKET = "algorithm: token_bucket"

PAIRS = {
    "a log that is huge": (
        limit(f"{DAY}: 5001, algorithm: sliding_log"),
        limit(f"{DAY}: 5000, algorithm: sliding_log"),
        "large-log",
        "2:24: warning: sliding_log remembers up to 5,001 moments in each counter; sub_windows lets no more",
    ),
    "a bucket that is full again at once": (
        limit(f"unit: second, requests_per_unit: 10000, {BUCKET}, burst: 9"),
        limit(f"unit: second, requests_per_unit: 10000, {BUCKET}, burst: 10"),
        "bucket",
        "2:24: warning: a bucket of 9 fills in 900 µs, and what is added to a full one is lost: far fewer than 10,0",
    ),
    "a block that ends before its window": (
        limit(f"{DAY}: 9, block_for: 1 hour, block_up_to: 23 hours"),
        limit(f"{DAY}: 9, block_for: 1 hour, block_up_to: 24 hours"),
        "short-block",
        "2:24: warning: a block of 23 h is shorter than the window of 1 d: a counter that denies does so until its",
    ),
    "a bucket that is never full again": (
        limit(f"{DAY}: 1, {BUCKET}, burst: 366"),
        limit(f"{DAY}: 1, {BUCKET}, burst: 365"),
        "bucket",
        "2:24: warning: a bucket of 366 takes 366 d to fill with 1 request per day: it is never full again; write a",
    ),
    "a bucket that gets nothing": (
        limit(f"{DAY}: 0, algorithm: leaky_bucket, burst: 5"),
        limit(f"{DAY}: 1, algorithm: leaky_bucket, burst: 5"),
        "bucket",
        "2:95: warning: burst has no effect: a bucket that gets 0 requests per unit is always empty; remove it",
    ),
    "a share that is nothing": (
        limit(f"{DAY}: 9, exceed: 10%"),
        limit(f"{DAY}: 10, exceed: 10%"),
        "no-effect",
        "2:78: warning: exceed has no effect: 10% of 9 requests, rounded down, is 0; write a number",
    ),
    "a mode where there is no limit": (
        "{key: k, shadow_mode: true, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "{key: k, shadow_mode: false, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "no-effect",
        "2:24: warning: shadow_mode has no effect: there is no rate_limit here, and the levels below do not inherit it",
    ),
    "metadata where there is no limit": (
        "{key: k, metadata: {a: 1}, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "{key: k, metadata: {}, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "no-effect",
        "2:24: warning: metadata has no effect: there is no rate_limit here",
    ),
    "charge where there is no limit": (
        "{key: k, charge: together, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "{key: k, value_to_metric: true, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        "no-effect",
        "2:24: warning: charge has no effect: there is no rate_limit here",
    ),
    "a replaced name that there is not": (
        f"{limit(f'{DAY}: 1, name: base')}, {{key: l, rate_limit: {{{DAY}: 2, replaces: [{{name: bace}}]}}}}",
        f"{limit(f'{DAY}: 1, name: base')}, {{key: l, rate_limit: {{{DAY}: 2, replaces: [{{name: base}}]}}}}",
        "replaces",
        '2:93: warning: replaces "bace", which is the name of no limit in domain "d"; did you mean "base"?',
    ),
    "a replaced name that nothing is like": (
        limit(f"{DAY}: 2, replaces: [{{name: base}}]"),
        f"{limit(f'{DAY}: 2, replaces: [{{name: base}}]')}, {{key: l, rate_limit: {{{DAY}: 1, name: base}}}}",
        "replaces",
        '2:24: warning: replaces "base", which is the name of no limit in domain "d"; give the limit that is',
    ),
    "a child that is weaker": (
        nested(f"{DAY}: 10", f"{DAY}: 11"),
        nested(f"{DAY}: 10", f"{DAY}: 10"),
        "weaker",
        "2:97: warning: the limit of 11 requests per day is larger than 10 requests per day at 1.yaml:2:25, wh",
    ),
    "a child with more in a shorter time": (
        nested(f"{DAY}: 10", f"{MINUTE}: 11"),
        nested(f"{DAY}: 10", "unit: week, requests_per_unit: 11, algorithm: sub_windows"),
        "weaker",
        "11 requests per minute is larger than 10 requests per day",
    ),
    "a child with more in a time that fits": (
        nested("unit: 6 hours, requests_per_unit: 10", "unit: 3 hours, requests_per_unit: 11"),
        nested("unit: 6 hours, requests_per_unit: 10", "unit: 4 hours, requests_per_unit: 11"),
        "weaker",
        "11 requests per 3 hours is larger",
    ),
    "a child of the child": (
        f"{{key: k, rate_limit: {{{DAY}: 1}}, descriptors: [{{key: l, descriptors: [{limit(f'{DAY}: 2')}]}}]}}",
        f"{{key: k, descriptors: [{{key: l, descriptors: [{limit(f'{DAY}: 2')}]}}]}}",
        "weaker",
        "2 requests per day is larger",
    ),
    "a child with a larger bucket": (
        nested(f"{DAY}: 10, {BUCKET}, burst: 5", f"{DAY}: 10, {BUCKET}, burst: 6"),
        nested(f"{DAY}: 10, {BUCKET}, burst: 5", f"{DAY}: 11, {BUCKET}, burst: 4"),
        "weaker",
        "10 requests per day is larger",
    ),
    "a child that may exceed": (
        nested(f"{DAY}: 10, exceed: 1", f"{DAY}: 11, exceed: 1"),
        nested(f"{DAY}: 10, exceed: 2", f"{DAY}: 11"),
        "weaker",
        "11 requests per day is larger",
    ),
    "a child that blocks for longer": (
        nested(f"{DAY}: 10", f"{DAY}: 11"),
        nested(f"{DAY}: 10", f"{DAY}: 11, block_for: 2 days"),
        "weaker",
        "the limit of 11 requests per day is larger than 10 requests per day",
    ),
    "a child that replaces another one": (
        nested(f"{DAY}: 10, name: base", f"{DAY}: 11"),
        nested(f"{DAY}: 10, name: base", f"{DAY}: 11, replaces: [{{name: base}}]"),
        "weaker",
        "11 requests per day is larger",
    ),
    "a child below a limit": (nested(f"{DAY}: 1", f"{DAY}: 2"), nested(f"{DAY}: 0", f"{DAY}: 2"), "weaker", "2 req"),
    "a child that denies": (
        nested(f"{DAY}: 1", f"{DAY}: 2"),
        nested(f"{DAY}: 1", f"{DAY}: 2", beside_lower="shadow_mode: true,"),
        "weaker",
        "2 requests",
    ),
    "a parent that denies": (
        nested(f"{DAY}: 1", f"{DAY}: 2"),
        nested(f"{DAY}: 1", f"{DAY}: 2", beside_upper="shadow_mode: true,"),
        "weaker",
        "2 requests",
    ),
    "a child that is no quota": (
        nested(f"{DAY}: 1", f"{DAY}: 2"),
        nested(f"{DAY}: 1", f"{DAY}: 2", beside_lower="quota_mode: true,"),
        "weaker",
        "2 requests",
    ),
    "a child that counts in the same way": (
        nested(f"{DAY}: 1, algorithm: sliding_window", f"{DAY}: 2, algorithm: sliding_window"),
        nested(f"{DAY}: 1, algorithm: sliding_window", f"{DAY}: 2, algorithm: sub_windows"),
        "weaker",
        "2 requests",
    ),
    "months that begin together": (
        nested("calendar: {unit: month}, requests_per_unit: 1", "calendar: {unit: month}, requests_per_unit: 2"),
        nested("calendar: {unit: month}, requests_per_unit: 1", "calendar: {unit: day}, requests_per_unit: 2"),
        "weaker",
        "2 requests per calendar month, UTC is larger than 1 request per calendar month, UTC at",
    ),
    "logs of windows that do not fit": (
        nested(f"unit: 5 hours, {LOG}, requests_per_unit: 1", f"unit: 3 hours, {LOG}, requests_per_unit: 2"),
        nested("unit: 5 hours, requests_per_unit: 1", "unit: 3 hours, requests_per_unit: 2"),
        "weaker",
        "2 requests",
    ),
    "sub-windows with the same parts": (
        nested(f"{DAY}: 1, algorithm: sub_windows", f"{DAY}: 2, algorithm: sub_windows"),
        nested(f"{DAY}: 1, algorithm: sub_windows", f"{DAY}: 2, algorithm: sub_windows, parts: 9"),
        "weaker",
        "2 requests",
    ),
    "estimates of the same window": (
        nested(f"{DAY}: 1, algorithm: sliding_window", f"{DAY}: 2, algorithm: sliding_window"),
        nested(f"{DAY}: 1, algorithm: sliding_window", "unit: hour, requests_per_unit: 2, algorithm: sliding_window"),
        "weaker",
        "2 requests",
    ),
    "windows that begin together": (
        nested(f"{DAY}: 1", f"{DAY}: 2"),
        nested(f"{DAY}: 1", f"{DAY}: 2, anchor: first_request"),
        "weaker",
        "2 requests",
    ),
    "an address in networks that are tried first": (
        f"{{key: k, cidr: [10.0.0.0/8], {RATE}}}, {{key: k, values: [a, 10.1.2.3, '::ffff:10.9.9.9'], {RATE}}}",
        f"{{key: k, values: [a, 10.1.2.3, '::ffff:10.9.9.9'], {RATE}}}, {{key: k, cidr: [10.0.0.0/8], {RATE}}}",
        "overlap",
        '"10.1.2.3" (and 1 other of this list) never fits this list: the networks at 1.yaml:2:16 are tried first; move',
    ),
    "an address in networks of the same priority": (
        f"{{key: k, cidr: [10.0.0.0/8], {RATE}}}, {{key: k, values: [10.1.2.3], {RATE}}}",
        f"{{key: k, cidr: [10.0.0.0/8], {RATE}}}, {{key: k, values: [10.1.2.3], priority: 1, {RATE}}}",
        "overlap",
        '"10.1.2.3" never fits this list: the networks at 1.yaml:2:16 are tried first',
    ),
    "a network in another one": (
        f"{{key: k, cidr: [10.1.0.0/16, 10.2.0.0/16, 10.0.0.0/8, 11.0.0.0/8], {RATE}}}",
        f"{{key: k, cidr: [10.1.0.0/16, 10.2.0.0/16, 11.0.0.0/8], {RATE}}}",
        "overlap",
        "2:16: warning: 10.1.0.0/16 (and 1 other of this list) changes nothing: it is inside 10.0.0.0/8; remove one of",
    ),
    "a network in one of the same list": (
        f"{{key: k, cidr: [10.0.0.0/8, 10.1.0.0/16], {RATE}}}",
        f"{{key: k, cidr: [10.0.0.0/8], {RATE}}}, {{key: k, cidr: [10.1.0.0/16], {RATE}}}",
        "overlap",
        "10.1.0.0/16 changes nothing: it is inside 10.0.0.0/8",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "good", "kind", "message"), PAIRS.values(), ids=PAIRS.keys())
def test_what_is_warned_of_and_what_is_almost_the_same(bad: str, good: str, kind: str, message: str) -> None:
    [found] = warnings(bad)

    assert message in found
    assert found.endswith(f" [{kind}]")
    assert warnings(good) == []


RESERVES = {
    "an estimate for few at once": (
        "requests_per_unit: 799",
        "requests_per_unit: 800",
        "2:24: warning: with an estimate of 100 a limit of 799 has room for 7 at once; write a smaller estimate, above",
    ),
    "an estimate for few at once in a burst": (
        "requests_per_unit: 800, burst: 399",
        "requests_per_unit: 800, burst: 400",
        "2:24: warning: with an estimate of 100 a burst of 399 has room for 3 at once; write a burst of 400, or more",
    ),
    "a hold that few answers keep": (
        "requests_per_unit: 800, reserve: {id: k, estimate: 9, hold: 29s}",
        "requests_per_unit: 800, reserve: {id: k, estimate: 9, hold: 30s}",
        "2:24: warning: what is settled after a hold of 29 s is charged twice; write more than the longest request ta",
    ),
    "a window that is over before the answer is": (
        "requests_per_unit: 800, algorithm: sub_windows, reserve: {id: k, hold: 61s}",
        "requests_per_unit: 800, algorithm: sub_windows, reserve: {id: k, hold: 1m}",
        "2:24: warning: a hold of 1 min 1 s is longer than the window of 1 min: what goes back to one that is over",
    ),
}


@pytest.mark.parametrize(("bad", "good", "message"), RESERVES.values(), ids=RESERVES.keys())
def test_what_is_warned_of_at_reservations(bad: str, good: str, message: str) -> None:
    def found(options: str) -> list[str]:
        bucket = "" if "algorithm" in options else ", algorithm: token_bucket"
        reserve = "" if "reserve" in options else ", reserve: {id: k, estimate: 100, hold: 5m}"
        text = f"{{key: k, rate_limit: {{unit: minute, {options}{bucket}{reserve}}}}}"
        return [str(warning) for warning in lint(book(f"domain: d\ndescriptors: [{text}]\nsettle: s\n"))]

    [warning] = found(bad)

    assert message in warning
    assert warning.endswith(" [reserve]")
    assert found(good) == []


def test_a_file_settles_in_vain_if_no_limit_can_be_charged() -> None:
    places = "{key: k, rate_limit: {concurrency: 1, hold: 1m, place: k}}"

    def found(descriptors: str) -> list[str]:
        return [str(warning) for warning in lint(book(f"domain: d\nsettle: s\ndescriptors: [{descriptors}]\n"))]

    [warning] = found(f"{places}, {{key: l, rate_limit: {{deny: true}}}}")

    assert "1.yaml:1:9: warning: settle has no effect: no rule of the domain has a limit" in warning
    assert found(f"{places}, {{key: l, {RATE}}}") == []


def test_a_default_of_the_file_is_no_mistake_of_a_limit() -> None:
    head = "domain: d\ndefaults: {exceed: 10%, algorithm: token_bucket, burst: 3}\n"
    none, nine = limit(f"{DAY}: 0"), limit(f"{DAY}: 9").replace("key: k", "key: l")

    assert lint(book(f"{head}descriptors: [{none}, {nine}]\n")) == []


def test_each_limit_of_a_list_is_looked_at() -> None:
    lists = "rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 10}]"
    below = f"descriptors: [{{key: l, rate_limits: [{{{MINUTE}: 9}}, {{{DAY}: 11}}]}}]"

    [found] = warnings(f"{{key: k, {lists}, {below}}}")

    assert "11 requests per day is larger than 10 requests per day" in found


WAITS = (0, 0, 0, 50_000, 100_000, 500_000, 900_000, 1_000_000, 1_100_000, 1_900_000, 3_000_000)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (f"algorithm: {name}{upper}", f"algorithm: {name}{lower}")
        for name, upper, lower in (
            ("fixed_window", "", ""),
            ("fixed_window", ", exceed: 1", ", exceed: 2"),
            ("sliding_log", "", ""),
            ("sub_windows", "", ""),
            ("sub_windows", ", parts: 10", ", parts: 2"),
            ("sub_windows", ", parts: 2", ", parts: 10"),
            ("sliding_window", "", ""),
            ("token_bucket", "", ""),
            ("token_bucket", ", burst: 2", ", burst: 2"),
            ("leaky_bucket", ", burst: 1", ", burst: 3"),
        )
    ],
)
def test_a_limit_that_is_called_weaker_is_not_the_first_to_deny(times: int, upper: str, lower: str) -> None:
    above = f"unit: {times} seconds, requests_per_unit: 4, {upper}"
    found = book(f"domain: d\ndescriptors: [{nested(above, f'unit: second, requests_per_unit: 5, {lower}')}]\n")
    weaker = any(warning.kind == "weaker" for warning in lint(found))
    random = Random(times)  # noqa: S311 - no secret

    first = sum(denies_first(found.rules, [random.choice(WAITS) for _ in range(16)]) for _ in range(300))

    if weaker:
        assert first == 0
    elif (times, lower) == (1, ", parts: 2"):
        assert first > 0  # the sub-windows that are left out are rightly so


def denies_first(rules: Sequence[Rule], waits: Sequence[int]) -> bool:
    """Whether the lower of two limits is the first to deny, in requests after these times that are charged to both."""
    states: list[State | None] = [None, None]
    now = 1_700_000_000_000_000
    for wait in waits:
        now += wait
        allowed = []
        for index, rule in enumerate(rules):
            assert rule.limit is not None
            states[index], decision = rule.algorithm.hit(states[index], rule.limit, 1, now)
            allowed.append(decision.allowed)
        if not all(allowed):
            return allowed[0]
    return False
