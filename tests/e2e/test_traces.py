"""Traces leave over OTLP and continue the caller's, and nothing of the payload leaves with them."""

import json
from concurrent import futures
from contextlib import contextmanager

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


@contextmanager
def collector():
    """A collector of traces, and its address."""
    sink = Sink()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(sink,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield sink, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_traces_continue_the_callers(berth):
    with collector() as (sink, address):
        berth.start("--otlp", address)
        berth.apply(manifest("iris"))
        berth.available("iris")
        status, _ = berth.infer("iris", IRIS, {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "my-request"})
        assert status == 200
        # What has not left yet leaves when the server stops.
        assert berth.stop() == 0
        until("the span", lambda: bytes.fromhex(TRACE) in sink.exported and bytes.fromhex(PARENT) in sink.exported)
        assert b"berth" in sink.exported and b"5.1" not in sink.exported
        assert b"my-request" in sink.exported, "the id of the request is an attribute"


FUNCTION = f"""
apiVersion: berth.dev/v1
kind: Function
metadata:
  name: echo
  annotations: {{traceparent: 00-{TRACE}-{PARENT}-01}}
spec:
  type: javascript
  sourceUri: file:code
  entrypoint: index.handler
  target: {{platform: local}}
"""


def test_a_function_has_a_trace_from_the_put_to_the_answer(berth, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "index.js").write_text(
        "exports.handler = async (request, context) => ({ jsonBody: request.headers.get('traceparent') });\n"
    )
    (tmp_path / "echo.yaml").write_text(FUNCTION)
    with collector() as (sink, address):
        berth.start("--otlp", address)
        berth.run("apply", "-f", str(tmp_path / "echo.yaml"))
        berth.run("rollout", "status", "function/echo")
        other = TRACE[::-1]
        status, _, answer = berth.post("/functions/echo", {}, {"traceparent": f"00-{other}-{PARENT}-01"})
        assert status == 200
        _, trace, span, _ = json.loads(answer).split("-")
        assert (trace, span == PARENT) == (other, False), "the function continues the gateway's span"
        assert berth.stop() == 0
        # function, build, fetch, deploy
        until("the spans", lambda: sink.exported.count(bytes.fromhex(TRACE)) >= 4)
        assert all(name in sink.exported for name in (b"function", b"build", b"fetch", b"deploy"))
