"""The transports that the contract is tried on."""

import pytest

from ratelimit_service.transports.grpcio import GrpcioTransport
from tests.transports.servers import OpenTransport


@pytest.fixture(
    params=[
        pytest.param(GrpcioTransport, id="grpcio"),
    ]
)
def transport(request: pytest.FixtureRequest) -> OpenTransport:
    """Opens one of them."""
    opens: OpenTransport = request.param
    return opens
