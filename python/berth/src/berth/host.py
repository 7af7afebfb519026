"""The process of one model: ``python -m berth.host``, started by a Berth worker and of no use without it.

Standard input is the line to the worker (a socket). What the model prints goes to the worker's log.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import traceback
from typing import Any, Callable, Dict, List, Tuple

from . import frames, isolation, logs
from .errors import CardError, MAX_MESSAGE, described, shortened
from .frames import Closed, Line
from .pipeline import Failed, Pipeline

#: Tracebacks of one batch that are told: a thousand would not fit into a frame, and nobody reads them.
MAX_TRACES = 64


def main() -> int:
    """Loads what the first frame says, then answers until the worker says that it is over."""
    line, process = _take_line(), os.getpid()
    kind, spec, _ = line.receive()
    if kind != frames.LOAD:
        return 2
    undone = isolation.apply(spec["limits"], line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.send_to(lambda level, text: _log(line, level, text))
    for what in undone:
        _log(line, "warning", what)
    _paths(spec)
    pipeline = _loaded(spec, line, process)
    if pipeline is None:
        return 1
    try:
        return _serve(pipeline, line, process)
    except OSError as error:
        why = "did the model's code close a file descriptor that it had not opened?"
        _print("the line to the worker broke: {} ({})".format(why, error))
        return 1


def _take_line() -> Line:
    """Moves the line away from where the model's code, or a program that it starts, would read."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    return Line(sock)


def _log(line: Line, level: str, text: str) -> None:
    try:
        line.send(frames.LOG, {"level": level, "text": text}, [])
    except OSError:
        # A child that the model forked has no line: what it prints is heard, too.
        sys.stderr.write("{}: {}\n".format(level, text))


def _paths(spec: Dict[str, Any]) -> None:
    root = spec["code"]
    own = os.getcwd()
    sys.path[:] = [path for path in sys.path if path not in ("", own)]
    # `path: src/` goes with modules named `src.model`, and with modules named `model`.
    for path in reversed([root, os.path.normpath(os.path.join(root, spec.get("path") or "."))]):
        if path not in sys.path:
            sys.path.insert(0, path)
    isolation.read_only_below(root)


def _is_child(process: int) -> bool:
    """Whether this is a copy of the model's ``process``: the model's code forked, and came back in both of them."""
    if os.getpid() == process:
        return False
    _print("a child that the model's code forked returned from it, and is ended: end it with os._exit")
    return True


def _print(text: str) -> None:
    """Prints a line where the model's code may have closed or replaced ``sys.stderr``."""
    try:
        os.write(2, (text + "\n").encode("utf-8", "replace"))
    except OSError:
        return


def _loaded(spec: Dict[str, Any], line: Line, process: int) -> Any:
    def tell(step: str) -> None:
        line.send(frames.STEP, {"step": step}, [])

    try:
        pipeline = Pipeline(spec, tell)
    except BaseException as error:
        if not _is_child(process):
            line.send(frames.FAILED, _failure(error), [])
        return None
    if _is_child(process):
        return None
    head = {
        "notes": [shortened(note, MAX_MESSAGE) for note in pipeline.notes],
        "batched": pipeline.batched,
        "arrays": pipeline.as_arrays,
        "python": platform.python_version(),
    }
    line.send(frames.LOADED, head, [])
    return pipeline


def _failure(error: BaseException) -> Dict[str, Any]:
    told = described(error)
    told["expected"] = isinstance(error, CardError)
    told["category"] = error.category if isinstance(error, CardError) else "code"
    return told


def _serve(pipeline: Pipeline, line: Line, process: int) -> int:
    while True:
        try:
            kind, head, body = line.receive()
        except (Closed, ConnectionError):
            return 0
        if kind == frames.SHUTDOWN:
            return 0
        if kind != frames.RUN:
            return 2
        answers = _answers(pipeline, head, body, lambda: _tell_computed(line, head, process))
        if _is_child(process):
            return 0
        told, parts = _told(answers)
        try:
            line.send(frames.RESULT, {"run": head["run"], "answers": told}, parts)
        except (Closed, ConnectionError):
            return 0


def _tell_computed(line: Line, head: Dict[str, Any], process: int) -> None:
    """Tells the worker that it may send the next run, so that it is here when the answers of this one are written. For those of a
    single request that takes less time than the telling."""
    if len(head["requests"]) > 1 and os.getpid() == process:
        try:
            line.send(frames.COMPUTED, {"run": head["run"]}, [])
        except ConnectionError:
            # The answers will hear of it.
            return


def _answers(pipeline: Pipeline, head: Dict[str, Any], body: memoryview, computed: Callable[[], None]) -> List[Any]:
    requests: List[Tuple[memoryview, List[List[Any]]]] = []
    for start, end, attached in head["requests"]:
        requests.append((body[start:end], attached))
    return pipeline.run(requests, body, computed)


def _told(answers: List[Any]) -> Tuple[List[Any], List[frames.Buffer]]:
    told: List[Any] = []
    parts: List[frames.Buffer] = []
    failures, length = 0, 0
    for answer in answers:
        if type(answer) is not Failed and length + len(answer) > frames.MAX_ANSWERS:
            message = "the answer has {} bytes: with all answers of its batch, at most {} can be sent".format(
                len(answer), frames.MAX_ANSWERS
            )
            answer = Failed("size", ValueError(message))
        if type(answer) is Failed:
            failures += 1
            told.append(answer.told(with_trace=failures <= MAX_TRACES))
        else:
            length += len(answer)
            told.append(len(answer))
            parts.append(answer)
    return told, parts


def _end(code: int) -> None:
    """Ends this process. Not by ``sys.exit``: threads that the model started must not keep it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # The model's code may have closed them.
        os._exit(code)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except BaseException:
        _print(traceback.format_exc())
    finally:
        _end(code)
