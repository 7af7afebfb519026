"""Counts words."""


def predict(body):
    return {"words": len(body["text"].split())}
