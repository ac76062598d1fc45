"""Server reflection, by the contract and by other people's clients."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from ratelimit_service.api.generated.grpc.reflection.v1.reflection_pb2 import (
    ExtensionRequest,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from ratelimit_service.api.method import StreamMethod
from ratelimit_service.api.reflection import SERVICES, reflection
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.engine import Engine
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.options import GrpcOptions
from tests.api.streams import Sent
from tests.loops import run
from tests.peers import grpc_peers, grpcurl
from tests.transports.servers import OpenTransport, connect, failure

ALL = [
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "kuadrant.service.ratelimit.v1.RateLimitService",
]

RLS = "envoy/service/ratelimit/v3/rls.proto"
RLS_AND_IMPORTS = {
    RLS,
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/type/v3/ratelimit_unit.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
}


def ask(
    *requests: ServerReflectionRequest,
    method: StreamMethod | None = None,
    services: Sequence[ServiceDescriptor] = SERVICES,
) -> list[ServerReflectionResponse]:
    """The answers of one call."""
    sent = Sent()
    receiver = (method or reflection(services)[0]).open(sent)
    for request in requests:
        receiver.receive(request.SerializeToString())
    receiver.half_close()
    assert sent.finished
    assert sent.error is None
    return [ServerReflectionResponse.FromString(message) for message in sent.messages]


def files(answer: ServerReflectionResponse) -> list[str]:
    """The names of the files in an answer."""
    return [FileDescriptorProto.FromString(file).name for file in answer.file_descriptor_response.file_descriptor_proto]


def test_both_versions_are_there_and_answer_alike() -> None:
    request = ServerReflectionRequest(list_services="*")

    answers = {method.path: ask(request, method=method) for method in reflection()}

    assert list(answers) == [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ]
    one, other = answers.values()
    assert one == other


def test_the_services_are_listed_in_order() -> None:
    (answer,) = ask(ServerReflectionRequest(list_services=""))

    assert [service.name for service in answer.list_services_response.service] == ALL


def test_only_the_given_services_are_described() -> None:
    listed, found, missing = ask(
        ServerReflectionRequest(list_services=""),
        ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
        ServerReflectionRequest(file_containing_symbol="grpc.reflection.v1.ServerReflection"),
        services=[service for service in SERVICES if service.full_name == "grpc.health.v1.Health"],
    )

    assert [service.name for service in listed.list_services_response.service] == ["grpc.health.v1.Health"]
    assert files(found) == ["grpc/health/v1/health.proto"]
    assert missing.error_response.error_code == 5


def test_a_file_comes_first_and_then_all_it_imports() -> None:
    (answer,) = ask(ServerReflectionRequest(file_by_filename=RLS))

    assert files(answer)[0] == RLS
    assert set(files(answer)) == RLS_AND_IMPORTS
    assert len(files(answer)) == len(RLS_AND_IMPORTS)


@pytest.mark.parametrize(
    "symbol",
    [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
        "envoy.service.ratelimit.v3.RateLimitRequest",
        "envoy.service.ratelimit.v3.RateLimitRequest.domain",
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.limit_remaining",
        "envoy.service.ratelimit.v3.RateLimitResponse.Code",
        "envoy.service.ratelimit.v3.RateLimitResponse.OVER_LIMIT",
    ],
)
def test_a_symbol_is_found_in_its_file(symbol: str) -> None:
    (answer,) = ask(ServerReflectionRequest(file_containing_symbol=symbol))

    assert files(answer)[0] == RLS


def test_what_is_not_there_is_not_found_and_the_call_goes_on() -> None:
    requests = [
        ServerReflectionRequest(file_by_filename="nope.proto"),
        ServerReflectionRequest(file_containing_symbol="envoy.service.ratelimit.v3.Nope"),
        ServerReflectionRequest(
            file_containing_extension=ExtensionRequest(containing_type=f"{ALL[2]}.Nope", extension_number=7)
        ),
        ServerReflectionRequest(all_extension_numbers_of_type="nope.Nope"),
    ]

    answers = ask(*requests)

    assert [answer.error_response.error_code for answer in answers] == [5, 5, 5, 5]
    assert [answer.error_response.error_message for answer in answers] == [
        "there is no file 'nope.proto' among the services here",
        "there is no symbol 'envoy.service.ratelimit.v3.Nope' among the services here",
        "there is no extension 7 of 'grpc.health.v1.Health.Nope' among the services here",
        "there is no message 'nope.Nope' among the services here",
    ]
    assert [answer.original_request for answer in answers] == requests


def test_the_request_and_the_host_are_given_back() -> None:
    request = ServerReflectionRequest(host="ratelimit:8081", list_services="")

    (answer,) = ask(request)

    assert (answer.valid_host, answer.original_request) == ("ratelimit:8081", request)


def test_extensions_are_found_by_number() -> None:
    found, numbers, none = ask(
        ServerReflectionRequest(
            file_containing_extension=ExtensionRequest(containing_type="tests.Open", extension_number=101)
        ),
        ServerReflectionRequest(all_extension_numbers_of_type="tests.Open"),
        ServerReflectionRequest(all_extension_numbers_of_type="tests.Open.Inner"),
        services=[service_with_extensions()],
    )

    assert files(found) == ["tests/extended.proto"]
    assert numbers.all_extension_numbers_response.base_type_name == "tests.Open"
    assert list(numbers.all_extension_numbers_response.extension_number) == [100, 101]
    assert none.WhichOneof("message_response") == "all_extension_numbers_response"
    assert list(none.all_extension_numbers_response.extension_number) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\xff", "the message is not a ServerReflectionRequest: "),
        (b"", "the ServerReflectionRequest has no known request"),
    ],
    ids=["rubbish", "empty"],
)
def test_a_message_that_asks_nothing_ends_the_call(message: bytes, problem: str) -> None:
    sent = Sent()

    reflection()[0].open(sent).receive(message)

    assert isinstance(sent.error, RpcError)
    assert sent.error.status == Status.INVALID_ARGUMENT
    assert sent.error.message.startswith(problem)


def test_grpcurl_lists_and_describes(transport: OpenTransport) -> None:
    async def story() -> tuple[list[str], str, str, str]:
        served = transport(GrpcOptions())
        (address,) = await served.start([], reflection(), [Tcp("127.0.0.1", 0)])
        asked: list[str | Path] = [grpcurl(), "-plaintext", str(address)]
        listed = await output(*asked, "list")
        service = await output(*asked, "describe", ALL[1])
        other = await output(*asked, "describe", ALL[-1])
        message = await output(*asked, "describe", "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")
        await served.stop(1)
        return listed.splitlines(), service, other, message

    listed, service, other, message = run(story())

    assert listed == ALL
    assert "rpc ShouldRateLimit ( .envoy.service.ratelimit.v3.RateLimitRequest )" in service
    assert "rpc Reserve ( .kuadrant.service.ratelimit.v1.ReserveRequest )" in other
    assert ".google.protobuf.UInt64Value hits_addend = 3;" in message


def test_the_service_has_each_method_that_it_lists() -> None:
    async def story() -> list[str]:
        engine = Engine(Settings())
        await engine.listen([Tcp("127.0.0.1", 0)])
        async with connect(engine.addresses[0]) as channel:
            paths = [f"/{each.containing_service.full_name}/{each.name}" for each in methods]
            failed = [await failure(channel, path, b"\xff") for path in paths]
        await engine.abort()
        return [path for path, (code, _) in zip(paths, failed, strict=True) if code is grpc.StatusCode.UNIMPLEMENTED]

    methods = [each for service in SERVICES for each in service.methods if not each.server_streaming]

    assert len(methods) == 7
    assert run(story()) == []


def test_the_client_of_grpcio_asks_in_v1alpha(transport: OpenTransport) -> None:
    async def story() -> list[str]:
        served = transport(GrpcOptions())
        (address,) = await served.start([], reflection(), [Tcp("127.0.0.1", 0)])
        client = Path(__file__).with_name("reflection_client.py")
        printed = await output(sys.executable, client, str(address), ALL[1], path=grpc_peers())
        await served.stop(1)
        return printed.splitlines()

    services, found = run(story())

    assert services.split() == ALL
    assert set(found.split()) == RLS_AND_IMPORTS


async def output(program: str | Path, *arguments: str | Path, path: Path | None = None) -> str:
    """What a program prints."""
    environment = os.environ | {"PYTHONPATH": str(path or "")}
    process = await create_subprocess_exec(program, *arguments, stdout=PIPE, stderr=PIPE, env=environment)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def service_with_extensions() -> ServiceDescriptor:
    """A service whose file states a message with extensions, one of them inside another message."""
    file = FileDescriptorProto(name="tests/extended.proto", package="tests", syntax="proto2")
    open_message = file.message_type.add(name="Open")
    open_message.extension_range.add(start=100, end=200)
    inner = open_message.nested_type.add(name="Inner")
    for number, extensions in (100, file.extension), (101, inner.extension):
        extensions.add(
            name=f"extension_{number}",
            number=number,
            extendee=".tests.Open",
            type=FieldDescriptorProto.TYPE_STRING,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    file.service.add(name="Service")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("tests.Service")
