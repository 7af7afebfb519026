"""The ONNX model behind Triton's python backend: the engine with one thread, requests joined by Triton's batcher where the model takes batches."""

import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options)
        self.batches = json.loads(args["model_config"]).get("max_batch_size", 0) > 1
        self.shapes = {tensor.name: tensor.shape for tensor in self.session.get_inputs()}
        self.inputs = [tensor.name for tensor in self.session.get_inputs()]
        self.outputs = [tensor.name for tensor in self.session.get_outputs()]

    def execute(self, requests):
        return self.joined(requests) if self.batches else [self.alone(request) for request in requests]

    def alone(self, request):
        feeds = {name: pb.get_input_tensor_by_name(request, name).as_numpy().reshape(self.shapes[name]) for name in self.inputs}
        results = self.session.run(self.outputs, feeds)
        return pb.InferenceResponse([pb.Tensor(name, array.reshape(1, -1)) for name, array in zip(self.outputs, results)])

    def joined(self, requests):
        feeds = [[pb.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs] for request in requests]
        joined = {name: np.concatenate([feed[i] for feed in feeds]) for i, name in enumerate(self.inputs)}
        results = self.session.run(self.outputs, joined)
        responses, start = [], 0
        for feed in feeds:
            end = start + len(feed[0])
            # Triton wants two dimensions where the model has a vector per batch.
            tensors = [pb.Tensor(name, array[start:end].reshape(end - start, -1)) for name, array in zip(self.outputs, results)]
            responses.append(pb.InferenceResponse(tensors))
            start = end
        return responses
