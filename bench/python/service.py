"""A model behind BentoML: one worker, and its adaptive batching."""

import os
from pathlib import Path

import bentoml
import numpy as np
from models import file_of, load

FOLDER, NAME = Path(os.environ["MODELS"]), os.environ["MODEL"]


@bentoml.service(workers=1, traffic={"timeout": 60})
class Served:
    def __init__(self):
        self.model = load(file_of(FOLDER, NAME))

    if NAME == "text":

        @bentoml.api(batchable=True, max_batch_size=64)
        def predict(self, rows: list[str]) -> list[str]:
            return self.model(rows).tolist()

    else:

        @bentoml.api(batchable=True, max_batch_size=64)
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return self.model(rows)
