"""Loads the classifier. What `load` returns is called with what preprocessing returned."""

import json

import joblib


def load(path, config=None):
    """`path`: the weights, already fetched and checked. `config`: the file of `artifacts.config_path`, if the card names one."""
    pipeline = joblib.load(path)
    classes = [str(name) for name in pipeline.classes_]
    temperature = 1.0
    if config is not None:
        with open(config, encoding="utf-8") as file:
            temperature = float(json.load(file).get("temperature", 1.0))

    def predict(text):
        """The probability of each class."""
        weights = pipeline.predict_proba([text])[0] ** (1.0 / temperature)
        return dict(zip(classes, (weights / weights.sum()).tolist()))

    return predict
