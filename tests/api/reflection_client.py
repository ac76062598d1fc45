"""A client of grpcio's own reflection stubs, which are v1alpha's, in a process of its own.

Arguments: the address, the name of a symbol. Prints the services, then the files that state the symbol.
"""

import sys

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc


def main(address: str, symbol: str) -> None:
    """Ask both in one call."""
    stub = reflection_pb2_grpc.ServerReflectionStub(grpc.insecure_channel(address))
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol),
    ]
    services, files = stub.ServerReflectionInfo(iter(requests), timeout=60)
    print(*(service.name for service in services.list_services_response.service))
    found = files.file_descriptor_response.file_descriptor_proto
    print(*(FileDescriptorProto.FromString(file).name for file in found))


main(*sys.argv[1:])
