"""The reasons of an answer, for a caller that asks: proto/ratelimit/v1/explanation.proto says how."""

from collections.abc import Sequence
from typing import Final

from ratelimit_service.api.generated.ratelimit.v1.explanation_pb2 import Explain, Explained, Explanation
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit

EXPLAIN: Final = Explain(explain=True).SerializeToString()
"""Appended to the bytes of a RateLimitRequest, it asks for the reasons."""


def asks_to_explain(request: bytes) -> bool:
    """Whether the bytes of a RateLimitRequest, which is a good one, ask for the reasons."""
    return EXPLAIN in request and Explain.FromString(request).explain


def explanation(hits: Sequence[Hit | None], unmatched: Sequence[str]) -> bytes:
    """The reasons, to be appended to the bytes of a RateLimitResponse."""
    made = Explanation(
        descriptors=[
            Explanation.Descriptor(unmatched=why) if hit is None else _of(hit)
            for hit, why in zip(hits, unmatched, strict=True)
        ]
    )
    encoded: bytes = Explained(explanation=made).SerializeToString()
    return encoded


def explanation_in(answer: bytes) -> Explanation:
    """The reasons in the bytes of a RateLimitResponse; empty when the service gives none."""
    return Explained.FromString(answer).explanation


def _of(hit: Hit) -> Explanation.Descriptor:
    rule, by_policy = hit.rule, hit.by_policy
    return Explanation.Descriptor(
        rule=_name(rule),
        place="" if rule.place is None else str(rule.place),
        policy="" if by_policy is None else by_policy.policy,
        reason="" if by_policy is None else by_policy.reason,
    )


def _name(rule: Rule) -> str:
    return "" if rule.override else ".".join(rule.path)
