"""A health client of grpcio's own stubs, in a process of its own: our descriptors and theirs clash in one.

Arguments: the address, the verb, the name of the service. Prints a line for each answer: the status, or the error.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main(address: str, verb: str, name: str) -> None:
    """Ask, and print what is answered."""
    health = health_pb2_grpc.HealthStub(grpc.insecure_channel(address))
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        match verb:
            case "check":
                tell(health.Check(request, timeout=60).status)
            case "list":
                for known, answer in sorted(health.List(health_pb2.HealthListRequest(), timeout=60).statuses.items()):
                    print(repr(known), end=" ")
                    tell(answer.status)
            case "watch":
                for answer in health.Watch(request, timeout=300):
                    tell(answer.status)
    except grpc.RpcError as error:
        print(error.code().name, error.details(), flush=True)


def tell(status: int) -> None:
    """One line, at once."""
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(status), flush=True)


main(*sys.argv[1:])
