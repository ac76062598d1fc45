"""Pools and the limits that borrow from them: what files say, what is refused at its place, and what is warned of."""

from textwrap import dedent

import pytest

from ratelimit_service.algorithms.kinds import Elastic
from ratelimit_service.algorithms.kinds.pool import Pool
from ratelimit_service.errors import RulesError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.checks.diff import diff
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.leasing import LeaseOptions
from ratelimit_service.rules.rule import rule_in_full
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.books import book

POOL = "{name: checkout, unit: second, requests_per_unit: 1000}"
LIMIT = "unit: second, requests_per_unit: 400"


def rules(limit: str = f"{LIMIT}, elastic: {{pool: checkout, ceiling: 250%}}", *, pool: str = POOL) -> str:
    return f"domain: shop\npools: [{pool}]\ndescriptors: [{{key: tenant, rate_limit: {{{limit}}}}}]\n"


def problems(*texts: str, **options: bool) -> list[str]:
    with pytest.raises(RulesError) as caught:
        book(*texts, **options)
    return [str(problem) for problem in caught.value.problems]


def limit_of(text: str) -> Limit:
    (found,) = book(text).rules
    assert found.limit is not None
    assert found.algorithm.name == "sub_windows"
    return found.limit


@pytest.mark.parametrize(
    ("pool", "elastic", "expected", "ceiling"),
    [
        (POOL, "{pool: checkout, ceiling: 250%}", Pool("checkout", 1000, 100, 0), 1000),
        (POOL, "{pool: checkout, ceiling: 400}", Pool("checkout", 1000, 100, 0), 400),
        (POOL, "{pool: checkout, ceiling: 401, strict: true}", Pool("checkout", 1000, 100, 50), 401),
        (f"{POOL[:-1]}, burst: 7, reserve: 6}}", "{pool: checkout, ceiling: 999}", Pool("checkout", 1000, 7, 6), 999),
        (f"{POOL[:-1]}, reserve: 9}}", "{pool: checkout, ceiling: 999, strict: true}",
            Pool("checkout", 1000, 100, 9), 999),
        (
            "{name: checkout, unit: second, requests_per_unit: 3}",
            "{pool: checkout, ceiling: 999}",
            Pool("checkout", 3, 1, 0),
            999,
        ),
    ],
)  # fmt: skip
def test_a_limit_has_the_pool_that_it_names(pool: str, elastic: str, expected: Pool, ceiling: int) -> None:
    limit = limit_of(rules(f"{LIMIT}, elastic: {elastic}", pool=pool))

    assert isinstance(limit.kind, Elastic)
    assert (limit.kind.pool, limit.kind.strict) == (expected, "strict" in elastic)
    assert limit.kind.counter == Limit(
        expected.requests, Unit.SECOND, SECOND, burst=expected.burst + expected.requests, count_refused=False
    )
    assert limit.kind.right == Limit(400, Unit.SECOND, SECOND, count_refused=False)
    assert limit.requests + limit.exceed == ceiling


def test_a_pool_may_stand_in_another_file_of_the_domain_than_its_members() -> None:
    members = (
        f"domain: shop\ndescriptors: [{{key: a, rate_limit: {{{LIMIT}, elastic: {{pool: checkout, ceiling: 500}}}}}}]\n"
    )
    pool = f"domain: shop\npools: [{POOL}]\n"

    for texts in ((members, pool), (pool, members)):
        (found,) = book(*texts, merge_domains=True).rules
        assert found.limit is not None
        assert isinstance(found.limit.kind, Elastic)
        assert found.common_key == "shop|checkout|pool/1000000"
    assert problems(members, pool.replace("shop", "web")) == [
        '1.yaml:2:91: domain "shop" has no pool "checkout"; write pools at the top'
    ]


def test_defaults_that_an_elastic_limit_cannot_have_do_not_apply_to_it() -> None:
    others = "algorithm: token_bucket, burst: 5, exceed: 10%, block_for: 1 minute, count_refused: true"
    defaults = f"defaults: {{{others}, parts: 5}}\n"

    assert limit_of(defaults + rules()) == limit_of(
        rules(f"{LIMIT}, parts: 5, elastic: {{pool: checkout, ceiling: 1000}}")
    )


def test_members_may_be_the_default_and_a_limit_of_a_list_that_is_charged_each_by_itself() -> None:
    found = book(
        f"""
        domain: shop
        pools: [{POOL}]
        otherwise:
          rate_limit: {{{LIMIT}, elastic: {{pool: checkout, ceiling: 500}}}}
        descriptors:
          - key: tenant
            charge: each
            rate_limits:
              - {{unit: day, requests_per_unit: 10}}
              - {{{LIMIT}, elastic: {{pool: checkout, ceiling: 600}}}}
        """
    ).rules

    assert [rule.limit.exceed if rule.limit and rule.limit.kind.common else None for rule in found] == [None, 200, 100]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("elastic: {pool: chekout, ceiling: 500}", '3:96: domain "shop" has no pool "chekout"; did you mean checkout?'),
        (
            "elastic: {pool: checkout, ceiling: 399}",
            ("3:115: ceiling 399 is not between requests_per_unit, 400, and 1,125,899,906,842,624; "
            "write one such as 200%"),
        ),
        (
            "elastic: {pool: checkout, ceiling: much}",
            ("3:115: ceiling must be a whole number from 0 to 1125899906842624 or a share such as 250%, "
            'not the text "much"'),
        ),
        ("elastic: {ceiling: 500}",
            ("3:89: elastic must have the name of a pool, such as "
             "elastic: {pool: checkout, ceiling: 200%}")),
        (
            "elastic: {pool: checkout}",
            "3:89: elastic must have a ceiling, how many are allowed with what is borrowed, such as ceiling: 200%",
        ),
        (
            "elastic: {pool: checkout, ceiling: 500}, exceed: 1",
            "3:121: exceed has no meaning with elastic, whose ceiling says what is allowed",
        ),
        (
            "elastic: {pool: checkout, ceiling: 500}, block_for: 1 minute",
            "3:121: block_for has no meaning with elastic, whose ceiling says what is allowed",
        ),
        (
            "elastic: {pool: checkout, ceiling: 500}, count_refused: true",
            "3:121: count_refused has no meaning with elastic: remove it",
        ),
        (
            "algorithm: token_bucket, elastic: {pool: checkout, ceiling: 500}",
            "3:105: elastic has no meaning for token_bucket, only for sub_windows",
        ),
        ("unit_multiplier: 2, elastic: {pool: checkout, ceiling: 500}",
            "3:116: the limit is per 2 seconds, and the pool at 1.yaml:2:16 per second: write the same unit for both"),
    ],
)  # fmt: skip
def test_what_an_elastic_limit_cannot_be_is_refused_at_its_place(limit: str, expected: str) -> None:
    assert problems(rules(f"{LIMIT}, {limit}")) == [f"1.yaml:{expected}"]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("{unit: second, requests_per_unit: 1}", "2:66: a pool must have a name, for elastic of its members"),
        ("{name: a, requests_per_unit: 1}",
            ("2:66: a pool must have a unit, the one of its members, such "
             "as unit: second")),
        ("{name: a, unit: second}", "2:66: a pool must have requests_per_unit, what all members together should send"),
        ("{name: a, unit: second, requests_per_unit: 0}",
            ("2:109: requests_per_unit must be a whole number from 1 to "
             "1125899906842624, not the number 0")),
        ("{name: a, unit: second, requests_per_unit: 50, reserve: 5}",
            "2:122: reserve leaves nothing to lend: it must be less than the burst of the pool, 5"),
        (POOL, '2:73: pool "checkout" is given twice in this domain, first at 1.yaml:2:16'),
        ("{name: a, unit: year, requests_per_unit: 1, burst: 4000000000}",
            ('2:66: pool "a": a bucket of 4000000001 that gets 1 in a '
             'window would take over 100 years to fill; write a smaller burst')),
    ],
)  # fmt: skip
def test_what_a_pool_cannot_be_is_refused_at_its_place(pool: str, expected: str) -> None:
    assert problems(rules(pool=f"{POOL}, {pool}")) == [f"1.yaml:{expected}"]


def test_members_of_one_pool_count_the_same() -> None:
    text = dedent(
        f"""\
        domain: shop
        pools: [{POOL}]
        descriptors:
          - key: a
            rate_limit: {{{LIMIT}, elastic: {{pool: checkout, ceiling: 500}}}}
          - key: b
            rate_limit: {{{LIMIT}, quota_unit: content-bytes, elastic: {{pool: checkout, ceiling: 500}}}}
        """
    )

    assert problems(text) == [
        (
            "1.yaml:7:99: this limit counts content-bytes, and the one "
            "at 1.yaml:5:5 requests: members of one pool count the "
            "same, so use another pool"
        )
    ]


def test_a_strict_limit_needs_a_reserve() -> None:
    strict = f"{LIMIT}, elastic: {{pool: checkout, ceiling: 500, strict: true}}"

    for pool, at in ((f"{POOL[:-1]}, reserve: 0}}", "2:74"), (f"{POOL[:-1]}, burst: 1}}", "2:9")):
        assert problems(rules(strict, pool=pool)) == [
            (
                f'1.yaml:{at}: pool "checkout" has no reserve, and the limit '
                f"at 1.yaml:3:29 is strict: loans could keep its "
                "requests out for ever; write a burst of 2 at least, and leave reserve out or above 0"
            )
        ]


def test_what_is_charged_together_cannot_be_elastic() -> None:
    elastic = f"{LIMIT}, elastic: {{pool: checkout, ceiling: 500}}"
    listed = rules().replace(
        f"rate_limit: {{{LIMIT}, elastic: {{pool: checkout, ceiling: 250%}}}}", f"rate_limits: [{{{elastic}}}]"
    )

    for text in (f"charge: together\n{rules(elastic)}", listed):
        (problem,) = problems(text)
        assert problem.endswith(
            "elastic cannot be charged together with other limits: write charge: each in the descriptor"
        )


def test_a_limit_that_lives_on_loans_has_a_right_of_one() -> None:
    assert problems(rules("unit: second, requests_per_unit: 0, elastic: {pool: checkout, ceiling: 5}")) == [
        "1.yaml:3:75: elastic needs requests_per_unit of 1 at least; write 1 for a limit that lives on what it borrows"
    ]


def test_a_limit_says_what_it_may_borrow_in_words() -> None:
    strict = f"{LIMIT}, elastic: {{pool: checkout, ceiling: 1000, strict: true}}"

    assert [rule_in_full(book(text).rules[0]) for text in (rules(), rules(strict))] == [
        (
            "400 requests per second (sub windows, 10 parts, up to 1,000 "
            "on loan from pool checkout of 1,000 per second with "
            "burst 100)"
        ),
        (
            "400 requests per second (sub windows, 10 parts, strict, up to 1,000 on loan from pool checkout of 1,000 "
            "per second with burst 100 and reserve 50)"
        ),
    ]


def warnings(descriptors: str, pool: str = POOL) -> list[str]:
    return [str(each) for each in lint(book(f"domain: shop\npools: [{pool}]\ndescriptors: [{descriptors}]\n"))]


def member(requests: int, more: str = "", beside: str = "value: a") -> str:
    limit = f"unit: second, requests_per_unit: {requests}, elastic: {{pool: checkout, ceiling: 1000{more}}}"
    return f"{{key: tenant, {beside}, rate_limit: {{{limit}}}}}"


def test_rights_that_exceed_the_pool_without_any_loan_are_warned_of() -> None:
    beside = ("value: b", "value: c*, share_threshold: true", "value: d*")

    assert warnings(f"{member(400)}, {member(600, beside='value: b')}") == []
    assert warnings(f"{member(400)}, {member(601, beside='value: b')}") == [
        (
            '1.yaml:2:16: warning: the rights of the members of pool "checkout" add up to 1,001, more than the '
            "pool's 1,000, which they exceed without any loan: lower them, or raise the pool [pool]"
        )
    ]
    assert len(warnings(f"{member(500)}, {member(501, beside=beside[1])}")) == 1
    (found,) = warnings(f"{member(500)}, {member(501, beside=beside[2])}")
    assert "add up to 1,001 at least: the one at 1.yaml:3:" in found
    assert "is a right for each value" in found


def test_a_pool_without_members_and_strict_members_among_others_are_warned_of() -> None:
    strict = member(10, ", strict: true", "value: b")

    assert warnings("{key: a, rate_limit: {unit: second, requests_per_unit: 1}}") == [
        (
            '1.yaml:2:16: warning: pool "checkout" has no members; give '
            "a limit elastic: {pool: checkout, …}, or remove it "
            "[pool]"
        )
    ]
    (found,) = warnings(f"{member(10)}, {strict}")
    assert found.endswith(
        "this limit is strict, and the one at 1.yaml:3:39 is not, "
        "whose right may exceed their pool; write strict: true "
        "for all members, or for none [pool]"
    )


def test_a_pool_per_minute_has_members_per_minute() -> None:
    limit = limit_of(rules().replace("second", "minute"))

    assert limit.window == MINUTE
    assert isinstance(limit.kind, Elastic)
    assert limit.kind.counter.window == MINUTE


def test_an_elastic_limit_does_not_lease() -> None:
    """Even without loans: each request is charged to the pool too."""
    elastic = "requests_per_unit: 1000, lease: auto, elastic: {pool: checkout, ceiling: 1000}"
    found = book(rules(f"unit: second, {elastic}"), leases=LeaseOptions(auto=True))

    assert [rule.lease for rule in found.rules] == [0]
    assert [each.message for each in lint(found)] == [
        "this limit does not lease: elastic: what is allowed is charged to its pool too"
    ]


def test_a_changed_pool_is_a_changed_limit_that_keeps_its_counters() -> None:
    changed = rules(pool=POOL.replace("1000", "2000"))

    assert diff(book(rules()), book(rules())) == []
    (found,) = diff(book(rules()), book(changed))
    assert (found.kind, found.counters) == ("changed", "kept")
    (difference,) = found.differences
    assert difference.old.endswith("up to 1,000 on loan from pool checkout of 1,000 per second with burst 100)")
    assert difference.new.endswith("up to 1,000 on loan from pool checkout of 2,000 per second with burst 200)")
