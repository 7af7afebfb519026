"""The model of texts as a custom runtime of MLServer, whose own for scikit-learn takes numbers."""

import joblib
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse


class Text(MLModel):
    async def load(self) -> bool:
        self.model = joblib.load(self.settings.parameters.uri)
        return True

    async def predict(self, payload):
        labels = self.model.predict(StringCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("label", labels.tolist())])
