"""A limiter's verdict, whether its store decides at once or later."""

from copy import copy
from itertools import chain
from typing import Any

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Request
from ratelimit_service.stores.hit import Hit


def check(limiter: Limiter, request: Request) -> Verdict:
    """The verdict on a request; RpcError when there is none."""
    plan = limiter.plan(request)
    verdict = limiter.decide_now(plan, kept, b"")
    if verdict is not None:
        return verdict
    answers: list[Verdict | RpcError] = []
    limiter.decide_later(plan, answers.append)
    (answer,) = answers
    if isinstance(answer, RpcError):
        raise answer
    return answer


def kept(verdict: Verdict, _body: bytes) -> Verdict:
    """A copy: the decisions of a verdict end with its encoding."""
    hits = [copy(hit) if hit is not None else None for hit in verdict.hits]
    return Verdict(verdict.allowed, hits, verdict.unmatched, verdict.idle_quota)


def values(thing: Any) -> Any:
    """What is in each slot of a plan, of its verdict and of its hits; slots without a value are left out."""
    match thing:
        case Plan() | Verdict() | Hit():
            slots = chain.from_iterable(getattr(each, "__slots__", ()) for each in type(thing).__mro__)
            return {slot: values(getattr(thing, slot)) for slot in slots if hasattr(thing, slot)}
        case list() | tuple():
            return [values(each) for each in thing]
        case _:
            return thing
