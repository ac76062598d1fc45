"""Clients that leave with calls under way, beside one that waits for each answer, with counters in Redis."""

import json
from pathlib import Path

import pytest

from tests.processes import Service, ask, eventually, start_service
from tests.redis import start_redis
from tests.sampled import sampled
from tests.stories.rude_clients import Client, be_healthy, cancel, hang_up, reset, run_late

LIMIT = 4_000_000_000
RULES = f"domain: shop\ndescriptors: [{{key: client, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}]\n"

RUDE = {"cancel": cancel, "late": run_late, "reset": reset, "hang_up": hang_up}


def charged(service: Service, name: str) -> int:
    """What is on the counter in Redis: a look tells."""
    descriptor = {"entries": [{"key": "client", "value": name}], "hitsAddend": 0}
    body = json.dumps({"domain": "shop", "descriptors": [descriptor]})
    answer = json.loads(ask(service.http_port, "/json", method="POST", body=body).body)
    return LIMIT - int(answer["statuses"][0]["limitRemaining"])


@pytest.mark.slow
@pytest.mark.parametrize("transport", sampled(["http2", "grpcio"], 2))
def test_clients_that_leave_cost_no_other_its_answer_and_no_counter_its_count(tmp_path: Path, transport: str) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s", "TRANSPORT": transport}
        with start_service(tmp_path / "service", RULES, environ) as service:
            port = service.grpc_port
            healthy = [Client(f"healthy{number}", port, be_healthy) for number in range(2)]
            rude = [Client(name, port, leave, healthy) for name, leave in RUDE.items()]
            clients = healthy + rude
            eventually(
                lambda: all(client.sent >= 300 for client in clients) or any(client.failures for client in clients),
                "all have called three hundred times",
                180,
            )
            for client in clients:
                client.finish()
            counts: dict[str, int] = {}

            def settled() -> bool:
                # What was under way last may still be charged: each call charges two counters, in one step.
                counts.update({client.name: charged(service, client.name) for client in clients})
                return charged(service, "everybody") == sum(counts.values())

            eventually(settled, "every call charged both of its counters, or none")
            log = service.log

        assert [client.failures for client in clients] == [[]] * len(clients)
        for client in healthy:
            assert counts[client.name] == client.answered == client.sent
        for client in rude:
            assert client.answered <= counts[client.name] <= client.sent, client.name
        assert sum(counts[client.name] for client in rude) > sum(client.answered for client in rude)
        assert "Traceback" not in log
        assert "store lost" not in log
