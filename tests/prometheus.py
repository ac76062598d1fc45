"""A real Prometheus for tests, which ends with them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests import peers
from tests.ports import free_port
from tests.processes import Process, ask


class Prometheus(Process):
    """A Prometheus at work."""

    port: int

    def api(self, path: str, /, **parameters: str) -> Any:
        """The data of its answer; an AssertionError says what it refused."""
        reply = ask(self.port, f"/api/v1/{path}?{urlencode(parameters)}")
        assert reply.status == 200, f"{parameters}: {reply.body}"
        return json.loads(reply.body)["data"]

    def labels(self, expression: str) -> list[Mapping[str, str]]:
        """The labels of each series that the expression has now."""
        return [series["metric"] for series in self.api("query", query=expression)["result"]]


@contextmanager
def start_prometheus(folder: Path, config: Mapping[str, Any], *flags: str) -> Iterator[Prometheus]:
    """A Prometheus with this configuration, once it answers; the paths in it are relative to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    port = free_port()
    own = ("--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with Prometheus([str(peers.prometheus()), *own, *flags], folder, {}) as prometheus:
        prometheus.port = port
        prometheus.wait_until(lambda: ask(port, "/-/ready").status == 200, "Prometheus is ready")
        yield prometheus
