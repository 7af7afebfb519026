"""Traces leave over OTLP and continue the caller's, and nothing of the payload leaves with them."""

from concurrent import futures

import grpc

from harness.examples import IRIS, manifest
from harness.waiting import until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Sink(grpc.GenericRpcHandler):
    """Takes whatever is exported, as bytes: ids stand in them as they are."""

    def __init__(self):
        self.exported = b""

    def service(self, details):
        if not details.method.endswith("TraceService/Export"):
            return None

        def take(request, _):
            self.exported += request
            return b""

        return grpc.unary_unary_rpc_method_handler(take, lambda data: data, lambda data: data)


def test_traces_continue_the_callers(berth):
    sink = Sink()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(sink,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        berth.start("--otlp", f"http://127.0.0.1:{port}")
        berth.apply(manifest("iris"))
        berth.available("iris")
        status, _ = berth.infer("iris", IRIS, {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "my-request"})
        assert status == 200
        # What has not left yet leaves when the server stops.
        assert berth.stop() == 0
        until("the span", lambda: bytes.fromhex(TRACE) in sink.exported and bytes.fromhex(PARENT) in sink.exported)
        assert b"berth" in sink.exported and b"5.1" not in sink.exported
        assert b"my-request" in sink.exported, "the id of the request is an attribute"
    finally:
        server.stop(None)
