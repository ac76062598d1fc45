"""A limiter's verdict, whether its store decides at once or later."""

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Request


def check(limiter: Limiter, request: Request) -> Verdict:
    """The verdict on a request; RpcError when there is none."""
    plan = limiter.plan(request)
    verdict = limiter.decide_now(plan)
    if verdict is not None:
        return verdict
    answers: list[Verdict | RpcError] = []
    limiter.decide_later(plan, answers.append)
    (answer,) = answers
    if isinstance(answer, RpcError):
        raise answer
    return answer
