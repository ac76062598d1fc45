"""The transports that the contract is tried on."""

import pytest

from ratelimit_service.transports.grpcio import GrpcioTransport
from ratelimit_service.transports.http2 import Http2Transport
from tests.transports.servers import OpenTransport


@pytest.fixture(
    params=[
        pytest.param(GrpcioTransport, id="grpcio"),
        pytest.param(Http2Transport, id="http2"),
    ]
)
def transport(request: pytest.FixtureRequest) -> OpenTransport:
    """Opens one of them."""
    opens: OpenTransport = request.param
    return opens
