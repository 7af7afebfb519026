"""The log of a model: lines of :data:`log` and of Python's own ``logging`` go to the worker's log."""

from __future__ import annotations

import logging
from typing import Callable

from .errors import shortened

#: A logger for the model's code. In the worker its lines come with the deployment's name; elsewhere it is an
#: ordinary logger.
log = logging.getLogger("berth.model")

#: The most characters of a line.
MAX_LINE = 4 * 1024

#: Writes one line: its level and its text.
Sink = Callable[[str, str], None]


class _Handler(logging.Handler):
    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.name not in ("root", log.name):
                text = "{}: {}".format(record.name, text)
            if record.exc_info:
                text = "{}\n{}".format(text, logging.Formatter().formatException(record.exc_info))
            self._sink(record.levelname.lower(), shortened(text, MAX_LINE))
        except Exception:
            self.handleError(record)


def send_to(sink: Sink) -> None:
    """Hands every line of ``logging`` to ``sink``: warnings of all loggers, everything from INFO of :data:`log`."""
    root = logging.getLogger()
    root.addHandler(_Handler(sink))
    log.setLevel(logging.INFO)
