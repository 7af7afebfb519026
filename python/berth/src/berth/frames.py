"""The frames between the worker and a model's process.

    u32 kind | u32 length of the head | u64 length of the body | head: JSON | body: bytes

All numbers are little-endian. What the body holds is said by the head.
"""

from __future__ import annotations

import collections
import json
import socket
import struct
import threading
from typing import Any, Deque, Dict, List, Tuple, Union

from .encoding import encoder

#: Worker to model.
LOAD, RUN, SHUTDOWN = 1, 2, 3

#: Model to worker.
STEP, LOADED, FAILED, RESULT, LOG, COMPUTED = 16, 17, 18, 19, 20, 21

#: The largest head. The worker has the same bound.
MAX_HEAD = 32 << 20

#: The largest body that comes: beyond what the worker joins into one run.
MAX_BODY = 1 << 30

#: The largest body that is sent: the worker takes no more.
MAX_ANSWERS = 128 << 20

#: The most frames that wait for the one that is being written. They are lines for the log, written by destructors and
#: signal handlers in the middle of it: of more, the oldest go.
MAX_LATER = 256

#: Arrays begin at a multiple of this many bytes of a body, and bodies at such an address.
ALIGNMENT = 8

#: Bytes that are read ahead: a usual frame comes in one piece.
READ_AHEAD = 1 << 16

_PREFIX = struct.Struct("<IIQ")

# `json.dumps` would make one for each frame, and code of the model may replace `json.loads`.
_HEADS = encoder(None)
_READER = json.JSONDecoder()

Buffer = Union[bytes, bytearray, memoryview]


class Closed(Exception):
    """The other side is gone."""


class Malformed(Exception):
    """What came is not a frame."""


class Line:
    """One end of the line. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._prefix = bytearray(_PREFIX.size)
        self._ahead = memoryview(bytearray(READ_AHEAD))
        self._start, self._end = 0, 0
        self._turn = threading.RLock()
        self._writing = False
        self._later: Deque[List[Buffer]] = collections.deque(maxlen=MAX_LATER)

    def close(self) -> None:
        """Closes this end, also in a forked child, where nobody is left who could give a lock back."""
        self._turn = threading.RLock()
        self._writing = False
        self._socket.close()

    def receive(self) -> Tuple[int, Dict[str, Any], memoryview]:
        """Waits for the next frame."""
        self._fill(memoryview(self._prefix))
        kind, head_length, body_length = _PREFIX.unpack(self._prefix)
        if head_length > MAX_HEAD or body_length > MAX_BODY:
            raise Malformed("a frame of {} and {} bytes".format(head_length, body_length))
        # A buffer of its own for every frame: arrays over it may outlive the request. The body begins where numbers are aligned.
        lead = -head_length % ALIGNMENT
        buffer = memoryview(bytearray(lead + head_length + body_length))[lead:]
        self._fill(buffer)
        try:
            head = _READER.decode(str(buffer[:head_length], "utf-8")) if head_length else {}
        except ValueError as error:
            raise Malformed("the head is no JSON: {}".format(error)) from None
        if not isinstance(head, dict):
            raise Malformed("the head is no object")
        return kind, head, buffer[head_length:]

    def send(self, kind: int, head: Dict[str, Any], body: List[Buffer]) -> None:
        """Sends a frame, whole: threads wait for each other."""
        # A text that came from bytes may have what UTF-8 has not.
        text = _HEADS(head).encode("utf-8", "replace")
        length = sum(len(part) for part in body)
        if len(text) > MAX_HEAD or length > MAX_ANSWERS:
            raise Malformed("a frame of {} and {} bytes".format(len(text), length))
        prefix = _PREFIX.pack(kind, len(text), length)
        small = length < 1 << 16
        frame: List[Buffer] = [b"".join([prefix, text, *body])] if small else [prefix + text, *body]
        with self._turn:
            if self._writing:
                # This very thread is writing: it came here from a destructor or a signal handler.
                self._later.append(frame)
                return
            self._writing = True
            try:
                self._write(frame)
                while self._later:
                    self._write(self._later.popleft())
            finally:
                self._writing = False

    def _write(self, frame: List[Buffer]) -> None:
        for part in frame:
            self._socket.sendall(part)

    def _fill(self, view: memoryview) -> None:
        at, length = 0, len(view)
        while at < length:
            if self._start < self._end:
                count = min(length - at, self._end - self._start)
                view[at : at + count] = self._ahead[self._start : self._start + count]
                self._start += count
                at += count
            elif length - at < READ_AHEAD:
                self._start, self._end = 0, self._received(self._ahead)
            else:
                at += self._received(view[at:])

    def _received(self, view: memoryview) -> int:
        count = self._socket.recv_into(view)
        if count == 0:
            raise Closed
        return count
