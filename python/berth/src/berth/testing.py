"""Runs a card where its author sits: in tests and notebooks, without a worker.

    from berth.testing import Model

    model = Model("model-card.yaml", artifact="model.joblib")
    assert model({"text": "fine"})["sentiment"] == "positive"

The card is loaded and called as a worker does it. Schemas are checked where the package ``jsonschema`` is installed,
YAML is read where ``yaml`` is; a card in JSON needs neither.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

from .errors import RequestError
from .pipeline import Failed, Pipeline

__all__ = ["Model", "read_card"]


def read_card(path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
    """A card from a file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        card = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise RuntimeError("to read a card in YAML, install PyYAML") from None
        card = yaml.safe_load(text)
    if not isinstance(card, dict):
        raise ValueError("{} holds no card".format(path))
    return card


class Model:
    """A card's model, loaded."""

    def __init__(
        self,
        card: Union[str, "os.PathLike[str]", Dict[str, Any]],
        artifact: str,
        config: Optional[str] = None,
        root: Optional[str] = None,
    ) -> None:
        """Loads it.

        ``artifact`` and ``config`` are local copies of what ``artifacts.model_path`` and ``artifacts.config_path``
        name. ``root`` is the repository's root: the card's folder, unless said otherwise.
        """
        if isinstance(card, dict):
            self.card, folder = card, os.getcwd()
        else:
            self.card, folder = read_card(card), os.path.dirname(os.path.abspath(os.fspath(card)))
        root = os.path.abspath(root or folder)
        code = self.card["code"]
        for path in reversed([root, os.path.normpath(os.path.join(root, code.get("path") or "."))]):
            if path not in sys.path:
                sys.path.insert(0, path)
        interface = self.card["interface"]
        self.pipeline = Pipeline(
            {
                "framework": self.card["runtime"]["framework"],
                "entrypoint": code.get("entrypoint"),
                "model_path": os.path.abspath(artifact),
                "config_path": os.path.abspath(config) if config else None,
                "preprocessing": self.card["preprocessing"],
                "postprocessing": self.card["postprocessing"],
                "batch_size": interface.get("batch_size"),
                "arrays": [name for name, schema in _properties(interface["input_schema"]) if _is_array(schema)],
            },
            lambda step: None,
        )
        for step in self.pipeline.steps:
            # Whoever presses Ctrl-C waits for no other request.
            step.passed_on = (KeyboardInterrupt,)

    def __call__(self, request: Any) -> Any:
        """The answer to one request."""
        return self.batch([request])[0]

    def batch(self, requests: List[Any]) -> List[Any]:
        """The answers to some requests, run together; at most ``interface.batch_size``."""
        if len(requests) > self.pipeline.batch_size:
            raise ValueError("{} requests for a batch size of {}".format(len(requests), self.pipeline.batch_size))
        interface = self.card["interface"]
        encoded: List[Tuple[memoryview, List[List[Any]]]] = []
        for request in requests:
            _check(request, interface["input_schema"], "input_schema")
            encoded.append((memoryview(json.dumps(request).encode()), []))
        answers = []
        for answer in self.pipeline.run(encoded, memoryview(b"")):
            if type(answer) is Failed:
                raise answer.error
            answer = json.loads(answer)
            _check(answer, interface["output_schema"], "output_schema")
            answers.append(answer)
        return answers


def _properties(schema: Any) -> List[Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties.items()) if isinstance(properties, dict) else []


def _is_array(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "array"


def _check(document: Any, schema: Any, which: str) -> None:
    try:
        import jsonschema
    except ImportError:
        return
    error = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(document)), None)
    if error is None:
        return
    path = "".join("/{}".format(part) for part in error.absolute_path)
    if which == "input_schema":
        raise RequestError(error.message, path)
    raise AssertionError("the answer is not as interface.output_schema says: at {!r}: {}".format(path, error.message))
