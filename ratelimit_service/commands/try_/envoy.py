"""What stands between the callers and the model: a real Envoy, or its two calls for each request, played."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any, Final

import yaml

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.commands.request import as_message
from ratelimit_service.commands.try_.model import answer, status_of
from ratelimit_service.errors import StartError
from ratelimit_service.model import Descriptor
from ratelimit_service.system.address import Tcp, Unix

Ask = Callable[[Mapping[str, str]], Awaitable[int]]
"""The status of a request with these headers, once its answer has been read."""

START_SECONDS: Final = 30.0
_LONGEST_PATH: Final = 103
"""Characters in the path of a unix socket: what all systems take."""
_LOOK_SECONDS: Final = 0.05
_CALL_SECONDS: Final = 10.0

_HERE: Final = files(__package__)


def http_filters(rate_limits: str) -> str:
    """Envoy's filters with these items, and what else its connection manager needs."""
    return _filled("http_filters.yaml", rate_limits=indent(rate_limits.rstrip(), " " * 6))


def _filled(file: str, **places: object) -> str:
    return Template(_HERE.joinpath(file).read_text(encoding="utf-8")).substitute(places)


@asynccontextmanager
async def start_envoy(program: str, rate_limits: str, model: int, ratelimit: int) -> AsyncIterator[Ask]:
    """An Envoy before the ports of a model and of the service. StartError if it does not start."""
    with tempfile.TemporaryDirectory(prefix="ratelimit-try-") as name:
        folder = Path(name)
        ingress = Unix(str(folder / "ingress"))
        if len(ingress.path) > _LONGEST_PATH:
            raise StartError(f"the path of {folder} is too long for a socket in it; set TMPDIR to a shorter one")
        file = folder / "envoy.yaml"
        filters = indent(http_filters(rate_limits), " " * 16)
        text = _filled("envoy.yaml", http_filters=filters, ingress=ingress.path, model=model, ratelimit=ratelimit)
        file.write_text(text, encoding="utf-8")
        options = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
        with (folder / "log").open("wb") as log:
            try:
                # Not in the group of the terminal: Ctrl-C is for this process, which then ends Envoy.
                envoy = await asyncio.create_subprocess_exec(
                    *(program, "--config-path", str(file), *options), stdout=log, stderr=log, process_group=0
                )
            except OSError as error:
                raise StartError(f"{program} cannot be started: {error.strerror}") from error
        try:
            if problem := await _until_it_listens(envoy, ingress):
                said = (folder / "log").read_text(encoding="utf-8", errors="replace").strip()[-1000:]
                raise StartError(f"{program} {problem}; --no-envoy does without it:\n{said}")
            yield partial(_ask, ingress)
        finally:
            with suppress(ProcessLookupError):  # it has ended
                envoy.kill()
            await envoy.wait()


async def _ask(ingress: Unix, headers: Mapping[str, str]) -> int:
    return status_of(await answer(ingress, headers))


async def _until_it_listens(envoy: asyncio.subprocess.Process, ingress: Unix) -> str:
    """The problem, if it does not."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while envoy.returncode is None:
                with suppress(OSError):
                    _, writer = await asyncio.open_unix_connection(ingress.path)
                    writer.close()
                    return ""
                await asyncio.sleep(_LOOK_SECONDS)
            return "ends at once"
    return f"does not listen within {START_SECONDS:g} s"


@asynccontextmanager
async def play_envoy(rate_limits: str, model: int, ratelimit: int) -> AsyncIterator[Ask]:
    """What makes the calls that Envoy would, and sends a request that may pass to the model itself."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read at import: without it, grpcio's core writes to stderr
    import grpc.aio  # noqa: PLC0415 - see above

    at_request, at_end = yaml.safe_load(rate_limits)["rate_limits"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ratelimit}") as channel:
        call = channel.unary_unary(ShouldRateLimit.path, request_serializer=None, response_deserializer=None)

        async def charge(item: Mapping[str, Any], headers: Mapping[str, str], cost: int | None) -> bool:
            entries = tuple(_entry(action, headers) for action in item["actions"])
            message = as_message("chat", [Descriptor(entries, hits_addend=cost)])
            try:
                answered = await call(message.SerializeToString(), timeout=_CALL_SECONDS)
            except grpc.RpcError as error:
                raise ConnectionError(str(error)) from error
            return RateLimitResponse.FromString(answered).overall_code == RateLimitResponse.OK

        async def ask(headers: Mapping[str, str]) -> int:
            headers = {**headers, "x-request-id": os.urandom(16).hex()}
            if not await charge(at_request, headers, at_request.get("hits_addend", {}).get("number")):
                return 429
            answered = await answer(Tcp("127.0.0.1", model), headers)
            if usage := re.search(rb'"total_tokens": (\d+)', answered):
                await charge(at_end, headers, int(usage[1]))
            return status_of(answered)

        yield ask


def _entry(action: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[str, str]:
    """What an action of Envoy makes of the headers of a request."""
    [(kind, options)] = action.items()
    key = options["descriptor_key"]
    return key, options["descriptor_value"] if kind == "generic_key" else headers[options["header_name"]]
