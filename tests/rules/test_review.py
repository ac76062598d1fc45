"""Each warning about limits: a file that has it, and one that is almost the same and has not."""

import pytest

from ratelimit_service.rules.lint import lint
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
        "2:95: warning: burst has no effect: a bucket that gets 0 requests per unit is always empty; take it away",
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
        "2:97: warning: 11 requests per day here can never deny before the 10 requests per day at 1.yaml:2:25 do, in a",
    ),
    "a child with more in a shorter time": (
        nested(f"{DAY}: 10", f"{MINUTE}: 11"),
        nested(f"{DAY}: 10", "unit: week, requests_per_unit: 11, algorithm: sub_windows"),
        "weaker",
        "11 requests per minute here can never deny before the 10 requests per day",
    ),
    "a child with more in a time that fits": (
        nested("unit: 6 hours, requests_per_unit: 10", "unit: 3 hours, requests_per_unit: 11"),
        nested("unit: 6 hours, requests_per_unit: 10", "unit: 4 hours, requests_per_unit: 11"),
        "weaker",
        "11 requests per 3 hours here",
    ),
    "a child of the child": (
        f"{{key: k, rate_limit: {{{DAY}: 1}}, descriptors: [{{key: l, descriptors: [{limit(f'{DAY}: 2')}]}}]}}",
        f"{{key: k, descriptors: [{{key: l, descriptors: [{limit(f'{DAY}: 2')}]}}]}}",
        "weaker",
        "2 requests per day here",
    ),
    "a child with a larger bucket": (
        nested(f"{DAY}: 10, {BUCKET}, burst: 5", f"{DAY}: 10, {BUCKET}, burst: 6"),
        nested(f"{DAY}: 10, {BUCKET}, burst: 5", f"{DAY}: 11, {BUCKET}, burst: 4"),
        "weaker",
        "10 requests per day here",
    ),
    "a child that may exceed": (
        nested(f"{DAY}: 10, exceed: 1", f"{DAY}: 11, exceed: 1"),
        nested(f"{DAY}: 10, exceed: 2", f"{DAY}: 11"),
        "weaker",
        "11 requests per day here",
    ),
    "a child that blocks for longer": (
        nested(f"{DAY}: 10", f"{DAY}: 11"),
        nested(f"{DAY}: 10", f"{DAY}: 11, block_for: 2 days"),
        "weaker",
        "11 requests per day here",
    ),
    "a child that replaces another one": (
        nested(f"{DAY}: 10, name: base", f"{DAY}: 11"),
        nested(f"{DAY}: 10, name: base", f"{DAY}: 11, replaces: [{{name: base}}]"),
        "weaker",
        "11 requests per day here",
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
        "2 requests per calendar month, UTC here can never deny before the 1 request per calendar month, UTC at",
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
        "2:16: warning: 10.1.0.0/16 (and 1 other of this list) changes nothing: it is inside 10.0.0.0/8; take one of",
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


def test_a_default_of_the_file_is_no_mistake_of_a_limit() -> None:
    head = "domain: d\ndefaults: {exceed: 10%, algorithm: token_bucket, burst: 3}\n"
    none, nine = limit(f"{DAY}: 0"), limit(f"{DAY}: 9").replace("key: k", "key: l")

    assert lint(book(f"{head}descriptors: [{none}, {nine}]\n")) == []


def test_each_limit_of_a_list_is_looked_at() -> None:
    lists = "rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 10}]"
    below = f"descriptors: [{{key: l, rate_limits: [{{{MINUTE}: 9}}, {{{DAY}: 11}}]}}]"

    [found] = warnings(f"{{key: k, {lists}, {below}}}")

    assert "11 requests per day here can never deny before the 10 requests per day" in found
