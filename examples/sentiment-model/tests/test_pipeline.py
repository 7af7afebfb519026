"""The functions of the card are plain functions: they are tested without a server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from src.postprocessing import label
from src.preprocessing import clean

PRE = {"max_length": 20, "lowercase": True}
POST = {"labels": ["negative", "neutral", "positive"], "confidence_threshold": 0.6}


def test_text_becomes_one_plain_line():
    assert clean({"text": " A <b>Great</b>\n film, truly, truly"}, PRE) == "a great film, truly,"


def test_an_unsure_model_is_neutral():
    assert label({"negative": 0.45, "positive": 0.55}, POST)["sentiment"] == "neutral"
    sure = label({"negative": 0.1, "positive": 0.9}, POST)
    assert sure == {"sentiment": "positive", "confidence": 0.9, "scores": {"negative": 0.1, "neutral": 0.0, "positive": 0.9}}
