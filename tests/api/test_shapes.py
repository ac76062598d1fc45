"""Shapes: for any rules and requests, the plan of a shape is the one that the planner makes."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.request import RequestLimits, decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.shapes import MOST_OF_SIZE, Shapes
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.bans import FOR_EVER, Ban
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.stores.memory import MemoryStore
from tests.api.requests import descriptor, encoded
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import values

RULES = """
    domain: shop
    headers: [ratelimit]
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: user
        value: eve
        rate_limit: {deny: true}
      - key: user
        value: Bob
        rate_limit: {unit: hour, requests_per_unit: 7}
        descriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 8}}]
      - {key: user_ada, rate_limit: {unit: hour, requests_per_unit: 9}}
      - key: tenant
        descriptors:
          - key: user
            rate_limit: {unit: second, requests_per_unit: 3, algorithm: token_bucket, block_for: 1m}
          - key: plan
            value: free
            rate_limit: {unit: day, requests_per_unit: 3}
          - key: path
            value: /a*
            rate_limit: {unit: day, requests_per_unit: 3}
            descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]
          - {key: path, rate_limit: {unit: day, requests_per_unit: 4}}
          - {key: ip, rate_limit: {unit: day, requests_per_unit: 4}}
      - key: plan
        value: 50%
        descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]
      - key: many
        rate_limits: [{unit: minute, requests_per_unit: 2}, {unit: day, requests_per_unit: 9}]
      - {key: open, rate_limit: {unlimited: true}}
      - {key: exempt}
      - {key: metric, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
      - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
      - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
      - {key: queue, rate_limit: {unit: second, requests_per_unit: 5, algorithm: leaky_bucket, queue: {max_delay: 1s}}}
      - {key: id, rate_limit: {concurrency: 5, hold: 1 minute, place: id}}
      - {key: among, values: [a, b, "x=y"], rate_limit: {unit: minute, requests_per_unit: 2}}
    """
OTHERS = """
    domain: defaults
    otherwise: {rate_limit: {unit: minute, requests_per_unit: 2}}
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}, descriptors: [{key: path}]}
      - {key: secret, hash_values: true, rate_limit: {unit: minute, requests_per_unit: 2}}
    """
ADDRESSES = """
    domain: addresses
    descriptors:
      - key: ip
        cidr: 10.0.0.0/8
        rate_limit: {unit: minute, requests_per_unit: 2}
        descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 2}}]
      - key: tenant
        descriptors: [{key: ip, rate_limit: {unit: minute, requests_per_unit: 2}}]
    """
PREFIXES = """
    domain: prefixes
    descriptors: [{key: ip, prefix: {ipv4: 24}, rate_limit: {unit: minute, requests_per_unit: 2}}]
    """
LONG = f"""
    domain: "{"=" * 110}"
    descriptors: [{{key: user, rate_limit: {{unit: minute, requests_per_unit: 2}}}}]
    """
ANY = """
    domain: "*"
    descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 2}}]
    """

KEYS = (
    *("user", "user_ada", "tenant", "plan", "path", "many", "open", "exempt", "metric", "shadow", "quota"),
    *("queue", "id", "among", "secret", "unknown"),
)
VALUES = (
    "",
    "a",
    "eve",
    "Bob",
    "ada",
    "free",
    "x=y",
    "x|y",
    "a%s",
    "a~b",
    "ü",
    "中文",
    "\ue000",
    "/ab",
    "10.0.0.1",
    "x" * 120,
)

Entries = Sequence[tuple[str, str]]


def limiter(*rules: str) -> Limiter:
    made = Limiter(MemoryStore(1000, Clock()))
    made.book = book(*rules, hash_value=HashValue("k" * 32))
    return made


def bodies(shape: Sequence[Sequence[str]], domain: str, texts: Sequence[str], addend: int = 0) -> bytes:
    """A request with these keys by descriptor, and one value after the other."""
    each = iter(texts)
    return encoded(
        *[descriptor(*[(key, next(each)) for key in keys]) for keys in shape], domain=domain, hits_addend=addend
    )


@given(
    shape=st.lists(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), min_size=1, max_size=3),
    domain=st.sampled_from(["shop", "defaults", "elsewhere"]),
    texts=st.lists(st.sampled_from(VALUES) | st.text(max_size=6), min_size=18, max_size=18),
    addend=st.sampled_from([0, 1, 7]),
    with_any=st.booleans(),
)
def test_the_plan_of_a_shape_is_the_one_that_the_planner_makes(
    shape: Sequence[Sequence[str]], domain: str, texts: Sequence[str], addend: int, *, with_any: bool
) -> None:
    tested, shapes = limiter(RULES, OTHERS, *([ANY] if with_any else [])), Shapes(pause=0)
    assert tested.book is not None
    for some in (texts[:9], texts[9:], [text[::-1] for text in texts[:9]]):
        body = bodies(shape, domain, some, addend)
        request = decode(body)
        try:
            planned = tested.plan(request)
        except RpcError:
            assert shapes.plan(body, tested.edition) is None
            continue
        found = shapes.plan(body, tested.edition)
        if found is None:
            shapes.learn(body, request, planned, tested.book)
            found = shapes.plan(body, tested.edition)
        assert found is None or values(found) == values(planned)


def of(text: str, domain: str = "shop", hits: int = 0) -> bytes:
    """A request with one descriptor, of entries such as `user=ada`."""
    return encoded(
        descriptor(*[(key, value) for key, _, value in (entry.partition("=") for entry in text.split(" "))]),
        domain=domain,
        hits_addend=hits,
    )


def backwards(text: str, domain: str = "shop") -> bytes:
    """The same with the domain at the end."""
    return of(text, domain)[6:] + of(text, domain)[:6]


def learnt(tested: Limiter, *bodies: bytes) -> Shapes:
    shapes = Shapes(pause=0)
    for body in bodies:
        request = decode(body)
        assert tested.book is not None
        shapes.learn(body, request, tested.plan(request), tested.book)
    return shapes


@pytest.mark.parametrize(
    ("known", "asked", "has_plan"),
    [
        (of("user=joe"), of("user=ann"), True),
        (of("user=joe"), of("user=x=y"), True),
        (of("user=joe"), of("user=anna"), False),  # of another length
        (of("user=joe"), of("user=eve"), False),  # who has a rule of his own
        (of("user=eve"), of("user=ann"), False),
        (of("user=joe"), of("user=ada"), False),  # the key user_ada
        (of("user=joe"), of("user=joe").replace(b"joe", b"j\xffe"), False),
        (of("user=joe"), of("user=joe", "shot"), False),
        (backwards("user=joe"), backwards("user=ann"), False),
        (backwards("user=joe"), backwards("user=joe", "shot"), False),
        (of("user=" + "a" * 200), of("user=" + "b" * 200), True),
        (of("user=Bob path=/a"), of("user=Bob path=/b"), True),
        (of("user=Bob path=/a"), of("user=Rob path=/a"), False),
        (of("tenant=a user=b"), of("tenant=c user=d"), True),
        (of("tenant=a path=/b"), of("tenant=c path=/b"), True),
        (of("tenant=a path=/b"), of("tenant=c path=/a"), False),  # a pattern
        (of("tenant=a path=/a\ue000 user=b"), of("tenant=c path=/a\ue000 user=d"), False),
        (of("plan=50% user=b"), of("plan=50% user=d"), True),
        (of(f"tenant={'a' * 50} user={'a' * 50}"), of(f"tenant={'|' * 50} user={'|' * 50}"), True),
        (of(f"user={'a' * 60}", "=" * 110), of(f"user={'b' * 60}", "=" * 110), True),
        (of(f"user={'a' * 60}", "=" * 110), of(f"user={'=' * 60}", "=" * 110), False),  # its key is a digest
        (of("user=a", hits=3), of("user=b", hits=3), True),
        (of("user=a", hits=3), of("user=b", hits=4), False),
        (of("metric=a"), of("metric=b"), False),
        (of("among=a"), of("among=b"), False),
        (of("id=a"), of("id=b"), False),
        (of("user=a", "defaults"), of("user=b", "defaults"), False),  # a domain with secrets
        (of("secret=a", "defaults"), of("secret=b", "defaults"), False),
        (of("ip=10.0.0.1 user=a", "addresses"), of("ip=10.0.0.1 user=b", "addresses"), False),
        (of("tenant=a ip=10.0.0.1", "addresses"), of("tenant=a ip=whatever", "addresses"), False),
        (of("ip=10.0.0.1", "prefixes"), of("ip=10.0.1.1", "prefixes"), False),
    ],
)
def test_what_differs_in_values_that_no_rule_asks_for_has_the_same_shape(
    known: bytes, asked: bytes, *, has_plan: bool
) -> None:
    tested = limiter(RULES, OTHERS, ADDRESSES, PREFIXES, LONG)

    plan = learnt(tested, known).plan(asked, tested.edition)

    assert (plan is not None) is has_plan
    if plan is not None:
        assert values(plan) == values(tested.plan(decode(asked)))


def asked(tested: ShouldRateLimit, *bodies: bytes) -> Sequence[str]:
    """The code of each answer, or what is wrong."""
    found: list[str] = []
    for body in bodies:
        tested.call(
            body,
            lambda answer: found.append(
                answer.message
                if isinstance(answer, RpcError)
                else RateLimitResponse.Code.Name(RateLimitResponse.FromString(answer).overall_code)
            ),
        )
    return found


def numbered(count: int) -> Sequence[bytes]:
    return [of(f"user={number:04}") for number in range(count)]


def test_a_ban_is_in_force_for_requests_of_a_known_shape() -> None:
    limited = limiter(RULES)
    tested = ShouldRateLimit(limited, ResponseEncoder())
    assert set(asked(tested, *numbered(20))) == {"OK"}
    limited.bans.put(Ban("shop", (("user", "0099"),), FOR_EVER, "spam", "ada", 0))

    assert asked(tested, of("user=0098"), of("user=0099"), *numbered(20), of("user=0099"))[:2] == ["OK", "OVER_LIMIT"]


def test_new_rules_are_in_force_for_requests_of_a_known_shape() -> None:
    limited = limiter(RULES)
    tested = ShouldRateLimit(limited, ResponseEncoder())
    assert set(asked(tested, *numbered(20))) == {"OK"}
    limited.book = book("domain: shop\ndescriptors: [{key: user, rate_limit: {deny: true}}]")

    assert asked(tested, of("user=0098")) == ["OVER_LIMIT"]


def test_a_value_that_is_too_long_is_refused_though_its_bytes_have_a_known_shape() -> None:
    tested = ShouldRateLimit(limiter(RULES), ResponseEncoder(), RequestLimits(value_length=10))

    assert set(asked(tested, *(of("user=" + "ü" * 9 + chr(0xE0 + number)) for number in range(20)))) == {"OK"}
    (answer,) = asked(tested, of("user=" + "u" * 20))
    assert "has a key or value of 20 characters" in answer


def test_shapes_are_bounded_in_number_whatever_clients_send() -> None:
    tested = limiter(RULES)
    assert tested.book is not None
    shapes = Shapes(pause=0)
    for lengths in product(range(1, 100), range(1, 60)):
        body = of(f"tenant={'x' * lengths[0]} user={'y' * lengths[1]}")
        request = decode(body)
        shapes.learn(body, request, tested.plan(request), tested.book)

    known = shapes._of_size.values()
    assert (max(map(len, known)), len(known)) == (MOST_OF_SIZE, 157)


def test_a_shape_that_is_asked_for_outlasts_others_of_its_size() -> None:
    tested = limiter(RULES)
    shapes = learnt(tested, of("tenant=Bob user=eve"))
    for number in range(3 * MOST_OF_SIZE):
        assert shapes.plan(of("tenant=Tom user=kim"), tested.edition) is not None
        other = of(f"tenant={'x' * (number % 5 + 1)} user={'y' * (5 - number % 5)}")
        request = decode(other)
        assert tested.book is not None
        shapes.learn(other, request, tested.plan(request), tested.book)


def test_a_value_that_is_looked_up_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "tiers.csv").write_text("ann,pro\n")
    tested = limiter(f"""
        domain: shop
        lookup: {{from: {tmp_path}/tiers.csv, key: user, as: tier, else: free}}
        descriptors:
          - {{key: tier, rate_limit: {{unit: minute, requests_per_unit: 2}}}}
          - {{key: user, rate_limit: {{unit: minute, requests_per_unit: 3}}}}
        """)

    assert learnt(tested, of("user=joe")).plan(of("user=ann"), tested.edition) is None
