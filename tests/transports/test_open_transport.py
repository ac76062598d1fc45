"""The registry: the transport the settings name, with the operator's settings."""

import pytest

from ratelimit_service.settings import Settings
from ratelimit_service.system.clock import HOUR, SECOND
from ratelimit_service.transports import grpcio, open_transport
from ratelimit_service.transports.grpcio import GrpcioTransport
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions, Tls


@pytest.mark.parametrize(("name", "transport"), [("grpcio", GrpcioTransport), ("http2", Http2Transport)])
def test_the_transport_is_the_one_the_settings_name(name: str, transport: type) -> None:
    assert isinstance(open_transport(Settings.model_validate({"transport": name})), transport)


def test_the_defaults_of_the_settings_are_those_of_a_transport() -> None:
    assert GrpcOptions.from_settings(Settings()) == GrpcOptions()


def test_every_setting_arrives() -> None:
    settings = Settings.model_validate(
        {
            "grpc_max_message_size": "1000",
            "grpc_keepalive_time": "30s",
            "grpc_keepalive_timeout": "5s",
            "grpc_max_connection_age": "2h",
            "grpc_max_connection_age_grace": "1m",
            "grpc_max_connection_idle": "10m",
            "grpc_max_connections": "100",
            "grpc_max_concurrent_streams": "50",
            "grpc_max_header_list_size": "9000",
            "grpc_max_connection_memory": "2000000",
            "grpc_max_memory": "30000000",
            "grpc_preface_timeout": "3s",
            "grpc_server_use_tls": "true",
            "grpc_server_tls_cert": "cert.pem",
            "grpc_server_tls_key": "key.pem",
            "grpc_client_tls_cacert": "ca.pem",
            "grpc_client_tls_san": "envoy.local",
        }
    )

    assert GrpcOptions.from_settings(settings) == GrpcOptions(
        max_message_size=1000,
        keepalive_time=30 * SECOND,
        keepalive_timeout=5 * SECOND,
        max_connection_age=2 * HOUR,
        max_connection_age_grace=60 * SECOND,
        max_connection_idle=600 * SECOND,
        max_connections=100,
        max_concurrent_streams=50,
        max_header_list_size=9000,
        max_connection_memory=2_000_000,
        max_memory=30_000_000,
        preface_timeout=3 * SECOND,
        tls=Tls("cert.pem", "key.pem", "ca.pem", "envoy.local"),
    )


@pytest.mark.parametrize(
    ("microseconds", "milliseconds"),
    [(0, 2**31 - 1), (1, 1), (1000, 1), (1001, 2), (24 * HOUR, 86_400_000), (30 * 24 * HOUR, 2**31 - 1)],
)
def test_times_are_milliseconds_to_grpc_and_0_is_for_ever(microseconds: int, milliseconds: int) -> None:
    assert grpcio._milliseconds(microseconds) == milliseconds
