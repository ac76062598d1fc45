"""More clients than there are files for."""

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.processes import start_service
from tests.stories.rude_clients import ask_on, question

pytestmark = pytest.mark.usefixtures("transport")

RULES = "domain: shop\ndescriptors: [{key: client, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"
ALONE = [("grpc.use_local_subchannel_pool", 1)]


def test_when_files_run_out_those_who_are_here_go_on_and_newcomers_are_served_afterwards(tmp_path: Path) -> None:
    with (
        start_service(tmp_path, RULES) as service,
        grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}", ALONE) as old,
    ):
        ask, request = ask_on(old), question("ada")
        ask(request, timeout=20)
        few = len(list(Path(f"/proc/{service.pid}/fd").iterdir())) + 10
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (few, few))
        with ExitStack() as crowd:
            for _ in range(50):
                crowd.enter_context(socket.create_connection(("127.0.0.1", service.grpc_port)))
            answers = [ask(request, timeout=20) for _ in range(100)]
        with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}", ALONE) as new:
            late = ask_on(new)(request, timeout=20, wait_for_ready=True)

        assert [len(answer.statuses) for answer in (*answers, late)] == [2] * 101
        assert service.stop() == 0


def test_http_connections_take_no_files_of_grpcs(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, {"HTTP_MAX_CONNECTIONS": "20"}) as service:
        few = len(list(Path(f"/proc/{service.pid}/fd").iterdir())) + 100
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (few, few))
        with ExitStack() as crowd:
            for _ in range(300):
                crowd.enter_context(socket.create_connection(("127.0.0.1", service.http_port)))
            with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}", ALONE) as new:
                answers = [ask_on(new)(question("ada"), timeout=20) for _ in range(100)]
        scraped = service.metrics()

    assert [len(answer.statuses) for answer in answers] == [2] * 100
    assert int(scraped.partition("\nratelimit_http_connections ")[2].split()[0]) <= 20
