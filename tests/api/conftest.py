"""Both transports carry what other people's clients ask."""

import pytest

from tests.transports.servers import TRANSPORTS, OpenTransport


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> OpenTransport:
    """Opens one of them."""
    opens: OpenTransport = request.param
    return opens
