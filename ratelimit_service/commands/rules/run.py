"""Runs the cases of `ratelimit rules test` by the service's own limiter, with counters in memory and a set clock."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict

from ratelimit_service.api.explanation import EXPLAIN, decode_explanation
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.generated.ratelimit.v1.explanation_pb2 import Explanation
from ratelimit_service.api.metadata import DECIDED
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.request import decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.commands.request import as_message, count_of
from ratelimit_service.commands.rules.cases import Case, CaseStep, Expected
from ratelimit_service.commands.rules.expected import limits_in_words
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.model import MAX_FIELD
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import FIRST, Rule, entries_in_words
from ratelimit_service.stores.memory import MemoryStore

_MAX_COUNTERS: Final = 100_000


class Mismatch(NamedTuple):
    """Something that a request did not get."""

    line: int
    """Of the step in the file."""
    what: str
    """What was expected of which descriptor: `limit`, `rule of user=ada`."""
    expected: str
    got: str
    rule: str
    """The rule that applied to the descriptor, with its place; empty when what differs is not of one."""


def run_case(case: Case, book: RuleBook, encoder: ResponseEncoder) -> list[Mismatch]:
    """The failures of the first step that fails; empty when the case passes."""
    world = _World(case.at, book, encoder)
    return next((found for step in case.steps if (found := world.run(step))), [])


class _Answer(NamedTuple):
    """The answer that a request got."""

    message: RateLimitResponse
    explanation: Explanation
    rules: Sequence[Sequence[Rule]]
    """The rules that apply to each descriptor."""
    shown: Sequence[str]
    """Each descriptor, with digests in place of secret values."""


class _World:
    """A service with untouched counters, whose time passes only between steps."""

    def __init__(self, at: int, book: RuleBook, encoder: ResponseEncoder) -> None:
        self._now = at
        self._turn = at
        """The time in queues."""
        self._turns = TurnQueues(clock=lambda: self._turn)
        self._limiter = Limiter(MemoryStore(_MAX_COUNTERS, self._clock), turns=self._turns)
        self._limiter.book = book
        self._method = ShouldRateLimit(self._limiter, encoder)

    def _clock(self) -> int:
        return self._now

    def run(self, step: CaseStep) -> list[Mismatch]:
        """Run the step; returns what it did not get."""
        self._now += step.after
        body = as_message(step.domain, step.descriptors).SerializeToString() + EXPLAIN
        try:
            rules = self._rules(body)
            for number in range(1, step.times):
                if found := list(_answer_differs(step, self._send(step, body, rules), number)):
                    return found
            answer = self._send(step, body, rules)
        except RpcError as error:
            return [Mismatch(step.line, "answer", "a response", f"{error.status.name}: {error.message}", "")]
        return [*_answer_differs(step, answer, step.times), *_differs(step, answer)]

    def _rules(self, body: bytes) -> Sequence[Sequence[Rule]]:
        hits = self._limiter.plan(decode(body)).verdict.hits
        return [[] if hit is None else [hit.rule, *(beside.rule for beside in hit.beside)] for hit in hits]

    def _send(self, step: CaseStep, body: bytes, rules: Sequence[Sequence[Rule]]) -> _Answer:
        replies: list[bytes | RpcError] = []
        self._turn = self._now
        self._method.call(body, replies.append)
        while not replies and self._turns.due is not None:  # it waits in a queue: its answer is known already
            self._turn = self._turns.due
            self._turns.run()
        [reply] = replies
        if isinstance(reply, RpcError):
            raise reply
        shown = [entries_in_words(self._limiter.shown(step.domain, each.entries)) for each in step.descriptors]
        return _Answer(RateLimitResponse.FromString(reply), decode_explanation(reply), rules, shown)


_ANSWERS: Final = {RateLimitResponse.OK: "allowed", RateLimitResponse.OVER_LIMIT: "refused"}


def _answer_differs(step: CaseStep, answer: _Answer, number: int) -> Iterator[Mismatch]:
    expected, got = step.expected.answer, _ANSWERS[answer.message.overall_code]
    if expected is not None and expected != got:
        what = "answer" if step.times == 1 else f"answer to request {number:,} of {step.times:,}"
        yield Mismatch(step.line, what, expected, got, "; ".join(_places(answer)))


_OK: Final = RateLimitResponse.OK


def _differs(step: CaseStep, answer: _Answer) -> Iterator[Mismatch]:
    """The differences of the last response from what is expected, except for the answer itself."""
    expected, message = step.expected, answer.message
    places = _places(answer)
    for index, status in enumerate(message.statuses):
        of = f" of {answer.shown[index]}" if len(message.statuses) > 1 else ""
        for what, want, agrees, got in _of_descriptor(expected, index, answer, status):
            if not agrees:
                yield Mismatch(step.line, f"{what}{of}", want, got, places[index])
    headers = {header.key.lower(): header.value for header in message.response_headers_to_add}
    for name, value in (expected.headers or {}).items():
        if headers.get(name) != value:
            yield Mismatch(step.line, f"header {name}", _or_none(value), _or_none(headers.get(name)), "")
    metadata = _metadata(message)
    for name, value in (expected.metadata or {}).items():
        if not _has(metadata.get(name), value):
            yield Mismatch(step.line, f"metadata {name}", f"{value}", _or_none(metadata.get(name)), "")


def _of_descriptor(
    expected: Expected, index: int, answer: _Answer, status: RateLimitResponse.DescriptorStatus
) -> Iterator[tuple[str, str, bool, str]]:
    """Each expectation: what, the value expected, whether the descriptor got it, and what it got."""
    rules = answer.rules[index]
    if expected.limit is not None and (limit := expected.limit[index]) is not None:
        yield "limit", limit.text, limit.fits(rules), limits_in_words(rules)
    if expected.rule is not None and (rule := expected.rule[index]) is not None:
        by = answer.explanation.descriptors[index].rule
        found = [each for each in rules if each.together != FIRST or _path(each) == by]
        names = {name for each in found for name in _names(each)}
        yield "rule", rule, rule in names, _path(found[0]) if found else "none"
    if expected.denied is not None and (denied := expected.denied[index]) is not None:
        got = status.code != _OK
        yield "denied", _flag(denied), denied is got, _flag(got)
    if expected.remaining is not None and (remaining := expected.remaining[index]) is not None:
        left = status.limit_remaining
        yield "remaining", f"{remaining}", min(remaining, MAX_FIELD) == left, count_of(left)
    if expected.until_reset is not None and (until := expected.until_reset[index]) is not None:
        seconds = status.duration_until_reset.seconds
        yield "until_reset", f"{until}s", until == seconds, f"{seconds}s"


def _names(rule: Rule) -> Iterator[str]:
    """The names by which a case may call the rule: its path with the domain or without, or its name."""
    yield _path(rule)
    yield ".".join(rule.path[1:])
    if rule.path_suffix:
        yield ".".join(rule.path[: -len(rule.path_suffix)])
        yield ".".join(rule.path[1 : -len(rule.path_suffix)])
    if rule.name:
        yield rule.name


def _path(rule: Rule) -> str:
    return ".".join(rule.path)


def _places(answer: _Answer) -> Sequence[str]:
    """The rule of each descriptor with its place, or why it has none."""
    return [each.unmatched or f"{each.rule}, {each.place}".strip(", ") for each in answer.explanation.descriptors]


def _metadata(message: RateLimitResponse) -> Mapping[str, Any]:
    """The `metadata` of rules, and what `rule_metadata` says of the rules that decided."""
    found: dict[str, Any] = MessageToDict(message.dynamic_metadata)
    return {**{key: found[key] for key in DECIDED if key in found}, **found.get("metadata", {})}


def _has(found: object, expected: object) -> bool:
    """Whether it is what is expected; of a map, whether each key given has its value."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return all(_has(found.get(key), value) for key, value in expected.items())
    return found == expected


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _or_none(value: object) -> str:
    return "none" if value is None else f"{value}"
