"""What the code of a model card may use. Nothing here has to be imported: plain functions do.

* :func:`batched` marks a function that takes many requests at once.
* :func:`arrays` marks a preprocessing function that takes numpy arrays instead of lists.
* :class:`RequestError` says that the request is at fault, not the model.
* :data:`log` writes to the worker's log.
* :data:`Config` is the type of what functions get as their ``config``.
* :mod:`berth.testing` runs a card where its author sits.

A worker puts this package on the path of every model; nothing is to be installed there.
"""

from .errors import RequestError
from .logs import log
from .marks import Config, arrays, batched

__all__ = ["Config", "RequestError", "arrays", "batched", "log"]
__version__ = "0.1.0"
