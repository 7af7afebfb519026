"""Errors that name what a request named: as long as the request, once."""

from __future__ import annotations

import json
import threading

import grpc
import pytest
from cluster import Cluster
from conftest import deployment

from harness.waiting import PATIENCE, until

MIB = 1 << 20


def field(number: int, value: bytes) -> bytes:
    """A field of a message, of bytes or of text."""
    length, digits = len(value), b""
    while length >= 128:
        digits, length = digits + bytes([length % 128 + 128]), length // 128
    return bytes([number << 3 | 2]) + digits + bytes([length]) + value


def refused(address: str, name: bytes, headers: dict | None = None) -> grpc.RpcError:
    """The error of an inference over gRPC with an input of this name."""
    tensor = field(1, name) + field(2, b"FP32") + field(3, b"\x01")
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        call(field(1, b"add") + field(5, tensor), timeout=PATIENCE, metadata=list((headers or {}).items()))
    return error.value


def test_an_error_is_no_longer_than_clients_take(berth):
    """A million dimensions came back as three megabytes. Over gRPC a long text is no answer at all: it is a header."""
    berth.start()
    berth.apply(deployment("add", "add"))
    berth.available("add")
    for inputs in (
        [{"name": name, "shape": [1] * 1_000_000, "datatype": "FP32", "data": [1]} for name in ("x", "y")],
        [{"name": "n" * MIB, "shape": [1], "datatype": "FP32", "data": [1]}],
    ):
        status, _, body = berth.post("/v2/models/add/infer", {"inputs": inputs})
        assert status == 400 and len(body) < 16 << 10, (status, len(body))
    for size in (100, 20_000, MIB):
        error = refused(berth.http, b"n" * size)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "nnnnn" in error.details(), (size, error)
    # ModelMesh's calls repeat the id of a model.
    with grpc.insecure_channel(berth.http) as channel, pytest.raises(grpc.RpcError) as unregistered:
        call = channel.unary_unary("/mmesh.ModelMesh/unregisterModel")
        call(field(1, b"n" * (MIB - 100)), timeout=PATIENCE)
    assert unregistered.value.code() == grpc.StatusCode.INVALID_ARGUMENT, unregistered.value


def test_an_error_between_nodes_breaks_nobody_elses_request(tmp_path):
    """A caller of one model had the node with the model answer another one by a header of a megabyte: the connection between them ended,
    with the requests of others on it, and the node got no requests for a while."""
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        headers = cluster.bearer()
        assert cluster.leader.control("/v1/apply", "POST", json.dumps(deployment("add", "add")), headers)[0] == 200

        def replicas() -> list[str]:
            items = json.loads(cluster.leader.control("/v1/replicas", headers=headers)[2])["items"]
            return [item["status"]["worker"] for item in items if item["status"]["state"] == "Ready"]

        holder = until("a replica", replicas)[0]
        gateway = next(node for node in cluster.nodes if node.name != holder)
        inputs = [{"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for name in ("x", "y")]

        def infer() -> int:
            return gateway.ask(gateway.http, "POST", "/v2/models/add/infer", json.dumps({"inputs": inputs}), headers)[0]

        until("the gateway to know it", lambda: infer() == 200)
        answers: list[int] = []
        done = threading.Event()

        def goes_on() -> None:
            while not done.is_set():
                answers.append(infer())

        others = [threading.Thread(target=goes_on) for _ in range(6)]
        for other in others:
            other.start()
        try:
            errors = [refused(gateway.http, b"n" * MIB, headers) for _ in range(20)]
        finally:
            done.set()
            for other in others:
                other.join()
        assert answers and set(answers) == {200}, {status: answers.count(status) for status in set(answers)}
        assert {error.code() for error in errors} == {grpc.StatusCode.INVALID_ARGUMENT}, errors[0]
        assert "does not answer requests" not in gateway.logged()
    finally:
        cluster.close()
