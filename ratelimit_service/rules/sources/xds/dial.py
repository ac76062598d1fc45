"""Opens a channel to a control plane: plain, or TLS by files that are read anew each time."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import grpc
from google.protobuf.struct_pb2 import Struct

from ratelimit_service.api.generated.ratelimit.v1.discovery_pb2 import DiscoveryNode
from ratelimit_service.settings import Settings
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.disk import read_file

_KEEPALIVE_SECONDS = 310
"""Between two pings on a silent connection. A Go server that says nothing about it ends connections which ping more
often than every five minutes."""
_KEEPALIVE_TIMEOUT_SECONDS = 20
_MAX_PEM_BYTES = 2**20

STREAM = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


class ControlPlane(NamedTuple):
    """Where a control plane is, and what it is told of this service."""

    address: str
    node_id: str = "default"
    node_metadata: Mapping[str, str] = {}
    headers: tuple[tuple[str, str], ...] = ()
    use_tls: bool = False
    cert: str = ""
    key: str = ""
    ca: str = ""
    name: str = ""
    """The name in its certificate, if that is not the host."""
    max_bytes: int = 16 * 2**20
    first_pause: float = 1.0
    """Seconds before it is dialled again; doubled up to `longest_pause`, each changed by `jitter` at random."""
    longest_pause: float = 30.0
    jitter: float = 0.5

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """That of the settings."""
        return cls(
            settings.config_grpc_xds_server_url,
            settings.config_grpc_xds_node_id,
            dict(settings.config_grpc_xds_node_metadata),
            tuple((key.lower(), value) for key, value in settings.config_grpc_xds_client_additional_headers),
            settings.config_grpc_xds_server_use_tls,
            settings.config_grpc_xds_client_tls_cert,
            settings.config_grpc_xds_client_tls_key,
            settings.config_grpc_xds_server_tls_cacert,
            settings.config_grpc_xds_server_tls_san,
            settings.xds_client_max_msg_size_in_bytes,
            settings.xds_client_backoff_initial_interval / SECOND,
            settings.xds_client_backoff_max_interval / SECOND,
            settings.xds_client_backoff_random_factor if settings.xds_client_backoff_jitter else 0,
        )

    def node(self) -> DiscoveryNode:
        """This service, as it says in each request."""
        metadata = Struct()
        metadata.update(self.node_metadata)
        return DiscoveryNode(id=self.node_id, metadata=metadata)

    def read_credentials(self) -> grpc.ChannelCredentials | None:
        """The certificates of now, or None without TLS. OSError when a file cannot be read."""
        if not self.use_tls:
            return None
        ca, key, cert = (read_file(path, _MAX_PEM_BYTES) if path else None for path in (self.ca, self.key, self.cert))
        return grpc.ssl_channel_credentials(ca, key, cert)

    def channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """A channel with a connection of its own."""
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", self.max_bytes),
            ("grpc.keepalive_time_ms", 1000 * _KEEPALIVE_SECONDS),
            ("grpc.keepalive_timeout_ms", 1000 * _KEEPALIVE_TIMEOUT_SECONDS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options)
        if self.name:
            options.append(("grpc.ssl_target_name_override", self.name))
        return grpc.aio.secure_channel(self.address, credentials, options)
