"""Calls a function the way its parameters ask for.

What a function is called with is a few named things: the *main* one (the path, the request, the output) and extra
ones (the config). Which parameter takes which is decided once, when the card is loaded:

1. by name, where the name is one of the known ones;
2. a parameter that has the name of a key of the config takes that key's value;
3. what is left and has no default takes what is left, in order;
4. ``*args`` takes the main thing if nobody else did, ``**kwargs`` takes the config's other keys.

What does not come out even is refused, with what was expected and what was found.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple

from .errors import CardError

#: Names that mean the config.
CONFIG_NAMES = frozenset(
    ["config", "cfg", "conf", "params", "parameters", "options", "opts", "settings", "hyperparameters", "model_config"]
)


class Role:
    """What a function is for, and by which names its parameters are known."""

    def __init__(self, what: str, main: str, names: List[str], batch: List[str], extra: Dict[str, List[str]]) -> None:
        self.what = what
        self.main = main
        self.names = frozenset(names)
        self.batch = frozenset(batch)
        self.extra = {slot: frozenset(known) for slot, known in extra.items()}


LOAD = Role(
    "the loading function",
    "path",
    "path model_path artifact artifact_path artifacts model_file file filename weights weights_path model_dir "
    "checkpoint checkpoint_path model_uri".split(),
    [],
    {"config_path": ["config_path", "config_file"]},
)
PREPROCESSING = Role(
    "the preprocessing function",
    "request",
    "request requests batch inputs input data x X document documents payload body features instance instances "
    "record row raw text".split(),
    ["requests", "batch", "inputs"],
    {},
)
MODEL = Role(
    "the model",
    "input",
    "input inputs x X data request requests batch features instance instances row sample tensor".split(),
    ["requests", "batch", "inputs"],
    {},
)
POSTPROCESSING = Role(
    "the postprocessing function",
    "output",
    "output outputs prediction predictions pred preds result results y y_pred logits scores probabilities batch "
    "model_output raw".split(),
    ["batch"],
    {"request": ["request", "original_request"]},
)


class Call:
    """A function with what each of its parameters takes."""

    def __init__(self, function: Callable[..., Any], role: Role, config: Any) -> None:
        self.function = function
        self.role = role
        self._config = config
        #: What parameters and ``**kwargs`` can take by name.
        self._keys: Dict[str, Any] = config if isinstance(config, dict) else {}
        self._positional: List[str] = []
        self._keywords: Dict[str, str] = {}
        self._fixed: Dict[str, Any] = {}
        #: True if it takes the main thing and nothing else.
        self.is_plain = False
        #: The name of the parameter that takes the main thing.
        self.main_name: Optional[str] = None
        self._bind()
        self.is_plain = self._positional == ["main"] and not self._keywords and not self._fixed

    def __call__(self, main: Any, **extra: Any) -> Any:
        things = {"main": main, "config": self._config}
        things.update(extra)
        arguments = [things.get(slot) for slot in self._positional]
        keywords = {name: things.get(slot) for name, slot in self._keywords.items()}
        return self.function(*arguments, **keywords, **self._fixed)

    @property
    def batch_by_name(self) -> bool:
        """Whether the name of its main parameter says that it takes many."""
        return self.main_name in self.role.batch

    def _bind(self) -> None:
        parameters = self._parameters()
        if parameters is None:
            # Written in C, and silent about what it takes: the main thing alone is what nearly all of them take.
            self._positional = ["main"]
            return
        chosen = self._choose(parameters)
        positional = True
        for parameter in parameters:
            kind = parameter.kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                if "main" not in chosen.values():
                    self._positional.append("main")
                    chosen[parameter.name] = "main"
                positional = False
                continue
            if kind is inspect.Parameter.VAR_KEYWORD:
                continue
            slot = chosen.get(parameter.name)
            if slot is None:
                # It keeps its default; what follows goes by name.
                positional = False
            elif slot.startswith("="):
                self._fixed[parameter.name] = self._keys[slot[1:]]
                positional = False
            elif positional and kind is not inspect.Parameter.KEYWORD_ONLY:
                self._positional.append(slot)
            elif kind is inspect.Parameter.POSITIONAL_ONLY:
                raise self._refusal(parameters, "{!r} can only be given by position".format(parameter.name))
            else:
                self._keywords[parameter.name] = slot
            if slot == "main":
                self.main_name = parameter.name
        self._rest(parameters, chosen)

    def _choose(self, parameters: List[inspect.Parameter]) -> Dict[str, str]:
        """Which parameter takes which thing."""
        chosen: Dict[str, str] = {}
        plain = [p for p in parameters if p.kind not in _VARIABLE]
        for slot, names in [("config", CONFIG_NAMES)] + [(s, n) for s, n in self.role.extra.items()]:
            for parameter in plain:
                if parameter.name in names and slot not in chosen.values():
                    chosen[parameter.name] = slot
        for parameter in plain:
            known = parameter.name in self.role.names and parameter.name not in chosen
            if known and "main" not in chosen.values():
                chosen[parameter.name] = "main"
        for parameter in plain:
            if parameter.name not in chosen and parameter.name in self._keys:
                chosen[parameter.name] = "=" + parameter.name
        required = [p for p in plain if p.default is inspect.Parameter.empty and p.name not in chosen]
        left = [slot for slot in ("main", "config") if slot not in chosen.values()]
        for parameter in required:
            if not left or (parameter.kind is inspect.Parameter.KEYWORD_ONLY and left[0] != "main"):
                raise self._refusal(parameters, "nothing is known that {!r} could take".format(parameter.name))
            chosen[parameter.name] = left.pop(0)
        optional = [p for p in plain if p.name not in chosen]
        if "main" not in chosen.values() and optional and not _takes_more(parameters):
            chosen[optional[0].name] = "main"
        return chosen

    def _rest(self, parameters: List[inspect.Parameter], chosen: Dict[str, str]) -> None:
        rest = next((p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
        if rest is not None and "config" not in chosen.values():
            named = {p.name for p in parameters}
            self._fixed.update({key: value for key, value in self._keys.items() if key not in named})
        if "main" in chosen.values():
            return
        if rest is not None:
            self._keywords[self.role.main] = "main"
            self._fixed.pop(self.role.main, None)
            return
        raise self._refusal(parameters, "no parameter takes the {}".format(self.role.main))

    def _parameters(self) -> Optional[List[inspect.Parameter]]:
        try:
            return list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            return None

    def _refusal(self, parameters: List[inspect.Parameter], why: str) -> CardError:
        found = "({})".format(", ".join(str(parameter) for parameter in parameters))
        expected = "({}, config)".format(self.role.main)
        return CardError(
            "{} {} has the parameters {}, and {}: expected {}, or ({}) alone".format(
                self.role.what, name_of(self.function), found, why, expected, self.role.main
            )
        )


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_more(parameters: List[inspect.Parameter]) -> bool:
    return any(parameter.kind in _VARIABLE for parameter in parameters)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, for people."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    module = getattr(function, "__module__", None)
    return "{}.{}".format(module, name) if module else str(name)


def checked(thing: Any, role: Role) -> Callable[..., Any]:
    """Refuses what cannot be called, or not like that."""
    if inspect.isclass(thing):
        raise CardError("{} {} is a class: name a function".format(role.what, name_of(thing)))
    if not callable(thing):
        raise CardError("{} is a {}, which cannot be called".format(role.what, type(thing).__name__))
    call = getattr(thing, "__call__", None)
    if inspect.iscoroutinefunction(thing) or inspect.iscoroutinefunction(call):
        raise CardError("{} {} is async: write it with plain `def`".format(role.what, name_of(thing)))
    return thing  # type: ignore[no-any-return]


def spread(function: Callable[..., Any]) -> Optional[Tuple[str, ...]]:
    """The names of the parameters of a function that needs more than one; None for all others."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    plain = [p for p in parameters if p.kind not in _VARIABLE]
    required = [p.name for p in plain if p.default is inspect.Parameter.empty]
    if len(required) > 1 or (not required and not plain and _takes_more(parameters)):
        return tuple(p.name for p in plain)
    return None
