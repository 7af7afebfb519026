"""A model server of KServe's SDK, as its users write them: one model, which multiplies by the number in its file."""

import argparse
from pathlib import Path

import kserve


class Scale(kserve.Model):
    def __init__(self, name: str, folder: Path):
        super().__init__(name)
        self.factor = float((folder / "factor.txt").read_text())
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        scaled = payload.inputs[0].as_numpy() * self.factor
        output = kserve.InferOutput("y", list(scaled.shape), "FP64")
        output.set_data_from_numpy(scaled, binary_data=False)
        return kserve.InferResponse(payload.id, self.name, [output])


parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
parser.add_argument("--model_dir", type=Path, required=True)
arguments, _ = parser.parse_known_args()

if __name__ == "__main__":
    kserve.ModelServer().start([Scale(arguments.model_name, arguments.model_dir)])
