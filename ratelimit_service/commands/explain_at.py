"""`ratelimit explain --at`: a running service is asked for the explanation, over its debug port."""

import http.client
import json
from typing import Any, Final

from google.protobuf.json_format import MessageToJson

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.commands.reach import GRPC, speaks_tls, unreachable, what_speaks

_PATH: Final = "/explain"
_PORT: Final = 6070
_SECONDS: Final = 15.0
"""Longer than the service gives its store."""
_ELSEWHERE: Final = f"--at takes the debug port, {_PORT} unless DEBUG_PORT says otherwise"


def explain_at(address: str, request: RateLimitRequest) -> dict[str, Any] | str:
    """The explanation of the service whose debug port is there, as JSON, or in one line why there is none."""
    target = address.removeprefix("http://").rstrip("/")
    host, colon, port = target.rpartition(":")
    if not colon or target.endswith("]"):
        host, port, target = target, str(_PORT), f"{target}:{_PORT}"
    if not port.isdecimal() or not host:
        return f"that is no HOST:PORT; {_ELSEWHERE}"
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_SECONDS)
    try:
        connection.request("POST", _PATH, MessageToJson(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError):
        return _not_http(target)
    except OSError as error:
        return unreachable(error, target, _SECONDS)
    finally:
        connection.close()
    return _read(response.status, text)


def _not_http(target: str) -> str:
    try:
        if what_speaks(target, _SECONDS) == GRPC:
            return f"it speaks gRPC, not HTTP; {_ELSEWHERE}"
        if speaks_tls(target, _SECONDS):
            return f"it speaks TLS, which the debug port never does; {_ELSEWHERE}"
    except OSError as error:
        return unreachable(error, target, _SECONDS)
    return f"it does not speak HTTP; {_ELSEWHERE}"


def _read(status: int, text: str) -> dict[str, Any] | str:
    """What was answered; a service of another version, or another program, may answer anything."""
    if status in {404, 405}:
        if "/rlconfig" in text:
            return f"that service is older than this command: it has no POST {_PATH}"
        if "/json" in text:
            return f"that is the HTTP port; {_ELSEWHERE}"
    elif status == http.client.OK:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict) and {"domain", "problem", "descriptors"} <= found.keys():
            return found
    elif status == http.client.BAD_REQUEST and "speaks gRPC" in text:  # as the service's own HTTP/2 says it
        return f"it speaks gRPC, not HTTP; {_ELSEWHERE}"
    elif status in {http.client.BAD_REQUEST, http.client.SERVICE_UNAVAILABLE}:
        return text.strip()
    return f"it answers {status} to POST {_PATH}: that is no debug port of this service; {_ELSEWHERE}"
