"""From the model's output to the answer."""


def label(output, config):
    """The likeliest class; `neutral` where even that is not likely enough."""
    scores = {name: round(float(output.get(name, 0.0)), 4) for name in config["labels"]}
    best = max(scores, key=scores.get)
    confidence = scores[best]
    if confidence < config["confidence_threshold"]:
        best = "neutral"
    return {"sentiment": best, "confidence": confidence, "scores": scores}
