"""The transports of gRPC, by the names of TRANSPORT. To add one: its module, one case here."""

from ratelimit_service.settings import Settings
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.transport import Transport

__all__ = ["Transport", "open_transport"]


def open_transport(settings: Settings) -> Transport:
    """The transport the settings ask for; it listens once it is started."""
    match settings.transport:
        case "grpcio":
            from ratelimit_service.transports.grpcio import GrpcioTransport

            return GrpcioTransport(GrpcOptions.from_settings(settings))
        case "http2":
            from ratelimit_service.transports.http2 import Http2Transport

            return Http2Transport(GrpcOptions.from_settings(settings))
        case unknown:
            raise KeyError(unknown)
