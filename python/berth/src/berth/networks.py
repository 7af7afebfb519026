"""Neural networks as PyTorch, Keras and TensorFlow save them."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from typing import Any, Callable, Dict, List

from .errors import InvalidModel
from .rows import Rows, fitted, typed


class Module:
    """A PyTorch module, without gradients."""

    def __init__(self, module: Any) -> None:
        #: The module itself.
        self.module = module

    def predict(self, input: Any) -> Any:
        """Runs one item: a mapping is spread over the module's parameters, a list becomes a tensor."""
        import torch

        with torch.no_grad():
            if isinstance(input, dict) or hasattr(input, "keys"):
                return self.module(**input)
            return self.module(torch.as_tensor(input) if isinstance(input, (list, tuple)) else input)


class SavedModule(Module):
    """A module from an artifact: arrays become tensors too, and numbers with fractions get the type that the module computes in."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._floats = _floats(module)

    def predict(self, input: Any) -> Any:
        """Runs one item, as :class:`Module` does."""
        if isinstance(input, dict) or hasattr(input, "keys"):
            return super().predict({name: self._tensor(value) for name, value in input.items()})
        return super().predict(self._tensor(input))

    def _tensor(self, value: Any) -> Any:
        import torch

        if hasattr(value, "__array__") and not isinstance(value, torch.Tensor):
            import numpy

            value = numpy.array(value)
        elif not isinstance(value, (list, tuple)):
            return value
        tensor = torch.as_tensor(value)
        return tensor.to(self._floats) if tensor.is_floating_point() else tensor


def pytorch(path: str) -> Module:
    """A TorchScript module, or a whole module in a pickle."""
    return SavedModule(_module(path, "cpu"))


def pytorch_rows(path: str) -> Rows:
    """The same, called with the rows of many requests in one tensor; on a GPU where this process has one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = _module(path, device)
    return Rows(module, ModuleOfRows(module, device))


class ModuleOfRows:
    """Calls a module with rows as a tensor, and gives its outputs as arrays."""

    def __init__(self, module: Any, device: str) -> None:
        self._module = module
        self._device = device
        self._type = _floats(module)

    def __call__(self, rows: Any) -> Any:
        import torch

        with torch.no_grad():
            try:
                return _arrays(self._module(self._tensor(rows)))
            except RuntimeError as error:
                if self._type is torch.int64 or not any(text in str(error) for text in _WANTS_PLACES):
                    if "TorchScript interpreter" not in str(error):
                        raise
                    # The reason is behind TorchScript's own traceback, which may be longer than what is told of an error.
                    raise RuntimeError(str(error).rstrip().rpartition("\nRuntimeError: ")[2]) from error
            # It begins with an embedding or the like, which takes places in a table. Nothing in a module says so before.
            self._type = torch.int64
            return _arrays(self._module(self._tensor(rows)))

    def _tensor(self, rows: Any) -> Any:
        import torch

        whole = self._type is torch.int64
        return torch.as_tensor(typed(rows, "int64" if whole else "float64"), dtype=self._type, device=self._device)


#: Words of PyTorch where it got numbers with fractions for places.
_WANTS_PLACES = ("Long, Int", "for index", "index tensor", "used as indices")


def _arrays(result: Any) -> Any:
    """A module's output as an array, or several by name."""
    import torch

    if isinstance(result, dict):
        return {name: _arrays(part) for name, part in result.items()}
    if isinstance(result, (tuple, list)) and len(result) == 1:
        return _arrays(result[0])
    if not hasattr(result, "detach"):
        raise TypeError(
            "the module returned a {}, not one tensor with a result for each row, or a dict of such: return that, or "
            "write a model card, whose postprocessing takes what there is".format(type(result).__name__)
        )
    # A module may turn gradients on again, or compute elsewhere than on the processor.
    result = result.detach().cpu()
    # numpy has no such numbers.
    return (result.to(torch.float32) if result.dtype == torch.bfloat16 else result).numpy()


def _floats(module: Any) -> Any:
    """The type of numbers with fractions that a module computes in: that of its first weight."""
    import torch

    for weights in (module.parameters(), module.buffers()):
        for weight in weights:
            if weight.is_floating_point():
                return weight.dtype
    return torch.float32


def _module(path: str, device: str) -> Any:
    import torch

    try:
        module = torch.jit.load(path, map_location=device)
    except RuntimeError as script:
        try:
            module = torch.load(path, map_location=device, weights_only=False)
        except TypeError:
            module = torch.load(path, map_location=device)
        except ImportError as error:
            # A package that the module's class needs.
            raise error from None
        except Exception as error:
            raise InvalidModel(_unreadable(path, script, error)) from None
    if not isinstance(module, torch.nn.Module):
        raise InvalidModel(
            "the artifact holds a {}, not a module: save the module itself, best as TorchScript, or write a model card, whose "
            "`load` function builds the module and fills in these weights".format(type(module).__name__)
        )
    module.eval()
    return module


def _unreadable(path: str, script: Exception, pickle: Exception) -> str:
    """The error of the form that the file has, since that of the other one misleads."""
    if _is_script(path):
        return "torch.jit.load cannot read it: {}".format(script)
    remedy = ""
    if isinstance(pickle, AttributeError):
        # Its class is defined in the program that saved it.
        remedy = (
            "; a pickle holds no code: save the module as TorchScript (torch.jit.script), which does, or write a model card "
            "whose code has the class"
        )
    return "it is no TorchScript, and torch.load cannot read it: {}{}".format(pickle, remedy)


def _is_script(path: str) -> bool:
    """True of an archive of TorchScript; a pickled module is an archive without constants."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


#: Endings of Keras's files.
KERAS = (".keras", ".h5", ".hdf5")


def tensorflow(path: str) -> Rows:
    """A Keras file, a SavedModel, a folder with one of them, or an archive of a SavedModel."""
    path = _within(path) if os.path.isdir(path) else path
    if os.path.isfile(path) and not path.endswith(KERAS):
        path = _unpacked(path)
    return _saved_model(path) if os.path.isdir(path) else _keras(path)


def _within(folder: str) -> str:
    """The SavedModel in a folder: the folder itself, or its highest version, as TensorFlow Serving lays them out; or the only
    Keras file."""
    names = sorted(os.listdir(folder))
    places = [folder] + [os.path.join(folder, name) for name in sorted(filter(str.isdecimal, names), key=int, reverse=True)]
    for place in places:
        if os.path.isfile(os.path.join(place, "saved_model.pb")):
            return place
    files = [name for name in names if name.endswith(KERAS)]
    if len(files) != 1:
        found = "no Keras file" if not files else "several Keras files: {}".format(", ".join(files))
        raise InvalidModel("the folder holds no saved_model.pb, and {}".format(found))
    return os.path.join(folder, files[0])


def _keras(path: str) -> Rows:
    keras = _installed_keras()
    try:
        model = keras.models.load_model(path, compile=False)
    except (TypeError, ValueError) as error:
        raise InvalidModel(_unread_keras(path, str(error))) from error
    inputs: List[Any] = list(getattr(model, "inputs", None) or [])
    one_input([one.name for one in inputs])
    kind = _kind(inputs[0].dtype if inputs else keras.backend.floatx())
    shape = tuple(inputs[0].shape)[1:] if inputs else None
    # JAX compiles a model for each number of rows that it meets.
    by_length = keras.backend.backend() == "jax"

    def predict(rows: Any) -> Any:
        table = fitted(typed(rows, kind), shape)
        more = _padding(len(table)) if by_length else 0
        result = _named(model, model.predict_on_batch(_repeated(table, more) if more else table))
        if not more:
            return result
        cut = len(table)
        return {name: part[:cut] for name, part in result.items()} if isinstance(result, dict) else result[:cut]

    return Rows(model, predict)


def _unread_keras(path: str, text: str) -> str:
    """The reason why Keras does not read a file, of its error's text."""
    if path.endswith(".keras") and not zipfile.is_zipfile(path):
        # Keras says that such a file is not there.
        return "it is no Keras file: a .keras file is a zip archive"
    # The cause is behind the configuration of the whole model, which may be longer than what is told of an error.
    cause = text.rpartition("Exception encountered: ")[2].partition(" Full object config:")[0]
    own = "Could not locate" in cause or "safe_mode" in cause
    remedy = "; write a model card, whose `load` function brings the layers that Keras does not load by itself" if own else ""
    return "keras cannot read the artifact: {}{}".format(cause.strip(), remedy)


def _installed_keras() -> Any:
    """Keras: TensorFlow's own where that is installed, else Keras 3 with the first backend that is."""
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as home

        return home.keras
    backends = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
    if backends:
        os.environ.setdefault("KERAS_BACKEND", backends[0])
    import keras

    return keras


def _kind(named: Any) -> Any:
    """numpy's type of a type of Keras; None where numpy has none, such as for texts."""
    import numpy

    try:
        # Of Keras 2 it is TensorFlow's own.
        return numpy.dtype(getattr(named, "as_numpy_dtype", named))
    except TypeError:
        return None


def _padding(rows: int) -> int:
    """The rows that are missing to a power of two."""
    return (1 << max(rows - 1, 0).bit_length()) - rows


def _repeated(table: Any, times: int) -> Any:
    """The table with its last row repeated at the end."""
    import numpy

    return numpy.concatenate([table, numpy.repeat(table[-1:], times, axis=0)])


def _named(model: Any, result: Any) -> Any:
    """The outputs of a Keras model by name, the only one as it is."""
    if not isinstance(result, (list, tuple)):
        return result
    if len(result) == 1:
        return result[0]
    names = list(getattr(model, "output_names", None) or [])
    if len(set(names)) != len(result):
        names = ["output_{}".format(at) for at in range(len(result))]
    return dict(zip(names, result))


def one_input(names: List[Any]) -> None:
    """Refuses a model with several inputs: rows of numbers are one."""
    if len(names) > 1:
        raise InvalidModel(
            "the model has the inputs {}, and rows of numbers are one: write a model card, whose `load` function gives "
            "what takes them".format(", ".join(map(repr, names)))
        )


def _saved_model(folder: str) -> Rows:
    import tensorflow

    loaded = tensorflow.saved_model.load(folder)
    function = _signature(loaded)
    inputs: Dict[str, Any] = getattr(function, "structured_input_signature", ((), {}))[1]
    one_input(list(inputs))
    if not inputs:
        return Rows(loaded, lambda rows: _of_tensors(function(tensorflow.convert_to_tensor(typed(rows, "float32")))))
    name, spec = next(iter(inputs.items()))
    shape = None if spec.shape.rank is None else spec.shape.as_list()[1:]

    def predict(rows: Any) -> Any:
        table = fitted(typed(rows, spec.dtype.as_numpy_dtype), shape)
        return _of_tensors(function(**{name: tensorflow.convert_to_tensor(table)}))

    return Rows(loaded, predict)


def _signature(loaded: Any) -> Callable[..., Any]:
    """The function of a SavedModel that answers: `serving_default`, else the only one, else the model itself."""
    signatures = dict(loaded.signatures)
    if "serving_default" in signatures:
        return signatures["serving_default"]  # type: ignore[no-any-return]
    if len(signatures) == 1:
        return next(iter(signatures.values()))  # type: ignore[no-any-return]
    if not signatures and callable(loaded):
        return loaded  # type: ignore[no-any-return]
    found = "the signatures {}".format(", ".join(map(repr, sorted(signatures)))) if signatures else "no signature"
    raise InvalidModel("the SavedModel has {}: save it with one, or with one named 'serving_default'".format(found))


def _of_tensors(result: Any) -> Any:
    """TensorFlow's outputs as arrays by name, the only one as it is."""
    if isinstance(result, dict):
        parts = {name: _of_tensors(part) for name, part in result.items()}
        return next(iter(parts.values())) if len(parts) == 1 else parts
    if isinstance(result, (list, tuple)):
        return _of_tensors({"output_{}".format(at): part for at, part in enumerate(result)})
    return result.numpy() if hasattr(result, "numpy") else result


def _unpacked(path: str) -> str:
    """The SavedModel in an archive, unpacked into a folder that goes with the process."""
    import tarfile
    import tempfile

    folder = os.path.realpath(tempfile.mkdtemp())

    def inside(name: str) -> bool:
        return os.path.realpath(os.path.join(folder, name)).startswith(folder + os.sep)

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if inside(name)])
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            plain = [entry for entry in tar if (entry.isfile() or entry.isdir()) and inside(entry.name)]
            tar.extractall(folder, plain)
    else:
        raise InvalidModel("it is neither .keras nor .h5, nor a .zip or .tar of a SavedModel")
    for root, _, files in os.walk(folder):
        if "saved_model.pb" in files:
            return root
    raise InvalidModel("the archive holds no saved_model.pb")
