"""What carries gRPC, by the name TRANSPORT gives it. To add one: its module, one case here."""

from ratelimit_service.settings import Settings
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.transport import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(settings: Settings) -> Transport:
    """The transport the settings ask for; it listens once it is started."""
    match settings.transport:
        case "grpcio":
            from ratelimit_service.transports.grpcio import GrpcioTransport

            return GrpcioTransport(_options(settings))
        case "http2":
            from ratelimit_service.transports.http2 import Http2Transport

            return Http2Transport(_options(settings))
        case unknown:
            raise KeyError(unknown)


def _options(settings: Settings) -> GrpcOptions:
    tls = Tls(
        settings.grpc_server_tls_cert,
        settings.grpc_server_tls_key,
        settings.grpc_client_tls_cacert,
        settings.grpc_client_tls_san,
    )
    return GrpcOptions(
        max_message_size=settings.grpc_max_message_size,
        keepalive_time=settings.grpc_keepalive_time,
        keepalive_timeout=settings.grpc_keepalive_timeout,
        max_connection_age=settings.grpc_max_connection_age,
        max_connection_age_grace=settings.grpc_max_connection_age_grace,
        max_connection_idle=settings.grpc_max_connection_idle,
        max_connections=settings.grpc_max_connections,
        max_concurrent_streams=settings.grpc_max_concurrent_streams,
        max_header_list_size=settings.grpc_max_header_list_size,
        max_connection_memory=settings.grpc_max_connection_memory,
        max_memory=settings.grpc_max_memory,
        preface_timeout=settings.grpc_preface_timeout,
        tls=tls if settings.grpc_server_use_tls else None,
    )
