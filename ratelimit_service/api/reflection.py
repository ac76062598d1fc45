"""Server reflection: a client that has no .proto files asks which services there are, and what they speak of.

v1 and v1alpha differ in name only: their messages are the same on the wire, so that one implementation answers both.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError

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
from ratelimit_service.api.method import Receiver, Sender, StreamMethod
from ratelimit_service.errors import RpcError, Status

SERVICES: Final = (
    rls_pb2.DESCRIPTOR.services_by_name["RateLimitService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    alpha_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""Every service of this program."""


def reflection(services: Sequence[ServiceDescriptor] = SERVICES) -> Sequence[StreamMethod]:
    """The methods that describe these services, in both versions."""
    answer = _Descriptions(services).answer
    return tuple(
        _Reflect(f"/{module.DESCRIPTOR.services_by_name['ServerReflection'].full_name}/ServerReflectionInfo", answer)
        for module in (reflection_pb2, alpha_pb2)
    )


Answer = Callable[[bytes], bytes]


class _Reflect:
    def __init__(self, path: str, answer: Answer) -> None:
        self.path = path
        self._answer = answer

    def open(self, stream: Sender) -> Receiver:
        return _Conversation(stream, self._answer)


class _Conversation:
    """One call: an answer for each message, in order."""

    def __init__(self, stream: Sender, answer: Answer) -> None:
        self._stream = stream
        self._answer = answer

    def receive(self, message: bytes) -> None:
        try:
            answer = self._answer(message)
        except RpcError as error:
            self._stream.finish(error)
        else:
            self._stream.send(answer)

    def half_close(self) -> None:
        self._stream.finish()

    def closed(self) -> None:
        pass


class _Descriptions:
    """The files that state the services, with all they import, and where to find what."""

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        self._services = ListServiceResponse(
            service=[ServiceResponse(name=name) for name in sorted(service.full_name for service in services)]
        )
        self._files: dict[str, FileDescriptor] = {}
        for service in services:
            for file in _with_imports(service.file):
                self._files[file.name] = file
        self._symbols: dict[str, FileDescriptor] = {}
        self._messages: set[str] = set()
        self._extensions: dict[tuple[str, int], FileDescriptor] = {}
        self._written: dict[str, bytes] = {}
        """The answers about files, by their names: all that a question adds is an echo of itself."""
        for file in self._files.values():
            for symbol in _symbols(file):
                self._symbols[symbol] = file
            for message in _messages(file):
                self._messages.add(message.full_name)
            for extension in _extensions(file):
                extended: Descriptor = extension.containing_type  # type: ignore[assignment] # an extension has one
                self._extensions[extended.full_name, extension.number] = file

    def answer(self, message: bytes) -> bytes:
        """The answer to one message; RpcError when it is none."""
        try:
            request = ServerReflectionRequest.FromString(message)
        except DecodeError as error:
            problem = f"the message is not a ServerReflectionRequest: {error}"
            raise RpcError(Status.INVALID_ARGUMENT, problem) from error
        answer = ServerReflectionResponse(valid_host=request.host, original_request=request)
        written = b""
        match request.WhichOneof("message_request"):
            case "list_services":
                answer.list_services_response.CopyFrom(self._services)
            case "file_by_filename":
                name = request.file_by_filename
                written = self._describe(answer, self._files.get(name), f"file {name!r}")
            case "file_containing_symbol":
                name = request.file_containing_symbol
                written = self._describe(answer, self._symbols.get(name), f"symbol {name!r}")
            case "file_containing_extension":
                name, number = (
                    request.file_containing_extension.containing_type,
                    request.file_containing_extension.extension_number,
                )
                written = self._describe(
                    answer, self._extensions.get((name, number)), f"extension {number} of {name!r}"
                )
            case "all_extension_numbers_of_type":
                self._number(answer, request.all_extension_numbers_of_type)
            case _:
                raise RpcError(
                    Status.INVALID_ARGUMENT, "the ServerReflectionRequest asks for nothing that is known here"
                )
        return answer.SerializeToString() + written

    def _describe(self, answer: ServerReflectionResponse, file: FileDescriptor | None, what: str) -> bytes:
        """What follows the beginning of the answer: in protobuf's format messages that are joined are merged."""
        if file is None:
            _not_found(answer, what)
            return b""
        written = self._written.get(file.name)
        if written is None:
            # The file that was asked for comes first; clients rely on it.
            files = [found.serialized_pb for found in _with_imports(file)]
            described = FileDescriptorResponse(file_descriptor_proto=files)
            written = ServerReflectionResponse(file_descriptor_response=described).SerializeToString()
            self._written[file.name] = written
        return written

    def _number(self, answer: ServerReflectionResponse, name: str) -> None:
        if name not in self._messages:
            _not_found(answer, f"message {name!r}")
            return
        numbers = sorted(number for extended, number in self._extensions if extended == name)
        answer.all_extension_numbers_response.CopyFrom(
            ExtensionNumberResponse(base_type_name=name, extension_number=numbers)
        )


def _not_found(answer: ServerReflectionResponse, what: str) -> None:
    answer.error_response.CopyFrom(
        ErrorResponse(error_code=Status.NOT_FOUND, error_message=f"there is no {what} among the services here")
    )


def _with_imports(file: FileDescriptor) -> Sequence[FileDescriptor]:
    """The file, and what it imports, and what those import; each once."""
    found = {file.name: file}
    waiting = [file]
    while waiting:
        for imported in waiting.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                waiting.append(imported)
    return tuple(found.values())


def _messages(file: FileDescriptor) -> Iterator[Descriptor]:
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        yield message
        waiting.extend(message.nested_types)


def _extensions(file: FileDescriptor) -> Iterator[FieldDescriptor]:
    yield from file.extensions_by_name.values()
    for message in _messages(file):
        yield from message.extensions


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """The full names of all that a file states."""
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    enums: list[EnumDescriptor] = list(file.enum_types_by_name.values())
    for message in _messages(file):
        yield message.full_name
        yield from (field.full_name for field in message.fields)
        yield from (oneof.full_name for oneof in message.oneofs)
        enums.extend(message.enum_types)
    for enum in enums:
        yield enum.full_name
        # As in C++: the values of an enum are names of the scope that the enum stands in.
        scope = enum.full_name.rpartition(".")[0]
        yield from (f"{scope}.{value.name}" if scope else value.name for value in enum.values)
    yield from (extension.full_name for extension in _extensions(file))
