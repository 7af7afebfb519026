"""`berth executor` before real servers, with clients that nobody changed: MLServer, a Flask app, a gRPC stream, a WebSocket echo.

Its log goes to the brokers of librdkafka's mock cluster: an implementation of Kafka's protocol that knows nothing of Berth, with no disk.
"""

import asyncio
import json
import os
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import grpc
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from aiohttp import web
from confluent_kafka import Consumer
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from harness.http_server import Answer, HttpServer
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

MLSERVER = os.environ.get("MLSERVER")

# A runtime of MLServer that doubles what it gets.
DOUBLE = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Double(MLModel):
    async def predict(self, payload):
        array = NumpyCodec.decode_input(payload.inputs[0]) * 2
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("out", array)])
"""

APP = """
from flask import Flask, Response, request

app = Flask(__name__)


@app.post("/predict")
def predict():
    return {"sum": sum(request.get_json()["values"]), "for": request.headers["X-Forwarded-For"]}


@app.get("/stream")
def stream():
    return Response((f"part {part}\\n" for part in range(1000)), mimetype="text/plain")
"""


class Executor(Process):
    """One port before each server, all with the same settings."""

    def __init__(self, folder, servers, **settings):
        super().__init__("executor", folder)
        self.ports = {name: free_port() for name in servers}
        self.admin = free_port()
        ports = [
            {"name": name, "listen": f"127.0.0.1:{self.ports[name]}", "upstream": upstream, "connectTimeout": "60s"} | settings
            for name, upstream in servers.items()
        ]
        config = {"ports": ports, "admin": {"listen": f"127.0.0.1:{self.admin}"}, "drain": {"delay": "0s"}}
        (folder / "executor.json").write_text(json.dumps(config))
        self.spawn(BERTH, "executor", "--config", str(folder / "executor.json"))
        until("the executor listens", lambda: "executor_listening" in self.logged())

    def address(self, name):
        return f"127.0.0.1:{self.ports[name]}"


@pytest.mark.skipif(MLSERVER is None, reason="MLSERVER names no environment with MLServer")
def test_mlserver(tmp_path):
    http, grpc_port, model = free_port(), free_port(), tmp_path / "models/double"
    model.mkdir(parents=True)
    (model / "double.py").write_text(DOUBLE)
    (model / "model-settings.json").write_text(json.dumps({"name": "double", "implementation": "double.Double"}))
    settings = {
        "MLSERVER_HOST": "127.0.0.1",
        "MLSERVER_HTTP_PORT": str(http),
        "MLSERVER_GRPC_PORT": str(grpc_port),
        "MLSERVER_METRICS_PORT": str(free_port()),
        "MLSERVER_PARALLEL_WORKERS": "0",
    }
    server = Process("mlserver", tmp_path)
    server.spawn(str(Path(MLSERVER) / "mlserver"), "start", str(tmp_path / "models"), env=settings)
    executor = Executor(tmp_path, {"rest": http, "grpc": grpc_port})
    try:
        for kind, name in ((tritonclient.http, "rest"), (tritonclient.grpc, "grpc")):
            client = kind.InferenceServerClient(executor.address(name))

            def ready(client=client):
                # MLServer listens before its models are there.
                try:
                    return client.is_model_ready("double")
                except Exception:
                    return False

            until(f"MLServer answers by {name}", ready)
            values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
            tensor = kind.InferInput("in", values.shape, "FP32")
            tensor.set_data_from_numpy(values, **({"binary_data": False} if name == "rest" else {}))
            outputs = [kind.InferRequestedOutput("out", **({"binary_data": False} if name == "rest" else {}))]
            answer = client.infer("double", [tensor], outputs=outputs)
            assert (answer.as_numpy("out") == values * 2).all()
        assert executor.stop() == 0
    finally:
        server.kill()
        if executor.runs():
            executor.kill()


def test_a_web_app_a_grpc_stream_and_websocket(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    web_app, echo_port = Process("app", tmp_path), free_port()
    flask_port = free_port()
    web_app.spawn(sys.executable, "-m", "flask", "--app", str(tmp_path / "app.py"), "run", "--port", str(flask_port))
    service = health.HealthServicer()
    stream = grpc.server(ThreadPoolExecutor(4))
    health_pb2_grpc.add_HealthServicer_to_server(service, stream)
    grpc_port = stream.add_insecure_port("127.0.0.1:0")
    stream.start()
    echo = Echo(echo_port)
    executor = Executor(tmp_path, {"app": flask_port, "grpc": grpc_port, "ws": echo_port})
    try:
        asyncio.run(asks(executor))
        with grpc.insecure_channel(executor.address("grpc")) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="iris"))
            seen = [next(watch).status]
            for status in (1, 2, 1):
                service.set("iris", status)
                seen.append(next(watch).status)
            assert seen == [3, 1, 2, 1], "each change comes when it happens"
            watch.cancel()
        assert executor.stop() == 0
    finally:
        stream.stop(None)
        echo.close()
        web_app.kill()
        if executor.runs():
            executor.kill()


async def asks(executor):
    async with aiohttp.ClientSession() as session:
        async with session.post(f"http://{executor.address('app')}/predict", json={"values": [1, 2, 3]}) as answer:
            assert await answer.json() == {"sum": 6, "for": "127.0.0.1"}
        async with session.get(f"http://{executor.address('app')}/stream") as answer:
            assert (await answer.text()).splitlines()[-1] == "part 999"
        async with session.ws_connect(f"http://{executor.address('ws')}/echo") as socket:
            for size in (0, 1, 70_000, 1 << 20):
                await socket.send_bytes(b"x" * size)
                assert (await socket.receive()).data == b"x" * size
            await socket.send_str("text")
            assert (await socket.receive()).data == "text"


class Echo:
    """A WebSocket server that sends back what it gets."""

    def __init__(self, port):
        self.loop = asyncio.new_event_loop()
        app = web.Application()
        app.router.add_get("/echo", self.echo)
        self.runner = web.AppRunner(app)
        self.loop.run_until_complete(self.runner.setup())
        self.loop.run_until_complete(web.TCPSite(self.runner, "127.0.0.1", port).start())
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def echo(self, request):
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            await (socket.send_str if message.type == aiohttp.WSMsgType.TEXT else socket.send_bytes)(message.data)
        return socket

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(self.runner.cleanup())
        self.loop.close()


class Answers(HttpServer):
    def answer(self, request):
        return Answer(200, {"content-type": "application/json"}, request.body)


def test_a_log_goes_to_brokers_of_kafka(tmp_path):
    consumer = Consumer({"group.id": "test", "auto.offset.reset": "earliest", "test.mock.num.brokers": 3})
    brokers = [f"{one.host}:{one.port}" for one in consumer.list_topics(timeout=60).brokers.values()]
    server = Answers()
    # The first server that is named is none.
    log = {"bodies": "1KiB", "to": {"kafka": ",".join([f"127.0.0.1:{free_port()}", *brokers]), "topic": "requests"}}
    executor = Executor(tmp_path, {"app": server.port}, log=log)
    try:
        for number in range(40):
            body = json.dumps({"number": number}).encode()
            with urllib.request.urlopen(f"http://{executor.address('app')}/predict", body) as answer:
                assert answer.read() == body
        consumer.subscribe(["requests"])
        lines = []

        def all_came():
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                lines.append((message.partition(), json.loads(message.value())))
            return len(lines) >= 40

        until(lambda: f"all lines: {lines}", all_came)
        assert sorted(line["request"]["body"]["number"] for _, line in lines) == list(range(40))
        assert {(line["path"], line["status"]) for _, line in lines} == {("/predict", 200)}
        # Each batch goes to the next partition, and so to another broker.
        assert len({partition for partition, _ in lines}) > 1

        def counted():
            with urllib.request.urlopen(f"http://127.0.0.1:{executor.admin}/metrics") as answer:
                return 'berth_executor_log_lines_total{port="app",result="written"} 40' in answer.read().decode()

        until("all lines to be counted", counted)
        assert executor.stop() == 0
    finally:
        if executor.runs():
            executor.kill()
        consumer.close()
        server.close()
