"""A card's model in this process: loaded, and run.

    request -> preprocessing -> model -> postprocessing -> answer

Requests come in batches of 1 to ``interface.batch_size``. Each of the three steps takes the whole batch as a list
if it is marked (:func:`berth.batched`, or by the name of its parameter where the batch size is above 1), and else one
item after the other. A request that fails, fails alone: where a step fails for a batch, it is run again for each.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from . import documents, loaders, networks
from .adapt import LOAD, MODEL, POSTPROCESSING, PREPROCESSING, Call, Role, checked, name_of, spread
from .errors import CardError, MissingPackage, RequestError, described, message_of, refusal
from .marks import is_batched, takes_arrays

#: The names under which the loading function of an entrypoint is looked for.
LOADING = ("load", "load_model", "Model")


class Failed:
    """What came of a request that failed, and in which step."""

    def __init__(self, stage: str, error: BaseException) -> None:
        self.stage = stage
        self.error = error

    def told(self, with_trace: bool = True) -> Dict[str, Any]:
        """As it crosses to the worker."""
        if isinstance(self.error, RequestError):
            return {"request": refusal(self.error)}
        return dict(described(self.error, with_trace), stage=self.stage)


class Step:
    """One of the three steps.

    Whatever its code raises is a failure of the request: also what Python's own programs end with, such as ``SystemExit``,
    ``KeyboardInterrupt`` and the ``CancelledError`` of asyncio. The process is the worker's to end.
    """

    #: Errors that are raised all the same.
    passed_on: Tuple[Type[BaseException], ...] = ()

    def __init__(self, stage: str, function: Callable[..., Any], role: Role, config: Any, batch_size: int) -> None:
        self.stage = stage
        checked(function, role)
        self._spread = spread(function) if role is MODEL else None
        self._call = None if self._spread else Call(function, role, config)
        self._function = function
        #: Called with the item alone.
        self._plain = function if self._call is not None and self._call.is_plain else None
        by_name = self._call is not None and self._call.batch_by_name and batch_size > 1
        self.batched = is_batched(function) or by_name
        #: Something to say about the step when it fails.
        self.hint = ""
        if by_name and not is_batched(function) and self._call is not None:
            self.hint = " ({} takes a list of requests, because its parameter is named {!r})".format(
                name_of(function), self._call.main_name
            )

    def run(self, items: List[Any], requests: List[Any]) -> List[Any]:
        """What came of each item: a result or :class:`Failed`. Items that have failed are passed by."""
        # Asking `isinstance` would call code of the item's type.
        well = [index for index, item in enumerate(items) if type(item) is not Failed]
        results = list(items)
        if self.batched and well:
            try:
                if len(well) == len(items):
                    return self._together(list(items), list(requests))
                together = self._together([items[index] for index in well], [requests[index] for index in well])
                for index, result in zip(well, together):
                    results[index] = result
                return results
            except self.passed_on:
                raise
            except BaseException as error:
                if len(well) == 1:
                    results[well[0]] = Failed(self.stage, self._explained(error))
                    return results
        for index in well:
            results[index] = self._alone(items[index], requests[index])
        return results

    def _together(self, items: List[Any], requests: List[Any]) -> List[Any]:
        results = self._called(items, requests)
        try:
            count = len(results)
        except TypeError:
            kind = type(results).__name__
            raise TypeError("{} got a list of {} and returned a {}".format(self.name, len(items), kind)) from None
        found = list(results) if count == len(items) and (type(results) is list or _is_listed(results)) else []
        if len(found) != len(items):
            raise TypeError(
                "{} got a list of {} and returned a {} of {}: return a list with one result for each".format(
                    self.name, len(items), type(results).__name__, count
                )
            )
        return found

    def _alone(self, item: Any, request: Any) -> Any:
        try:
            if self.batched:
                return self._together([item], [request])[0]
            return self._called(item, request)
        except self.passed_on:
            raise
        except BaseException as error:
            return Failed(self.stage, self._explained(error))

    def _called(self, item: Any, request: Any) -> Any:
        if self._plain is not None:
            return self._plain(item)
        if self._call is not None:
            return self._call(item, request=request)
        if isinstance(item, dict) or hasattr(item, "keys"):
            return self._function(**item)
        if isinstance(item, (tuple, list)) and not self.batched:
            return self._function(*item)
        return self._function(item)

    @property
    def name(self) -> str:
        """Its function, for people."""
        return name_of(self._function)

    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, SystemExit):
            return RuntimeError("the code called sys.exit({})".format(message_of(error)))
        if self.hint and isinstance(error, (TypeError, AttributeError, KeyError)) and error.args:
            try:
                error.args = (str(error.args[0]) + self.hint,) + error.args[1:]
            except BaseException:  # A broken __str__ must not hide the error itself.
                return error
        return error


class Pipeline:
    """A card's model."""

    def __init__(self, spec: Dict[str, Any], tell: Callable[[str], None]) -> None:
        """Loads it. ``spec`` is what the worker says of the card; ``tell`` hears which step begins."""
        self.notes: List[str] = []
        self._spec = spec
        self.batch_size = int(spec.get("batch_size") or 1)
        tell("initialising")
        model = self._model()
        tell("functions")
        pre = self._function("preprocessing", PREPROCESSING)
        post = self._function("postprocessing", POSTPROCESSING)
        #: In their order.
        self.steps = (pre, Step("model", model, MODEL, {}, self.batch_size), post)
        self._array_names: List[str] = list(spec.get("arrays") or [])
        self.as_arrays = takes_arrays(self._load_function(spec["preprocessing"]))
        self._numpy = importlib.import_module("numpy") if self.as_arrays else None
        _without_checks_of_parameters()

    @property
    def batched(self) -> Dict[str, bool]:
        """Which steps take lists."""
        return {step.stage: step.batched for step in self.steps}

    def run(
        self,
        requests: List[Tuple[memoryview, List[List[Any]]]],
        body: memoryview,
        computed: Callable[[], None] = lambda: None,
    ) -> List[Any]:
        """The answers to some requests, each as bytes or :class:`Failed`. ``computed`` is called when all
        that is left is to write them."""
        items: List[Any] = []
        for text, attached in requests:
            try:
                items.append(documents.decode(text, attached, body, self._numpy, self._array_names))
            except BaseException as error:
                items.append(Failed("input", error))
        originals = items
        for step in self.steps:
            items = step.run(items, originals)
        computed()
        return [self._encoded(item) for item in items]

    def _encoded(self, item: Any) -> Any:
        if type(item) is Failed:
            return item
        try:
            return documents.encode(item)
        except BaseException as error:
            return Failed("answer", error)

    def _model(self) -> Callable[..., Any]:
        path, framework = self._spec["model_path"], self._spec["framework"]
        load = self._loading_function()
        if load is None:
            if not loaders.has_default(framework):
                raise CardError(
                    "framework {!r} needs a loading function: name its module in code.entrypoint, e.g. `src.model` "
                    "with `def load(path)`".format(framework)
                )
            loaded = loaders.read(framework, loaders.default(framework), path)
        else:
            call = Call(load, LOAD, self._config())
            loaded = call(path, config_path=self._spec.get("config_path"))
        if loaded is None:
            raise CardError("{} returned None: return the model".format(name_of(load) if load else framework))
        if framework == "pytorch":
            loaded = self._without_gradients(loaded)
        if loaders.is_estimator(loaded):
            return loaders.Tables(loaded).predict
        predict = getattr(loaded, "predict", None)
        if callable(predict):
            return predict  # type: ignore[no-any-return]
        if callable(loaded):
            return loaded  # type: ignore[no-any-return]
        raise CardError(
            "{} returned a {}, which has no `predict` and cannot be called".format(
                name_of(load) if load else framework, type(loaded).__name__
            )
        )

    def _without_gradients(self, loaded: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(loaded, torch.nn.Module):
            return loaded
        loaded.eval()
        return loaded if callable(getattr(loaded, "predict", None)) else networks.Module(loaded)

    def _loading_function(self) -> Optional[Callable[..., Any]]:
        entrypoint = self._spec.get("entrypoint")
        if not entrypoint:
            return None
        name, _, wanted = entrypoint.partition(":")
        module = _imported(name, "code.entrypoint")
        if wanted:
            return self._attribute(module, wanted, "code.entrypoint")
        for name in LOADING:
            found = getattr(module, name, None)
            if callable(found):
                return found  # type: ignore[no-any-return]
        if loaders.has_default(self._spec["framework"]):
            self.notes.append(
                "module {} has no loading function: the artifact is read as {} does".format(
                    entrypoint, self._spec["framework"]
                )
            )
            return None
        raise CardError(
            "module {} (code.entrypoint) has no loading function: expected `def load(path)` or `def load(path, config)`, "
            "found {}".format(entrypoint, _callables(module))
        )

    def _config(self) -> Any:
        """What ``artifacts.config_path`` names: JSON as its value, anything else as its path."""
        path = self._spec.get("config_path")
        if not path:
            return {}
        if str(path).endswith((".json", ".JSON")):
            with open(path, encoding="utf-8") as file:
                try:
                    return json.load(file)
                except ValueError as error:
                    name = os.path.basename(path)
                    raise CardError("artifacts.config_path: {} is no JSON: {}".format(name, error)) from None
        return str(path)

    def _function(self, stage: str, role: Role) -> Step:
        described_ = self._spec[stage]
        function = self._load_function(described_, stage)
        return Step(stage, function, role, described_.get("config") or {}, self.batch_size)

    def _load_function(self, function: Dict[str, Any], stage: str = "preprocessing") -> Callable[..., Any]:
        module = _imported(function["module"], stage + ".module")
        return self._attribute(module, function["function"], stage + ".function")

    @staticmethod
    def _attribute(module: Any, name: str, where: str) -> Callable[..., Any]:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise CardError(
                    "module {} has no {!r} ({}): it has {}".format(module.__name__, name, where, _callables(module))
                )
        return found  # type: ignore[no-any-return]


def _is_listed(results: Any) -> bool:
    """False for what lists other things than results: a table its columns, a mapping its names, a set in any order."""
    return not isinstance(results, (Mapping, set, frozenset, str, bytes)) and not hasattr(results, "columns")


def _without_checks_of_parameters() -> None:
    """Has scikit-learn leave out checks of what a model was made with, which take a part of each prediction. Rows are checked."""
    sklearn = sys.modules.get("sklearn")
    if sklearn is not None and hasattr(sklearn, "get_config") and "skip_parameter_validation" in sklearn.get_config():
        sklearn.set_config(skip_parameter_validation=True)


def _callables(module: Any) -> str:
    own = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    own = [name for name in own if getattr(vars(module)[name], "__module__", None) == module.__name__]
    return ", ".join("`{}`".format(name) for name in sorted(own)[:12]) or "no functions of its own"


def _imported(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise CardError(
                "there is no module {} ({}): modules are looked for from the repository's root, and from code.path".format(
                    name, where
                )
            ) from None
        raise MissingPackage(
            "module {} ({}) imports {!r}, which is not installed: add it to runtime.dependencies".format(
                name, where, missing
            )
        ) from error
