"""The model of texts as a model card: all texts that wait in one call."""

import joblib


def load(path):
    pipeline = joblib.load(path)

    def predict(inputs):
        return pipeline.predict(inputs).tolist()

    return predict


def text(request):
    return request["text"]


def label(output):
    return {"label": output}
