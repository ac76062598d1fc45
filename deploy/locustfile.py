"""Load by Locust: ShouldRateLimit over gRPC, and POST /json, for keys of which few are asked about often.

    pip install locust grpcio xds-protos
    locust -f deploy/locustfile.py                    # then http://localhost:8089
    locust -f deploy/locustfile.py GrpcUser --headless --users 50 --run-time 1m --domain shop --entry login=u{key}

Each user asks as soon as it is answered. What is refused is no failure: it stands in a line of its own.
"""

import itertools
import random
import time
from argparse import ArgumentParser

import grpc
import grpc.experimental.gevent
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from locust import FastHttpUser, User, events, task
from locust.env import Environment

grpc.experimental.gevent.init_gevent()


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """Locust shows them in its help and on its page."""
    parser.add_argument("--grpc", default="localhost:8081", metavar="HOST:PORT", help="where GrpcUser asks")
    parser.add_argument("--domain", default="shop", help="domain of each request")
    parser.add_argument("--entry", default="login=u{key}", metavar="KEY=VALUE", help="descriptor; {key} is a number")
    parser.add_argument("--keys", type=int, default=1000, help="numbers that {key} stands for")
    parser.add_argument("--zipf", type=float, default=1.1, help="chance of the nth key: 1 / n^ZIPF; 0: all equal")


@events.test_start.add_listener
def weigh_keys(environment: Environment, **_: object) -> None:
    """Once, for all users."""
    options = environment.parsed_options
    weights = (1 / number**options.zipf for number in range(1, options.keys + 1))
    environment.key_weights = list(itertools.accumulate(weights))


def entry(environment: Environment) -> tuple[str, str]:
    """The key and the value of a request's only entry."""
    options = environment.parsed_options
    (number,) = random.choices(range(1, options.keys + 1), cum_weights=environment.key_weights)  # noqa: S311  # no secret
    key, _, value = options.entry.partition("=")
    return key, value.replace("{key}", str(number))


class GrpcUser(User):
    """A client on a connection of its own, as Envoy's are."""

    def on_start(self) -> None:
        """Connect."""
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(self.environment.parsed_options.grpc, own)
        self.stub = rls_pb2_grpc.RateLimitServiceStub(self.channel)

    def on_stop(self) -> None:
        """Close the connection."""
        self.channel.close()

    @task
    def should_rate_limit(self) -> None:
        """One call."""
        key, value = entry(self.environment)
        request = rls_pb2.RateLimitRequest(domain=self.environment.parsed_options.domain)
        request.descriptors.add().entries.add(key=key, value=value)
        name, length, exception = "ShouldRateLimit", 0, None
        began = time.perf_counter()
        try:
            response = self.stub.ShouldRateLimit(request, timeout=1)
            name += " " + rls_pb2.RateLimitResponse.Code.Name(response.overall_code)
            length = response.ByteSize()
        except grpc.RpcError as error:
            exception = error
        self.environment.events.request.fire(
            request_type="gRPC",
            name=name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=length,
            exception=exception,
            context={},
        )


class JsonUser(FastHttpUser):
    """A client of POST /json; --host says where."""

    host = "http://localhost:8080"

    @task
    def post_json(self) -> None:
        """One request."""
        key, value = entry(self.environment)
        body = {
            "domain": self.environment.parsed_options.domain,
            "descriptors": [{"entries": [{"key": key, "value": value}]}],
        }
        with self.client.post("/json", json=body, catch_response=True) as response:
            if response.status_code == 429:
                response.request_meta["name"] += " OVER_LIMIT"
                response.success()
            elif response.status_code == 200:
                response.request_meta["name"] += " OK"
