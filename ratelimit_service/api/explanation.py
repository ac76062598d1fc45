"""The reasons of a decision, for a client that requests them as proto/ratelimit/v1/explanation.proto says."""

from collections.abc import Sequence
from typing import Final

from ratelimit_service.api.generated.ratelimit.v1.explanation_pb2 import Explain, Explained, Explanation
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit

EXPLAIN: Final = Explain(explain=True).SerializeToString()
"""Appended to the bytes of a RateLimitRequest, this requests the reasons."""


def requests_explanation(request: bytes) -> bool:
    """Whether the bytes of a valid RateLimitRequest request the reasons."""
    return EXPLAIN in request and Explain.FromString(request).explain


def encode_explanation(hits: Sequence[Hit | None], unmatched: Sequence[str], retry_after: int) -> bytes:
    """The reasons as bytes to append to those of a RateLimitResponse; `retry_after` in seconds, 0 if there is none."""
    explanation = Explanation(
        descriptors=[
            Explanation.Descriptor(unmatched=why) if hit is None else _of(hit)
            for hit, why in zip(hits, unmatched, strict=True)
        ],
        retry_after=retry_after,
    )
    encoded: bytes = Explained(explanation=explanation).SerializeToString()
    return encoded


def decode_explanation(response: bytes) -> Explanation:
    """The reasons in the bytes of a RateLimitResponse; empty if it has none."""
    return Explained.FromString(response).explanation


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
