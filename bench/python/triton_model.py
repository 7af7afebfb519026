"""A model behind Triton's python backend: the rows of all requests that Triton's batcher joined run in one call."""

import json
import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb
from models import file_of, load


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.texts = config["input"][0]["data_type"] == "TYPE_STRING"
        self.model = load(file_of(Path(os.environ["MODELS"]), args["model_name"]))

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "rows").as_numpy() for request in requests]
        joined = np.concatenate(inputs)
        if self.texts:
            results = np.asarray([label.encode() for label in self.model([text.decode() for text in joined[:, 0]])], dtype=object)
        else:
            results = np.asarray(self.model(joined), dtype=np.float32)
        responses, start = [], 0
        for rows in inputs:
            end = start + len(rows)
            responses.append(pb.InferenceResponse([pb.Tensor("result", results[start:end].reshape(end - start, 1))]))
            start = end
        return responses
