"""Server reflection: tells a client without .proto files which services there are, and sends it their descriptors.

v1 and v1alpha differ in their name alone: their messages are the same on the wire, so one implementation serves both.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.rate_limit_quota.v3 import rlqs_pb2
from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2
from ratelimit_service.api.generated.grpc.health.v1 import health_pb2
from ratelimit_service.api.generated.grpc.reflection.v1 import reflection_pb2
from ratelimit_service.api.generated.grpc.reflection.v1.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from ratelimit_service.api.generated.grpc.reflection.v1alpha import reflection_pb2 as alpha_pb2
from ratelimit_service.api.generated.kuadrant.service.ratelimit.v1 import kuadrantrls_pb2
from ratelimit_service.api.method import Sender, StreamFunction, StreamMethod
from ratelimit_service.errors import RpcError, Status

SERVICES: Final = (
    rls_pb2.DESCRIPTOR.services_by_name["RateLimitService"],
    kuadrantrls_pb2.DESCRIPTOR.services_by_name["RateLimitService"],
    rlqs_pb2.DESCRIPTOR.services_by_name["RateLimitQuotaService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    alpha_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""All services of this program."""


def reflection(services: Sequence[ServiceDescriptor] = SERVICES) -> Sequence[StreamMethod]:
    """The methods that describe these services, in both versions."""
    open_call = partial(_Call, _Descriptions(services))
    return tuple(
        StreamFunction(
            f"/{module.DESCRIPTOR.services_by_name['ServerReflection'].full_name}/ServerReflectionInfo", open_call
        )
        for module in (reflection_pb2, alpha_pb2)
    )


class _Call:
    """One call: a response to each request, in order."""

    def __init__(self, descriptions: "_Descriptions", stream: Sender) -> None:
        self._descriptions = descriptions
        self._stream = stream

    def receive(self, message: bytes) -> None:
        try:
            response = self._descriptions.respond(message)
        except RpcError as error:
            self._stream.finish(error)
        else:
            self._stream.send(response)

    def half_close(self) -> None:
        self._stream.finish()

    def closed(self) -> None:
        pass


class _Descriptions:
    """The files that define the services, and all files that those import.

    Names are looked up in protobuf's descriptor pool. The pool has the files of all modules of the process: those that
    the services do not need are not found here.
    """

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        self._services = ListServiceResponse(
            service=[ServiceResponse(name=name) for name in sorted(service.full_name for service in services)]
        )
        self._pool = services[0].file.pool
        self._files = {file.name for service in services for file in _with_imports(service.file)}
        self._encoded: dict[str, bytes] = {}
        """By a file's name, the part of the response that is the same for all requests."""

    def respond(self, message: bytes) -> bytes:
        """The response to one request; raises RpcError for a message that is none."""
        try:
            request = ServerReflectionRequest.FromString(message)
        except DecodeError as error:
            problem = f"the message is not a ServerReflectionRequest: {error}"
            raise RpcError(Status.INVALID_ARGUMENT, problem) from error
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        encoded, what = b"", ""
        try:
            match request.WhichOneof("message_request"):
                case "list_services":
                    response.list_services_response.CopyFrom(self._services)
                case "file_by_filename":
                    what = f"file {request.file_by_filename!r}"
                    encoded = self._describe(self._pool.FindFileByName(request.file_by_filename))
                case "file_containing_symbol":
                    what = f"symbol {request.file_containing_symbol!r}"
                    encoded = self._describe(self._file_with(request.file_containing_symbol))
                case "file_containing_extension":
                    name = request.file_containing_extension.containing_type
                    number = request.file_containing_extension.extension_number
                    what = f"extension {number} of {name!r}"
                    encoded = self._describe(self._extensions(name)[number])
                case "all_extension_numbers_of_type":
                    name = request.all_extension_numbers_of_type
                    what = f"message {name!r}"
                    response.all_extension_numbers_response.CopyFrom(
                        ExtensionNumberResponse(
                            base_type_name=name,
                            extension_number=sorted(self._extensions(name)),
                        )
                    )
                case _:
                    raise RpcError(Status.INVALID_ARGUMENT, "the ServerReflectionRequest has no known request")
        except KeyError:
            problem = f"there is no {what} among the services here"
            response.error_response.CopyFrom(ErrorResponse(error_code=Status.NOT_FOUND, error_message=problem))
        # In protobuf's format messages that are joined are merged.
        return response.SerializeToString() + encoded

    def _describe(self, file: FileDescriptor) -> bytes:
        """The file and its imports as part of a response; raises KeyError for a file of no service here."""
        if file.name not in self._files:
            raise KeyError(file.name)
        encoded = self._encoded.get(file.name)
        if encoded is None:
            # The file in question comes first: clients rely on it.
            files = FileDescriptorResponse(file_descriptor_proto=[each.serialized_pb for each in _with_imports(file)])
            encoded = ServerReflectionResponse(file_descriptor_response=files).SerializeToString()
            self._encoded[file.name] = encoded
        return encoded

    def _file_with(self, symbol: str) -> FileDescriptor:
        """The file that defines a symbol; raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            # The pool finds everything but methods by that.
            return self._pool.FindMethodByName(symbol).containing_service.file

    def _extensions(self, name: str) -> Mapping[int, FileDescriptor]:
        """The extensions of a message by their numbers, each with its file; raises KeyError for an unknown message."""
        message = self._pool.FindMessageTypeByName(name)
        if message.file.name not in self._files:
            raise KeyError(name)
        files = [(field.number, field.file) for field in self._pool.FindAllExtensions(message)]  # type: ignore[attr-defined]  # missing in the stubs
        return {number: file for number, file in files if file.name in self._files}


def _with_imports(file: FileDescriptor) -> Sequence[FileDescriptor]:
    """The file, what it imports, and what those import; each once."""
    found = {file.name: file}
    waiting = [file]
    while waiting:
        for imported in waiting.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                waiting.append(imported)
    return tuple(found.values())
