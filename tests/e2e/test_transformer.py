"""A real sentence-embedding transformer, from its published weights to an answer over gRPC."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tokenizers import Tokenizer

from harness.examples import manifest
from harness.waiting import PATIENCE, until

WEIGHTS = Path(os.environ["TRANSFORMER"])
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# The similarities that the model's authors publish for these sentences.
PUBLISHED = [0.6660, 0.1046, 0.1411]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = next(WEIGHTS.rglob("model.safetensors")).parent
    out = tmp_path_factory.mktemp("transformer") / "minilm.onnx"
    subprocess.run([sys.executable, Path(__file__).with_name("transformer_to_onnx.py"), folder, out], check=True, timeout=PATIENCE)
    return folder, out


def test_embeddings_are_what_the_authors_publish(berth, model):
    folder, artifact = model
    berth.start()
    digest = hashlib.sha256(artifact.read_bytes()).hexdigest()
    berth.apply(manifest("minilm", model={"uri": f"file:{artifact}", "sha256": digest}))
    berth.available("minilm")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    inputs = []
    for name, attribute in columns.items():
        array = np.array([getattr(sentence, attribute) for sentence in encoded], dtype=np.int64)
        inputs.append(triton.InferInput(name, list(array.shape), "INT64"))
        inputs[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(berth.http) as client:
        vectors = client.infer("minilm", inputs).as_numpy("sentence_embedding")
    similar = vectors @ vectors.T
    np.testing.assert_allclose([similar[0, 1], similar[0, 2], similar[1, 2]], PUBLISHED, atol=5e-4)
    # Measured, not guessed: the weights alone are 90 MB.
    memory = lambda: json.loads(berth.run("get", "replicas", "-o", "json"))["items"][0]["status"]["memory"]
    until(lambda: f"what was measured: {memory()}", lambda: memory() > 80_000_000)
