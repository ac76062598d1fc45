"""A control plane with go-control-plane's own server, as a process that ends with the test."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import peers
from tests.processes import Process
from tests.transports.certificates import Issued


class ControlPlane(Process):
    """It at work, with the snapshots of one node."""

    def __init__(self, folder: Path, node: str, port: int, tls: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        self._pipe = folder / "pipe"
        self._pipe.unlink(missing_ok=True)
        os.mkfifo(self._pipe)
        command = [str(peers.control_plane()), "-address", f"127.0.0.1:{port}", "-node", node]
        super().__init__([*command, "-pipe", str(self._pipe), *tls], folder, {})

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(json.loads(self.log.partition("\n")[0])["port"])

    @property
    def environ(self) -> dict[str, str]:
        """The settings of a service that it gives rules to."""
        return {
            "CONFIG_TYPE": "GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{self.port}",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": "50ms",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL": "200ms",
        }

    def publish(self, version: str, configs: Sequence[Mapping[str, Any]]) -> None:
        """Have this snapshot, of configs in protobuf's JSON."""
        with self._pipe.open("w", encoding="utf-8") as pipe:
            pipe.write(json.dumps({"version": version, "configs": configs}) + "\n")

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What clients have sent: stream, version, nonce, error and its code."""
        lines = self.log.splitlines()
        return [json.loads(line) for line in lines[1:] if line.startswith("{") and line.endswith("}")]

    def wait_for_ack(self, version: str, streams: int = 1) -> None:
        """Wait until this version is acknowledged on so many streams."""

        def acknowledged() -> bool:
            acks = [each for each in self.requests if each["version"] == version and each["nonce"]]
            return len({each["stream"] for each in acks if not each["code"] and not each["error"]}) >= streams

        self.wait_until(acknowledged, f"version {version} is acknowledged")


@contextmanager
def start_control_plane(
    folder: Path, *, node: str = "default", port: int = 0, cert: Issued | None = None, ca: Path | None = None
) -> Iterator[ControlPlane]:
    """Once it listens; with a certificate it speaks TLS 1.3, and clients must have one of that CA."""
    tls = [] if cert is None else ["-cert", str(cert.cert), "-key", str(cert.key), "-ca", str(ca)]
    with ControlPlane(folder, node, port, tls) as plane:
        plane.wait_until(lambda: "\n" in plane.log, "it listens")
        yield plane
