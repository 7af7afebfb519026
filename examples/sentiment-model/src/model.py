"""Loads the classifier. What `load` returns is called with what preprocessing returned."""

import joblib


def load(path, config):
    """`path`: the weights, already fetched and checked. `config`: what is in the file of `artifacts.config_path`."""
    pipeline = joblib.load(path)
    classes = [str(name) for name in pipeline.classes_]
    temperature = float(config.get("temperature", 1.0))

    def predict(text):
        """The probability of each class."""
        weights = pipeline.predict_proba([text])[0] ** (1.0 / temperature)
        return dict(zip(classes, (weights / weights.sum()).tolist()))

    return predict
