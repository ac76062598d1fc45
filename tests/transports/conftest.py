"""The transports that the contract is tried on, and certificates for them."""

import shutil
from pathlib import Path

import pytest

from tests.transports.certificates import Issued, authority, issue
from tests.transports.servers import TRANSPORTS, OpenTransport


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> OpenTransport:
    """Opens one of them."""
    opens: OpenTransport = request.param
    return opens


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    """Who signs."""
    return authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server(ca: Issued) -> Issued:
    """The service's own."""
    return issue(ca, "server", "DNS:localhost")


@pytest.fixture
def replaced(server: Issued, tmp_path: Path) -> Issued:
    """A copy of the service's own, for a test that changes it."""
    return Issued(*(Path(shutil.copy(path, tmp_path)) for path in server))
