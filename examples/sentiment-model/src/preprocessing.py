"""From a request to what the model takes."""

import re

TAG = re.compile(r"<[^>]*>")
SPACE = re.compile(r"\s+")


def clean(request, config):
    """`{"text": "..."}` becomes one plain line of at most `max_length` characters."""
    text = SPACE.sub(" ", TAG.sub(" ", request["text"])).strip()
    if config.get("lowercase", True):
        text = text.lower()
    return text[: config["max_length"]]
