"""Artifacts over HTTP and from an S3-compatible server."""

import hashlib
import os

import boto3
import pytest
from moto.server import ThreadedMotoServer

from harness.examples import ARTIFACTS, manifest
from harness.waiting import until

FOREST = (ARTIFACTS / "digits-forest.onnx").read_bytes()


def test_http_checked_by_digest(berth, files):
    files.files["forest.onnx"] = FOREST
    berth.start()
    berth.apply(manifest("forest", model={"uri": files.place("forest.onnx"), "sha256": hashlib.sha256(FOREST).hexdigest()}))
    berth.available("forest")
    # A second deployment of the same content needs no second download.
    fetched = files.gets
    berth.apply(manifest("twin", model={"uri": files.place("forest.onnx"), "sha256": hashlib.sha256(FOREST).hexdigest()}))
    berth.available("twin")
    assert files.gets == fetched


def test_http_resumes_after_a_break(berth, files):
    files.files["forest.onnx"] = FOREST
    files.break_after = 500_000
    berth.start()
    berth.apply(manifest("forest", model={"uri": files.place("forest.onnx"), "sha256": hashlib.sha256(FOREST).hexdigest()}))
    berth.available("forest")


def test_http_missing_is_said(berth, files):
    berth.start()
    berth.apply(manifest("gone", model={"uri": files.place("gone.onnx")}))
    until("the failure to show", lambda: berth.status("gone")["phase"] == "Failed")
    until("people to read what is missing", lambda: files.place("gone.onnx") in berth.run("describe", "deployment", "gone"))


@pytest.fixture
def s3():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_s3(berth, s3):
    credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for key in ("AWS_CA_BUNDLE",):
        os.environ.pop(key, None)
    client = boto3.client(
        "s3", endpoint_url=s3, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    client.create_bucket(Bucket="models")
    client.put_object(Bucket="models", Key="digits/forest.onnx", Body=FOREST)
    berth.start(env=credentials | {"AWS_ENDPOINT_URL": s3})
    berth.apply(manifest("forest", model={"uri": "s3://models/digits/forest.onnx"}))
    berth.available("forest")
    berth.apply(manifest("missing", model={"uri": "s3://models/nothing.onnx"}))
    until("the failure to show", lambda: berth.status("missing")["phase"] == "Failed")
