"""Envoy asks over TLS, with a certificate of its own, while those of the service change."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.envoy.load import load
from tests.envoy.proxy import Envoy, bootstrap, by, route, start_envoy
from tests.processes import Service, start_service
from tests.transports.certificates import Issued, authority, issue

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"
HEADERS: Final = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true"}
_TLS: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


class Certificates:
    """Of both sides, by one authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ca = authority(folder)
        self.server = issue(self.ca, "server", "DNS:ratelimit")
        self.renewed = issue(self.ca, "renewed", "DNS:ratelimit")
        self.envoy = issue(self.ca, "envoy", "URI:spiffe://mesh/envoy")
        self.other = issue(self.ca, "other", "URI:spiffe://mesh/other")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made once."""
    return Certificates(tmp_path_factory.mktemp("certificates") / "all")


@pytest.fixture
def service(tmp_path: Path, transport: str, certificates: Certificates) -> Iterator[Service]:
    """It lets in nobody but Envoy."""
    environ = {
        "TRANSPORT": transport,
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": shutil.copy(certificates.server.cert, tmp_path / "tls.crt"),
        "GRPC_SERVER_TLS_KEY": shutil.copy(certificates.server.key, tmp_path / "tls.key"),
        "GRPC_CLIENT_TLS_CACERT": str(certificates.ca.cert),
        "GRPC_CLIENT_TLS_SAN": "spiffe://mesh/envoy",
    }
    with start_service(
        tmp_path / "service", RULES, HEADERS | {name: str(value) for name, value in environ.items()}
    ) as service:
        yield service


def test_envoy_asks_over_mutual_tls_while_the_certificate_is_renewed(
    service: Service, certificates: Certificates, tmp_path: Path
) -> None:
    """Calls on the connections that there are go on, and an Envoy that comes later finds the new one."""
    with start_envoy(tmp_path / "first", asking(service, certificates, certificates.envoy)) as first:
        with load(first.port, "/") as running:
            running.wait_for_value("1000000")
            shutil.copy(certificates.renewed.key, tmp_path / "tls.key")
            shutil.copy(certificates.renewed.cert, tmp_path / "tls.crt")
            with start_envoy(tmp_path / "second", asking(service, certificates, certificates.envoy)) as second:
                later = second.statuses(3, "/")
                running.wait_for(100)

        assert set(running.statuses) == {200}, running
        assert later == [200, 200, 200]
        assert handshakes(first) == (1, 0)
        assert f"certificate reloaded from {tmp_path / 'tls.crt'}" in service.log


@pytest.mark.parametrize("shows", ["another name", "nothing", "plain text"])
def test_an_envoy_that_may_not_ask_has_no_answer(
    service: Service, certificates: Certificates, tmp_path: Path, shows: str
) -> None:
    with start_envoy(
        tmp_path / "envoy",
        bootstrap([service.grpc_port], [route("/", by(("user", "=ada")))], filter_options={"failure_mode_deny": True})
        if shows == "plain text"
        else asking(service, certificates, certificates.other if shows == "another name" else None),
    ) as envoy:
        assert envoy.statuses(3, "/") == [500, 500, 500]
        assert envoy.stat("cluster.echo.ratelimit.error") == 3
        assert 'ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 0\n' in service.metrics()


def asking(service: Service, certificates: Certificates, own: Issued | None) -> dict[str, Any]:
    """An Envoy that trusts the authority, looks at the name, and shows its own certificate, if it has one."""
    configuration = bootstrap(
        [service.grpc_port], [route("/", by(("user", "=ada")))], filter_options={"failure_mode_deny": True}
    )
    name = {"san_type": "DNS", "matcher": {"exact": "ratelimit"}}
    tls: dict[str, Any] = {
        "validation_context": {
            "trusted_ca": {"filename": str(certificates.ca.cert)},
            "match_typed_subject_alt_names": [name],
        }
    }
    if own is not None:
        shown = {"certificate_chain": {"filename": str(own.cert)}, "private_key": {"filename": str(own.key)}}
        tls["tls_certificates"] = [shown]
    (cluster,) = (
        cluster for cluster in configuration["static_resources"]["clusters"] if cluster["name"] == "ratelimit"
    )
    cluster["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": _TLS, "sni": "ratelimit", "common_tls_context": tls},
    }
    return configuration


def handshakes(envoy: Envoy) -> tuple[int, int]:
    """Connections to the service, and those that were refused."""
    return envoy.stat("cluster.ratelimit.ssl.handshake"), envoy.stat("cluster.ratelimit.ssl.connection_error")
