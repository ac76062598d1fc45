"""A collector of OpenTelemetry for tests, over HTTP and over gRPC; it knows the protocol and nothing of our service."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has been exported to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.port = 0

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order of their begin."""
        resources = [each for body in self.bodies for each in ExportTraceServiceRequest.FromString(body).resource_spans]
        spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
        return sorted(spans, key=lambda span: span.start_time_unix_nano)

    @property
    def resource(self) -> dict[str, str]:
        """What the first export says of its sender, as far as it is text."""
        resource = ExportTraceServiceRequest.FromString(self.bodies[0]).resource_spans[0].resource
        return {each.key: each.value.string_value for each in resource.attributes}


@contextmanager
def start_collector(protocol: str) -> Iterator[Collector]:
    """A collector that listens on a free port, for `http` or `grpc`."""
    collector = Collector()
    with _over_http(collector) if protocol == "http" else _over_grpc(collector):
        yield collector


@contextmanager
def _over_http(collector: Collector) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_port
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _over_grpc(collector: Collector) -> Iterator[None]:
    def export(body: bytes, _context: grpc.ServicerContext) -> bytes:
        collector.bodies.append(body)
        return b""

    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
