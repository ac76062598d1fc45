"""What tests share: which of them are run, how hard Hypothesis tries, both transports, a Redis."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from redis import Redis as Client

from tests.redis import Redis, start_redis

# No deadline: a busy machine is no bug. Derandomized: what was red stays red until somebody repairs it.
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("extended", settings.get_profile("ci"), max_examples=200)
settings.register_profile("nightly", max_examples=5_000, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--extended`: run what is marked so, and search longer; nothing else."""
    parser.addoption("--extended", action="store_true", help="run the extended tests, in place of the others")


def pytest_configure(config: pytest.Config) -> None:
    """How hard Hypothesis tries, before a test file asks; `HYPOTHESIS_PROFILE=nightly` tries hardest."""
    chosen = "extended" if config.getoption("extended") else "ci"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the extended tests, or all that Hypothesis does not search in. One named as file::name runs always."""
    if any("::" in arg for arg in config.args):
        return
    wanted = config.getoption("extended")
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        is_extended = item.get_closest_marker("extended") is not None
        searches = item.get_closest_marker("hypothesis") is not None  # its plugin says so
        (chosen if is_extended is wanted or (searches and wanted) else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def _own_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Services of this run alone have their tokens where it looks: a port may be that of one that was killed once."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="session", params=["http2", pytest.param("grpcio", marks=pytest.mark.extended)])
def transport(request: pytest.FixtureRequest) -> str:
    """What carries gRPC in services that are started meanwhile: an extended run tells each story on the other one."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis for all tests of a file, each with names of its own."""
    with start_redis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture(scope="module")
def client(redis: Redis) -> Iterator[Client]:
    """A client of the Redis of a file that flushes it, or looks into it."""
    with Client(unix_socket_path=str(redis.socket)) as client:
        yield client


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of any scope: what `start_service` has a test's services use, or else the default."""
    chosen = item.callspec.params.get("transport") if hasattr(item, "callspec") else None
    os.environ["TRANSPORT"] = chosen if isinstance(chosen, str) else "http2"
