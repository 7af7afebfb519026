"""Scores a text with a model that Keras has saved (`model.keras`). It is read with h5py: Keras and a backend would add half a gigabyte
to the artifact. Code that imports Keras works, too."""

import io
import json
import os
import zipfile

import h5py
import numpy as np

GOOD, BAD = {"good", "great", "love"}, {"bad", "poor", "hate"}
ACTIVATIONS = {"linear": lambda x: x, "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x))}


def load(path):
    """The dense layers of a sequential model: weights, bias, activation."""
    with zipfile.ZipFile(path) as saved:
        config = json.loads(saved.read("config.json"))
        weights = h5py.File(io.BytesIO(saved.read("model.weights.h5")))
    dense = [layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense"]
    names = ["dense" if at == 0 else f"dense_{at}" for at in range(len(dense))]
    stored = [weights[f"layers/{name}/vars"] for name in names]
    return [(v["0"][:], v["1"][:], ACTIVATIONS[layer["config"]["activation"]]) for layer, v in zip(dense, stored)]


LAYERS = load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.keras"))


def predict(body):
    words = body["text"].lower().split()
    x = np.array([sum(word in GOOD for word in words), sum(word in BAD for word in words)], dtype="float32")
    for kernel, bias, activation in LAYERS:
        x = activation(x @ kernel + bias)
    return {"positive": x[0]}
