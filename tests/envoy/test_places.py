"""Requests under way through a real Envoy: it takes a place for each, and gives it back when the stream is done."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.envoy.proxy import Envoy, Json, address, bootstrap, by, cluster, endpoint, route, start_envoy
from tests.processes import Service, ask, eventually, start_service

RULES = """
domain: shop
descriptors:
  - key: path
    value: /export
    descriptors:
      - key: request_id
        rate_limit: {concurrency: 2, hold: 1 hour, place: request_id}
  - key: path
    value: /short
    descriptors:
      - key: request_id
        rate_limit: {concurrency: 1, hold: 5s, place: request_id}
"""


class Upstream:
    """What stands behind Envoy: it answers a request when it is told to, the first ones with these statuses."""

    def __init__(self) -> None:
        self.waiting: list[threading.Event] = []
        self.statuses: list[int] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if upstream.statuses:
                    self.answer(upstream.statuses.pop(0))
                    return
                done = threading.Event()
                upstream.waiting.append(done)
                done.wait(60)
                self.answer(200)

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def finish(self, *which: int) -> None:
        """Answer these requests, counted in order of arrival."""
        for index in which:
            self.waiting[index].set()


@contextmanager
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.finish(*range(len(made.waiting)))
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def noted(folder: Path) -> str:
    """Envoy's half as `ratelimit check` prints it, for both rules the same."""
    (folder / "rules.yaml").write_text(RULES)
    result = CliRunner().invoke(main, ["check", "--json", str(folder / "rules.yaml")])
    (note,) = json.loads(result.stdout)["notes"]
    return str(note["message"]).partition("\n")[2]


def both(*entries: tuple[str, str]) -> list[Json]:
    """Envoy's half: what takes a place, and what gives it back."""
    return [
        by(*entries, hits_addend={"number": 1}),
        by(*entries, hits_addend={"number": 1, "is_negative_hits": True}, apply_on_stream_done=True),
    ]


class Shop:
    """A service, an Envoy before it and what stands behind."""

    def __init__(self, service: Service, envoy: Envoy, upstream: Upstream) -> None:
        self.service, self.envoy, self.upstream = service, envoy, upstream
        self.pool = ThreadPoolExecutor(16)

    def begin(self, path: str = "/export", request: str = "", client: str = "") -> Future[int]:
        """Send a request; its status when it ends."""
        headers = {"x-request-id": request} if request else {}
        headers |= {"x-forwarded-for": client} if client else {}
        return self.pool.submit(lambda: ask(self.envoy.port, path, headers).status)

    def under_way(self, count: int) -> None:
        """Wait until so many requests in all have reached what stands behind."""
        eventually(lambda: len(self.upstream.waiting) >= count, f"{count} requests are under way")

    def free(self, path: str = "/export") -> int:
        """How many places are free."""
        entries = [{"key": "path", "value": path}, {"key": "request_id", "value": "a look"}]
        body = {"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": 0}]}
        found: Any = json.loads(ask(self.service.http_port, "/json", method="POST", body=json.dumps(body)).body)
        return int(found["statuses"][0].get("limitRemaining", 0))

    def given_back(self, path: str = "/export") -> int:
        """How many refunds there were."""
        return self.counted("total_negative_hits", path)

    def hits(self) -> int:
        """How many charges there were."""
        return self.counted("total_hits", "/export")

    def counted(self, number: str, path: str) -> int:
        """A number of the path's rule."""
        labels = f'domain="shop",key1="path_{path}",key2="request_id"'
        found = re.search(
            rf"^ratelimit_service_rate_limit_{number}{{{labels}}} (\d+)", self.service.metrics(), re.MULTILINE
        )
        return int(found[1]) if found else 0

    def until_free(self, count: int, path: str = "/export") -> None:
        """Wait until so many places are free."""
        eventually(lambda: self.free(path) == count, f"{count} places are free")


@contextmanager
def started(
    folder: Path, filter_options: Json | None = None, routes: list[Json] | None = None, **manager: Any
) -> Iterator[Shop]:
    in_filter = yaml.safe_load(noted(folder))
    plain = {"match": {"prefix": "/"}, "route": {"cluster": "work"}}
    with upstream() as behind, start_service(folder / "service", RULES) as service:
        configuration = bootstrap(
            [service.grpc_port],
            routes or [plain],
            filter_options=in_filter if filter_options is None else filter_options,
        )
        ingress = configuration["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        ingress["typed_config"] |= manager
        clusters = configuration["static_resources"]["clusters"]
        clusters.append(cluster("work", [endpoint(address(behind.port))]))
        with start_envoy(folder / "envoy", configuration) as envoy:
            yield Shop(service, envoy, behind)


def test_a_request_holds_a_place_until_its_stream_is_done_and_a_refused_one_frees_none(tmp_path: Path) -> None:
    with started(tmp_path) as shop:
        one, two = shop.begin(), shop.begin()
        shop.under_way(2)
        refused = [shop.begin().result(60) for _ in range(3)]
        eventually(lambda: shop.given_back() == 3, "Envoy has given back what was refused")
        still, none = shop.begin().result(60), shop.free()
        shop.upstream.finish(0)
        shop.until_free(1)
        three = shop.begin()
        shop.under_way(3)
        shop.upstream.finish(1, 2)
        shop.until_free(2)

        assert refused == [429, 429, 429]
        assert (still, none) == (429, 0)
        assert [one.result(60), two.result(60), three.result(60)] == [200, 200, 200]


def test_a_client_that_goes_away_gives_its_place_back(tmp_path: Path) -> None:
    with started(tmp_path) as shop:
        connection = HTTPConnection("127.0.0.1", shop.envoy.port)
        connection.request("GET", "/export")
        shop.under_way(1)
        taken = shop.free()
        connection.close()

        shop.until_free(2)
        assert taken == 1


def test_a_retry_with_the_same_id_and_a_retry_by_envoy_take_one_place(tmp_path: Path) -> None:
    """Envoy sends a request again without asking again; a client that does so names its request itself."""
    retry = {"retry_on": "5xx", "num_retries": 3, "retry_back_off": {"base_interval": "0.001s"}}
    with started(
        tmp_path, routes=[{"match": {"prefix": "/"}, "route": {"cluster": "work", "retry_policy": retry}}]
    ) as shop:
        shop.upstream.statuses = [503, 503]
        by_envoy = shop.begin()
        shop.under_way(1)
        after_envoys = shop.free()
        first, again = shop.begin(request="the-same"), shop.begin(request="the-same")
        shop.under_way(3)
        after_clients = shop.free()
        shop.upstream.finish(0, 1, 2)
        shop.until_free(2)

        assert (after_envoys, after_clients) == (1, 0)
        assert [each.result(60) for each in (by_envoy, first, again)] == [200, 200, 200]


def test_the_places_of_an_envoy_that_is_killed_are_free_after_hold(tmp_path: Path) -> None:
    """Of /short that is 5 seconds, so that the test need not wait longer; nothing but time can free it."""
    with started(tmp_path) as shop:
        shop.begin("/short")
        shop.under_way(1)
        shop.envoy.kill()

        shop.until_free(1, "/short")
        assert (shop.counted("places_expired_total", "/short"), shop.given_back("/short")) == (1, 0)


def test_written_in_the_route_envoy_gives_nothing_back(tmp_path: Path) -> None:
    """It passes over hits_addend there: the second call looks like a request, and renews the place."""
    entries = ("path", ":path"), ("request_id", "x-request-id")
    with started(
        tmp_path, {}, [route("/", *both(*entries)) | {"route": {"cluster": "work", "rate_limits": both(*entries)}}]
    ) as shop:
        request = shop.begin()
        shop.under_way(1)
        shop.upstream.finish(0)

        assert request.result(60) == 200
        eventually(lambda: shop.hits() == 2, "Envoy has asked twice")
        assert (shop.free(), shop.given_back()) == (1, 0)


def test_in_the_route_s_filter_configuration_it_works_as_in_the_filter(tmp_path: Path) -> None:
    entries = ("path", ":path"), ("request_id", "x-request-id")
    made = route("/", per_route={"rate_limits": both(*entries)}) | {"route": {"cluster": "work"}}
    with started(tmp_path, {}, [made]) as shop:
        request = shop.begin()
        shop.under_way(1)
        taken = shop.free()
        shop.upstream.finish(0)

        assert request.result(60) == 200
        shop.until_free(2)
        assert taken == 1


def test_a_client_from_outside_does_not_choose_its_id_where_envoy_knows_its_address(tmp_path: Path) -> None:
    with started(tmp_path, use_remote_address=True, xff_num_trusted_hops=1) as shop:
        first, second = (shop.begin(request="always-the-same", client="203.0.113.7") for _ in range(2))
        shop.under_way(2)
        free = shop.free()
        shop.upstream.finish(0, 1)

        assert (first.result(60), second.result(60), free) == (200, 200, 0)
