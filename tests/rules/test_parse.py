"""Rules files become a book, or every error at its place."""

from textwrap import dedent

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.diff import diff
from ratelimit_service.rules.problems import MAX_PROBLEMS, Place
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.rule import ALONE, LIST, REQUEST
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.system.clock import HOUR
from tests.books import book, matched


def problems(*texts: str, merge_domains: bool = False) -> list[str]:
    """Everything that is said about these files, which are 1.yaml, 2.yaml and so on."""
    with pytest.raises(RulesError) as caught:
        book(*texts, merge_domains=merge_domains)
    return [str(problem) for problem in caught.value.problems]


def descriptor(text: str) -> str:
    """A file with one descriptor; what is given begins in its third line."""
    return f"domain: shop\ndescriptors:\n{text}"


def limit(text: str) -> str:
    """A file with one rate_limit, which is written in flow style at 4:17."""
    return descriptor(f"- key: user\n  rate_limit: {text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1.yaml:1:1: the file is empty; it must begin with a domain"]),
        ("# nothing\n", ["1.yaml:1:1: the file is empty; it must begin with a domain"]),
        ("~", ["1.yaml:1:1: the file is empty; it must begin with a domain"]),
        ("- domain: shop", ["1.yaml:1:1: a rules file is a map with domain and descriptors, not a list"]),
        ("shop", ['1.yaml:1:1: a rules file is a map with domain and descriptors, not the text "shop"']),
        ("descriptors: []", ["1.yaml:1:1: the file has no domain; it must begin with one, such as domain: shop"]),
        ("domain: ~", ["1.yaml:1:1: the file has no domain; it must begin with one, such as domain: shop"]),
        ('domain: ""', ["1.yaml:1:9: domain must not be empty"]),
        ("domain: [a]", ["1.yaml:1:9: domain must be text, not a list"]),
        ("domain: 1.5", ["1.yaml:1:9: domain must be text, and 1.5 is a number; write it in quotes"]),
        (
            "domain: 99999999999999999999",
            ["1.yaml:1:9: domain must be text, and 99999999999999999999 is a number; write it in quotes"],
        ),
        ("domain: shop\ndescriptors: {}", ["1.yaml:2:14: descriptors must be a list, not a map"]),
        (descriptor("- a\n- ~\n- [b]\n"), [
            '1.yaml:3:3: each of descriptors must be a map, not the text "a"',
            "1.yaml:4:3: each of descriptors must be a map, not null",
            "1.yaml:5:3: each of descriptors must be a map, not a list",
        ]),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_domain_with_descriptors_is_refused(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Domain: x", '1.yaml:2:1: unknown key "Domain"; did you mean domain?'),
        (
            "ratelimit: {}",
            (
                '1.yaml:2:1: unknown key "ratelimit"; did you mean rate_limit, which belongs in a descriptor or '
                "in otherwise?"
            ),
        ),
        (
            "zzz: 1",
            (
                '1.yaml:2:1: unknown key "zzz"; at the top of the file there may be domain, charge, settle, headers, '
                "retry_after, retry_after_jitter, problem_body, rule_metadata, defaults, otherwise, lookup, pools, "
                "descriptors"
            ),
        ),
        (
            "unit: day",
            "1.yaml:2:1: unit does not belong at the top of the file, but in rate_limit or in calendar or in pools",
        ),
        (
            "metadata: {}",
            "1.yaml:2:1: metadata does not belong at the top of the file, but in a descriptor or in otherwise",
        ),
        (
            "name: x",
            (
                "1.yaml:2:1: name does not belong at the top of the file, but in rate_limit or in an entry of replaces "
                "or in pools"
            ),
        ),
        ("1: x", "1.yaml:2:1: a key must be text, not the number 1; write it in quotes"),
        ("0.25: x", "1.yaml:2:1: a key must be text, not the number 0.25; write it in quotes"),
        ("yes: x", "1.yaml:2:1: a key must be text, not the boolean yes; write it in quotes"),
        ("~: x", "1.yaml:2:1: a key must be text, not null; write it in quotes"),
        ("[a]: x", "1.yaml:2:1: a key must be text, not a list"),
        ("domain: mail", '1.yaml:2:1: key "domain" is given twice in this map, first at 1:1'),
    ],
)
def test_a_key_that_does_not_belong_is_refused_and_said_where_it_does(text: str, expected: str) -> None:
    assert problems(f"domain: shop\n{text}\n") == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- value: a", "1.yaml:3:3: a descriptor must have a key"),
        ("- key: ~", "1.yaml:3:3: a descriptor must have a key"),
        ("- key: ''", "1.yaml:3:8: key must not be empty"),
        (
            "- key: a\n- key: a",
            '1.yaml:4:3: descriptor "a" is given twice at this level, first at 1.yaml:3:3; join them',
        ),
        (
            "- key: a_b\n- value: b\n  key: a",
            '1.yaml:5:3: descriptor "a_b" is given twice at this level, first at 1.yaml:3:3; join them',
        ),
        ("- key: a\n  value: 0.5", "1.yaml:4:10: value must be text, and 0.5 is a number; write it in quotes"),
        ("- key: a\n  value: 08", "1.yaml:4:10: value must be text, and 08 is a number; write it in quotes"),
        ("- key: a\n  shadow_mode: maybe", '1.yaml:4:16: shadow_mode must be true or false, not the text "maybe"'),
        ('- key: a\n  shadow_mode: "true"', '1.yaml:4:16: shadow_mode must be true or false, not the text "true"'),
        ("- key: a\n  quota_mode: 1", "1.yaml:4:15: quota_mode must be true or false, not the number 1"),
        (
            "- key: a\n  unit: day",
            "1.yaml:4:3: unit does not belong in a descriptor, but in rate_limit or in calendar or in pools",
        ),
        (
            "- key: a\n  share_threshold: true",
            '1.yaml:4:3: share_threshold needs a list, cidr, regex, not or a value with a * in it, and this is "a"',
        ),
        (
            "- key: a\n  value: b\n  share_threshold: yes",
            '1.yaml:5:3: share_threshold needs a list, cidr, regex, not or a value with a * in it, and this is "a_b"',
        ),
        ("- key: a\n  rate_limit: 5", "1.yaml:4:15: rate_limit must be a map, not the number 5"),
        ("- key: a\n  metadata: x", '1.yaml:4:13: metadata must be a map, not the text "x"'),
        ("- key: a\n  metadata: {[a]: x}", "1.yaml:4:14: a key must be text, not a list"),
        (
            "- key: a\n  metadata: {~: x, null: y}",
            '1.yaml:4:20: metadata: "" is given twice in this map, first at 4:14',
        ),
        (
            "- key: a\n  metadata: {a: {1: x, 0x1: y}}",
            '1.yaml:4:24: metadata: "1" is given twice in this map, first at 4:18',
        ),
        (
            "- key: a\n  metadata: &m {key: x, 1: x}\n  descriptors: [*m]",
            "1.yaml:4:25: a key must be text, not the number 1; write it in quotes",
        ),
        (
            "- key: a\n  metadata: {x: [.inf]}",
            "1.yaml:4:18: metadata must be what JSON can say, and .inf is not; write it in quotes",
        ),
        ("- key: a\n  descriptors: [{key: b}, {}]", "1.yaml:4:27: a descriptor must have a key"),
    ],
)
def test_a_malformed_descriptor_is_refused_at_its_place(text: str, expected: str) -> None:
    assert problems(descriptor(text)) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", [
            "1.yaml:4:3: rate_limit has no unit; write one, such as unit: minute, or unlimited: true",
            "1.yaml:4:3: rate_limit has no requests_per_unit; write requests_per_unit: 0 to block",
        ]),
        ("{unit: day}", ["1.yaml:4:3: rate_limit has no requests_per_unit; write requests_per_unit: 0 to block"]),
        ("{unit: day, requests_per_unit: }", [
            "1.yaml:4:3: rate_limit has no requests_per_unit; write requests_per_unit: 0 to block",
        ]),
        ("{unit: fortnight, requests_per_unit: 1}", [
            '1.yaml:4:22: unit "fortnight" is not one of second, minute, hour, day, week, month, year',
        ]),
        ("{unit: unknown, requests_per_unit: 1}", [
            '1.yaml:4:22: unit "unknown" is not one of second, minute, hour, day, week, month, year',
        ]),
        ('{unit: "", requests_per_unit: 1}', [
            '1.yaml:4:22: unit "" is not one of second, minute, hour, day, week, month, year',
        ]),
        ('{unit: day, requests_per_unit: "12"}', [
            ('1.yaml:4:46: requests_per_unit must be a whole number from 0 to 1125899906842624, not the text "12"; '
            "remove the quotes"),
        ]),
        ("{unit: day, requests_per_unit: -1}", [
            "1.yaml:4:46: requests_per_unit must be a whole number from 0 to 1125899906842624, not the number -1",
        ]),
        ("{unit: day, requests_per_unit: 1125899906842625}", [
            ("1.yaml:4:46: requests_per_unit must be a whole number from 0 to 1125899906842624, "
            "not the number 1125899906842625"),
        ]),
        ("{unit: day, requests_per_unit: 1.5}", [
            "1.yaml:4:46: requests_per_unit must be a whole number from 0 to 1125899906842624, not the number 1.5",
        ]),
        ("{unit: day, requests_per_unit: yes}", [
            "1.yaml:4:46: requests_per_unit must be a whole number from 0 to 1125899906842624, not the boolean yes",
        ]),
        ("{unlimited: true, unit: day}", ["1.yaml:4:33: unit contradicts unlimited: remove one of them"]),
        ("{unlimited: true, unit: foo}", [
            "1.yaml:4:33: unit contradicts unlimited: remove one of them",
            '1.yaml:4:39: unit "foo" is not one of second, minute, hour, day, week, month, year',
        ]),
        ("{unlimited: true, requests_per_unit: 0}", [
            "1.yaml:4:33: requests_per_unit contradicts unlimited: remove one of them",
        ]),
        ("{deny: true, unit: day, burst: 2}", [
            "1.yaml:4:28: unit contradicts deny: remove one of them",
            "1.yaml:4:39: burst contradicts deny: remove one of them",
        ]),
        ("{deny: true, allow: true}", ["1.yaml:4:16: deny contradicts allow: remove one of them"]),
        ("{allow: true, unlimited: true}", ["1.yaml:4:16: allow means the same as unlimited: remove one of them"]),
        ("{deny: forever}", ['1.yaml:4:22: deny must be true or false, not the text "forever"']),
        ("{unlimited: true, replaces: [{name: ''}]}", ["1.yaml:4:51: name must not be empty"]),
        ("{unlimited: true, replaces: [{}]}", ["1.yaml:4:44: an entry of replaces must have the name of a limit"]),
        ("{unlimited: true, name: own, replaces: [{name: own}]}", [
            '1.yaml:4:62: replaces "own" is the name of this limit itself',
        ]),
        ("{unlimited: true, shadow_mode: true}", [
            "1.yaml:4:33: shadow_mode does not belong in rate_limit, but in a descriptor or in otherwise",
        ]),
        ("{unlimited: true, unlimitd: true}", ['1.yaml:4:33: unknown key "unlimitd"; did you mean unlimited?']),
    ],
)  # fmt: skip
def test_a_malformed_limit_is_refused_at_its_place(text: str, expected: list[str]) -> None:
    assert problems(limit(text)) == expected


def test_a_count_in_quotes_is_refused_with_the_advice_to_take_them_away() -> None:
    (found,) = problems(limit('{unit: day, requests_per_unit: "12"}'))

    assert found.endswith('must be a whole number from 0 to 1125899906842624, not the text "12"; remove the quotes')


def test_all_problems_of_all_files_come_at_once_in_order() -> None:
    found = problems("domain: a\nkye: 1\nfoo: 2\n", "domain: [", "domain: c\ndescriptors: [{}]\n")

    assert [line.split(" ")[0] for line in found] == ["1.yaml:2:1:", "1.yaml:3:1:", "2.yaml:2:1:", "3.yaml:2:15:"]


def test_a_problem_that_two_aliases_lead_to_is_told_once() -> None:
    found = problems(
        descriptor("- key: a\n  descriptors: &below [{kye: x, key: y}]\n- key: b\n  descriptors: *below\n")
    )

    assert found == ['1.yaml:4:25: unknown key "kye"; did you mean key?']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("domian: shop", 'unknown key "domian"; did you mean domain?'),
        ("domain: a\ndescriptors: [{kye: b}]", 'unknown key "kye"; did you mean key?'),
        (
            "domain: a\ndescriptors: [{key: b, rate_limit: {unit: day, request_per_unit: 1}}]",
            'unknown key "request_per_unit"; did you mean requests_per_unit?',
        ),
        (
            "domain: a\ndescriptors: [{key: b, rate_limit: {units: day, requests_per_unit: 1}}]",
            'unknown key "units"; did you mean unit?',
        ),
    ],
)
def test_a_misspelt_key_is_not_said_to_be_missing_too(text: str, expected: str) -> None:
    assert [problem.split(": ", 1)[1] for problem in problems(text)] == [expected]


def test_a_file_wrong_in_a_million_places_is_told_of_in_a_thousand() -> None:
    assert len(problems("domain: a\n" + "".join(f"k{number}: 1\n" for number in range(5000)))) == MAX_PROBLEMS


def test_one_domain_in_two_files_is_refused_naming_both() -> None:
    assert problems("domain: shop", "domain: mail", "domain: shop") == [
        '3.yaml:1:9: domain "shop" is already in 1.yaml:1:9; MERGE_DOMAIN_CONFIG joins files'
    ]


def test_merged_files_add_to_the_roots_of_their_domain() -> None:
    merged = book(
        "domain: shop\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]",
        "domain: shop\ndescriptors: [{key: b, rate_limit: {unlimited: true}}]",
        merge_domains=True,
    )

    assert [rule.path for rule in merged.rules] == [("shop", "a"), ("shop", "b")]


def test_merged_files_with_the_same_descriptor_are_refused_naming_both_places() -> None:
    text = "domain: shop\ndescriptors:\n- key: a\n"

    assert problems(text, text, merge_domains=True) == [
        '2.yaml:3:3: descriptor "a" is given twice at this level, first at 1.yaml:3:3; join them'
    ]


def test_no_files_make_a_book_without_domains() -> None:
    assert not book().domains


def test_a_domain_without_descriptors_is_fine() -> None:
    empty = book("domain: a", "domain: b\ndescriptors:", "domain: c\ndescriptors: []")

    assert list(empty.domains) == ["a", "b", "c"]
    assert empty.rules == ()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("010", "010"),
        ("yes", "yes"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
        ("'~'", "~"),
        ('"0.5"', "0.5"),
        ("!!str 0.5", "0.5"),
        ("! 12", "12"),
        ('"a\\tb"', "a\tb"),
        ("|-\n    two\n    lines", "two\nlines"),
        ("two\n    words", "two words"),
        ("grüße 🎉", "grüße 🎉"),
    ],
)
def test_a_value_keeps_the_text_that_is_written(written: str, read: str) -> None:
    found = book(f"domain: d\ndescriptors:\n- key: k\n  value: {written}\n")

    assert list(found.domains["d"].children) == [f"k_{read}"]


@pytest.mark.parametrize("absent", ["~", "null", "", '""'])
def test_null_and_the_empty_text_are_no_value(absent: str) -> None:
    found = book(f"domain: d\ndescriptors:\n- key: k\n  value: {absent}\n")

    assert list(found.domains["d"].children) == ["k"]


@pytest.mark.parametrize(
    ("written", "requests"),
    [("0", 0), ("12", 12), ("+12", 12), ("0x10", 16), ("0o17", 15), ("017", 15), ("0b11", 3), ("1_000", 1000),
     ("1125899906842624", 1125899906842624), ('!!int "12"', 12)],
)  # fmt: skip
def test_a_count_is_read_in_every_form_of_yaml(written: str, requests: int) -> None:
    (rule,) = book(limit(f"{{unit: day, requests_per_unit: {written}}}")).rules

    assert rule.limit == Limit(requests, Unit.DAY, 86_400_000_000)


@pytest.mark.parametrize(("written", "flag"), [("true", True), ("yes", True), ("On", True), ("y", True), ("NO", False)])
def test_a_flag_is_read_in_every_form_of_yaml(written: str, flag: bool) -> None:
    (rule,) = book(descriptor(f"- key: a\n  shadow_mode: {written}\n  rate_limit: {{unlimited: true}}")).rules

    assert rule.shadow is flag


@pytest.mark.parametrize("written", ["minute", "MINUTE", "Minute"])
def test_a_unit_is_read_in_any_case(written: str) -> None:
    (rule,) = book(limit(f"{{unit: {written}, requests_per_unit: 1}}")).rules

    assert rule.limit == Limit(1, Unit.MINUTE, 60_000_000)


def test_every_option_reaches_its_rule() -> None:
    (rule,) = book("""\
        domain: shop
        descriptors:
          - key: plan
            value: free
            shadow_mode: true
            quota_mode: true
            detailed_metric: true
            metadata: {owner: billing, size: 010, list: [1, 2.5, ~, true], deep: {"1": x}, when: 2024-01-31}
            rate_limit:
              name: free
              unit: week
              requests_per_unit: 10
              replaces: [{name: a}, {name: b}]
        """).rules

    assert rule.domain == "shop"
    assert rule.limit == Limit(10, Unit.WEEK, 604_800_000_000)
    assert (rule.name, rule.replaces) == ("free", frozenset({"a", "b"}))
    assert rule.shadow
    assert rule.quota
    assert rule.detailed
    assert rule.near == 8
    assert rule.place == Place("1.yaml", 9, 5)
    assert rule.metadata == {
        "owner": "billing",
        "size": 8,
        "list": [1, 2.5, None, True],
        "deep": {"1": "x"},
        "when": "2024-01-31",
    }


@pytest.mark.parametrize(
    ("written", "metadata"),
    [
        ("{1: a, 0x1F: b, 1.50: c}", {"1": "a", "0x1F": "b", "1.50": "c"}),
        ("{yes: a, n: b, ~: c}", {"yes": "a", "n": "b", "": "c"}),
        ("{a: {n: 1}}", {"a": {"false": 1}}),
        ("{a: {1: x, 0x1F: w, 1.50: z}}", {"a": {"1": "x", "31": "w", "1.5": "z"}}),
        ("{a: [{~: x, True: w}]}", {"a": [{"<nil>": "x", "true": "w"}]}),
        ('{a: {"n": 1, 2024-01-31: 2}}', {"a": {"n": 1, "2024-01-31": 2}}),
    ],
)
def test_keys_of_metadata_that_are_no_text_have_the_names_that_envoyproxy_gives_them(
    written: str, metadata: object
) -> None:
    (rule,) = book(descriptor(f"- key: a\n  metadata: {written}\n  rate_limit: {{unlimited: true}}")).rules

    assert rule.metadata == metadata


def test_a_rate_limit_of_null_is_none() -> None:
    assert book(limit("~")).rules == ()


def test_an_anchor_is_used_as_often_as_one_likes() -> None:
    found = book("""\
        domain: shop
        descriptors:
          - key: a
            rate_limit: &ten {unit: day, requests_per_unit: 10}
          - key: b
            rate_limit: *ten
          - key: c
            rate_limit: {<<: *ten, unit: hour}
          - key: d
            rate_limit: {<<: [{unit: week}, *ten]}
        """)

    assert [(rule.limit.requests, rule.limit.unit) for rule in found.rules if rule.limit] == [
        (10, Unit.DAY),
        (10, Unit.DAY),
        (10, Unit.HOUR),
        (10, Unit.WEEK),
    ]


def test_of_a_key_and_a_later_merge_the_merge_wins_as_in_yaml_v2() -> None:
    (rule,) = book(limit("{unit: day, requests_per_unit: 1, <<: {unit: hour}}")).rules

    assert rule.limit == Limit(1, Unit.HOUR, 3_600_000_000)


def test_a_rule_takes_over_the_tallies_of_its_path() -> None:
    text = """\
        domain: shop
        descriptors:
          - {key: a, rate_limit: {unit: day, requests_per_unit: 10}}
          - {key: b, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
        """
    old = book(text)
    new = book(text.replace("10}", "20}"), previous=old)

    assert [rule.tally for rule in new.rules] == [rule.tally for rule in old.rules]
    assert new.rules[1].tallies is old.rules[1].tallies is not None


def test_a_rule_with_a_new_path_begins_with_new_tallies() -> None:
    old = book(limit("{unlimited: true}"))
    new = book(limit("{unlimited: true}").replace("user", "login"), previous=old)

    assert new.rules[0].tally is not old.rules[0].tally


def test_a_hundred_domains_with_ten_thousand_rules_load_whole() -> None:
    block = "".join(
        f"  - key: path\n    value: /{number}\n    rate_limit: {{unit: day, requests_per_unit: {number}}}\n"
        for number in range(100)
    )
    sources = [YamlText(f"{n}.yaml", f"domain: d{n}\ndescriptors:\n{block}".encode()) for n in range(100)]

    loaded: RuleBook = parse(sources)

    assert len(loaded.rules) == 10_000
    assert dedent(str(loaded.rules[-1])) == "<Rule d99.path_/99 at 99.yaml:302:5>"


LISTS = """\
    domain: shop
    descriptors:
      - key: user
        value_to_metric: true
        rate_limits:
          - {unit: second, requests_per_unit: 10, name: burst}
          - {unit: 1 day, requests_per_unit: 1000}
          - {unit: 5 minutes, requests_per_unit: 100}
          - {unit: minute, unit_multiplier: 5, requests_per_unit: 100, algorithm: sliding_window}
        descriptors:
          - {key: below, rate_limit: {unit: day, requests_per_unit: 1}}
    """


def test_each_limit_of_a_list_is_a_rule_named_by_its_window() -> None:
    found = book(LISTS)

    assert [".".join(rule.path) for rule in found.rules] == [
        "shop.user.per_second",
        "shop.user.per_day",
        "shop.user.per_5_minutes",
        "shop.user.per_5_minutes_sliding_window",
        "shop.user.below",
    ]
    assert [rule.name for rule in found.rules] == ["burst", "", "", "", ""]
    assert [rule.place.line if rule.place else 0 for rule in found.rules] == [6, 7, 8, 9, 11]
    assert found.match("shop", (("user", "x"),)) is found.rules[0]
    assert found.rules[0].beside == found.rules[1:4]


def test_each_limit_of_a_list_takes_over_its_tallies_wherever_it_stands() -> None:
    old = book(LISTS)
    new = book(LISTS.replace("- {unit: second, requests_per_unit: 10, name: burst}", ""), previous=old)

    assert [rule.path for rule in new.rules] == [rule.path for rule in old.rules[1:]]
    assert [rule.tally for rule in new.rules] == [rule.tally for rule in old.rules[1:]]


@pytest.mark.parametrize(
    ("charge", "expected"),
    [
        ("", [(False, ALONE), (False, ALONE), (False, LIST), (False, LIST)]),
        ("charge: each", [(False, ALONE), (False, ALONE), (False, ALONE), (False, ALONE)]),
        ("charge: together", [(True, REQUEST), (True, ALONE), (True, REQUEST), (True, REQUEST)]),
    ],
)
def test_limits_are_charged_as_the_descriptor_says_else_as_the_file_does(
    charge: str, expected: list[tuple[bool, int]]
) -> None:
    found = book(f"""\
        domain: shop
        {charge}
        descriptors:
          - {{key: a, rate_limit: &day {{unit: day, requests_per_unit: 1}}}}
          - {{key: b, charge: each, rate_limit: *day}}
          - {{key: c, rate_limits: [{{unit: second, requests_per_unit: 1}}, *day]}}
        """)

    assert [(bool(found.domains["shop"].together), rule.together) for rule in found.rules] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate_limits: {}", "5:16: rate_limits must be a list, not a map"),
        ("rate_limits: []", "5:3: rate_limits is an empty list; remove it, or write a limit"),
        ("rate_limits: [*day, 5]", "5:23: each of rate_limits must be a map, not the number 5"),
        ("rate_limits: [*day]\n  rate_limit: *day", (
            "5:3: rate_limits contradicts rate_limit: put that limit into the list")),
        ("rate_limits: [{unlimited: true}]", "5:18: unlimited has no meaning among several limits"),
        ("rate_limits: [*day, {deny: true}]", "5:24: deny has no meaning among several limits"),
        ("rate_limits:\n  - *day\n  - {unit: 24 hours, requests_per_unit: 9}", (
            "7:5: a fixed_window per day is given twice in rate_limits, first at 1.yaml:3:26")),
        ("rate_limits:\n  - *day\n  - {unit: second}", (
            "7:5: rate_limit has no requests_per_unit; write requests_per_unit: 0 to block")),
        ("rate_limits: [*day]\n  descriptors: [{key: per_day}]", (
            '6:18: descriptor "per_day" has the name of the limit of rate_limits at 1.yaml:3:26')),
        ("charge: both\n  rate_limit: *day", '5:11: charge "both" is not one of each, together, first'),
    ],
)  # fmt: skip
def test_a_malformed_list_of_limits_is_refused_at_its_place(text: str, expected: str) -> None:
    first = "domain: shop\ndescriptors:\n- {key: day, rate_limit: &day {unit: day, requests_per_unit: 1}}\n"

    assert problems(f"{first}- key: user\n  {text}") == [f"1.yaml:{expected}"]


def test_an_earlier_word_of_an_option_means_the_same() -> None:
    text = """
        domain: shop
        {otherwise}: {{rate_limit: {{deny: true, {lasting}: 1 hour}}}}
        descriptors:
          - {{key: ip, {prefix}: {{ipv6: 64}}, rate_limit: {{unit: day, requests_per_unit: 1}}}}
        """
    new = book(text.format(otherwise="otherwise", lasting="for", prefix="prefix"))
    old = book(text.format(otherwise="default", lasting="retry_after", prefix="group"))

    assert diff(old, new) == []
    assert [rule.retry_after for rule in old.rules] == [-1, HOUR]
    assert matched(old, "shop", (("ip", "2001:db8::1"),)) == ("shop.ip", "shop|ip~=2001:db8::/64")


def test_two_words_for_one_option_are_refused_and_messages_have_the_word_of_the_file() -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"

    assert problems(descriptor(f"- {{key: ip, prefix: {{ipv6: 64}}, group: {{ipv6: 48}}, {limit}}}")) == [
        "1.yaml:3:33: group is another word for prefix: remove one of them"
    ]
    assert problems(descriptor(f"- {{key: ip, group: [64], {limit}}}")) == [
        "1.yaml:3:20: group must be a map, not a list"
    ]


def test_a_malformed_value_makes_no_second_error() -> None:
    one, other = (
        f"- {{key: ip{more}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n" for more in ("", ", value: 1e1")
    )
    wrong = "value must be text, and 1e1 is a number; write it in quotes"

    assert problems(descriptor(one + other)) == [f"1.yaml:4:20: {wrong}"]
    assert problems(descriptor(other + one)) == [f"1.yaml:3:20: {wrong}"]
