"""Functions that Berth has built (docs/functions.md): their artifact, unpacked and imported, asked with the JSON of a request."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import tempfile
import zipfile
from typing import Any, Callable

from .errors import InvalidModel


def unchanged(value: Any, config: Any = None) -> Any:
    """The request for the function, and its answer, as they are."""
    return value


class _Answers:
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def predict(self, body: Any) -> Any:
        value = self._function(body)
        return asyncio.run(value) if inspect.iscoroutine(value) else value


def load(path: str) -> Any:
    """The function that the artifact's ``berth.json`` names."""
    # The folder of the process goes with it.
    folder = tempfile.mkdtemp(prefix="function-", dir=os.getcwd())
    with zipfile.ZipFile(path) as artifact:
        artifact.extractall(folder)
    with open(os.path.join(folder, "berth.json"), encoding="utf-8") as file:
        about = json.load(file)
    sys.path[:0] = [folder, os.path.join(folder, ".python_packages", "lib", "site-packages")]
    os.chdir(folder)
    module = importlib.import_module(about["module"])
    function = getattr(module, about["function"], None)
    if not callable(function):
        raise InvalidModel("{} has no {}, which spec.entrypoint names".format(about["module"], about["function"]))
    parameters = list(inspect.signature(function).parameters.values())
    annotation = parameters[0].annotation if parameters else None
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if name.rsplit(".", 1)[-1] == "HttpRequest" or len([one for one in parameters if one.default is one.empty]) > 1:
        raise InvalidModel(
            "{} takes a request of Azure Functions, and replicas give it the JSON of the body: use spec.target.platform "
            "local or azure-function".format(about["function"])
        )
    return _Answers(function)
