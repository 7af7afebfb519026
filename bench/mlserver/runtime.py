"""The ONNX model as an MLServer custom runtime: the engine with one thread, as Berth runs it."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Onnx(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        return True

    async def predict(self, payload):
        feed = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        results = self.session.run(names, feed)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, results)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
