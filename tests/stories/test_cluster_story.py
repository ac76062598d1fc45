"""Several instances with one Redis Cluster: exact, also while slots move."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from ratelimit_service.stores.redis.keys import slot_of
from tests.processes import start_service
from tests.stores.redis_groups import Move, start_cluster
from tests.stories.callers import call

ALGORITHMS = ("fixed_window", "sliding_window", "sub_windows", "sliding_log", "token_bucket", "leaky_bucket")
LIMITS = (1, 37, 150)

RULES = "domain: shop\ndescriptors:\n" + "".join(
    f"  - {{key: {algorithm}{limit}, rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: {algorithm}}}}}\n"
    for algorithm in ALGORITHMS
    for limit in LIMITS
)

ADMITTED = {(1, 1): 1, (37, 1): 37, (37, 5): 7, (150, 1): 150, (150, 7): 21}
"""Of a limit, how many calls of a cost."""

KINDS = {f"{name}{limit}:{cost}": most for name in ALGORITHMS for (limit, cost), most in ADMITTED.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("transport")
def test_three_services_with_four_callers_each_admit_exactly_the_limit_while_slots_move(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(start_cluster(tmp_path / "cluster"))
        environ = {"REDIS_URL": nodes.url, "REDIS_TYPE": "cluster", "STORE_DEADLINE": "10s"}
        services = [stack.enter_context(start_service(tmp_path / str(n), RULES, environ)) for n in range(3)]
        callers = stack.enter_context(call([service.grpc_port for service in services] * 4, 17, [*KINDS]))
        moves = 0
        while callers.busy:
            name = nodes.redises[moves % 3].cli("RANDOMKEY")
            if name:
                move = Move(nodes, slot_of(name))
                move.take(*move.keys()[:1])
                move.end()
                moves += 1
        allowed = callers.allowed()
        metrics = [service.metrics() for service in services]

    assert allowed == KINDS
    assert moves
    assert not any("ratelimit_store_errors_total{" in text for text in metrics)
