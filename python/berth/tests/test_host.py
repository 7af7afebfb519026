"""The package's own side of the line: whatever the model's code does, what is sent can be read."""

import ctypes
import json
import os
import socket
import struct
import sys
import threading
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import RequestError, documents, frames, host, isolation  # noqa: E402
from berth.frames import Line  # noqa: E402
from berth.pipeline import Failed  # noqa: E402


def pair(test):
    ours, theirs = (Line(end) for end in socket.socketpair())
    test.addCleanup(ours.close)
    test.addCleanup(theirs.close)
    return ours, theirs


class LineTest(unittest.TestCase):
    def test_threads_do_not_cut_into_each_other(self):
        # Larger than what the socket takes at once: a frame is written in many pieces.
        ours, theirs = pair(self)
        body = b"x" * (1 << 20)
        senders = [threading.Thread(target=ours.send, args=(frames.RESULT, {"run": n}, [body])) for n in range(8)]
        for sender in senders:
            sender.start()
        heads = []
        for _ in senders:
            kind, head, received = theirs.receive()
            self.assertEqual((kind, len(received)), (frames.RESULT, len(body)))
            heads.append(head["run"])
        for sender in senders:
            sender.join()
        self.assertEqual(sorted(heads), list(range(8)))

    def test_frames_that_come_together_are_read_one_by_one(self):
        ours, theirs = pair(self)
        lengths = [0, 3, frames.READ_AHEAD - 16, frames.READ_AHEAD, 3 * frames.READ_AHEAD + 5, 1]

        def send():
            for number, length in enumerate(lengths):
                ours.send(frames.RESULT, {"run": number}, [bytes([number]) * length])
            ours.close()

        sender = threading.Thread(target=send)
        sender.start()
        kept = [theirs.receive() for _ in lengths]
        sender.join()
        for number, (length, (kind, head, body)) in enumerate(zip(lengths, kept)):
            self.assertEqual((kind, head, body), (frames.RESULT, {"run": number}, bytes([number]) * length))
            # It is this frame's own: arrays over it may be written to, and outlive it.
            self.assertFalse(body.readonly)
        self.assertRaises(frames.Closed, theirs.receive)

    def test_who_logs_in_the_middle_of_a_frame_comes_after_it(self):
        ours, theirs = pair(self)
        write = ours._write
        logged = []

        def interrupted(frame):
            if not logged:
                logged.append(True)
                ours.send(frames.LOG, {"text": "a destructor"}, [])
            write(frame)

        with mock.patch.object(ours, "_write", interrupted):
            ours.send(frames.RESULT, {"run": 1}, [])
        self.assertEqual([theirs.receive()[0] for _ in range(2)], [frames.RESULT, frames.LOG])

    def test_texts_that_are_not_unicode_can_be_read_all_the_same(self):
        ours, theirs = pair(self)
        ours.send(frames.LOG, {"text": "caf\udce9"}, [])
        self.assertEqual(theirs.receive()[1], {"text": "caf?"})

    def test_a_closed_line_writes_to_nobody_else(self):
        ours, _ = pair(self)
        number = ours._socket.fileno()
        read, write = os.pipe()
        ours._turn.acquire()  # As a thread of the parent may have held it.
        closer = threading.Thread(target=ours.close)
        closer.start()
        closer.join()
        os.dup2(write, number)
        with mock.patch.object(sys, "stderr") as printed:
            host._log(ours, "warning", "from a child")
        printed.write.assert_called_once_with("warning: from a child\n")
        os.set_blocking(read, False)
        self.assertRaises(BlockingIOError, os.read, read, 1)
        for each in (read, write, number):
            os.close(each)


class AnswerTest(unittest.TestCase):
    def test_a_number_that_json_has_not_is_told_with_its_place(self):
        for answer, said in [
            ({"scores": [0.5, float("nan")]}, "/scores/1 is nan"),
            ({"a": {"b": float("-inf")}}, "/a/b is -inf"),
            (float("inf"), "the answer is inf"),
        ]:
            with self.assertRaisesRegex(ValueError, said):
                documents.encode(answer)
        circle = []
        circle.append(circle)
        with self.assertRaisesRegex(ValueError, "Circular"):
            documents.encode(circle)


class ToldTest(unittest.TestCase):
    def test_a_refusal_is_told_whatever_its_parts_are(self):
        class Odd(RequestError):
            def __init__(self):
                pass

            def __str__(self):
                raise ValueError("no")

        cases = [
            (RequestError("bad", "/text"), {"message": "bad", "path": "/text"}),
            (RequestError("bad", "text"), {"message": "bad", "path": "/text"}),
            (RequestError("bad", ["rows", 3]), {"message": "bad", "path": "/rows/3"}),
            (RequestError({"a": 1}, None), {"message": "{'a': 1}", "path": ""}),
            (Odd(), {"message": "(its message cannot be printed)", "path": ""}),
        ]
        for error, expected in cases:
            told, _ = host._told([Failed("preprocessing", error)])
            self.assertEqual(json.loads(json.dumps(told)), [{"request": expected}])
        long, _ = host._told([Failed("preprocessing", RequestError("x" * 100_000))])
        self.assertLess(len(long[0]["request"]["message"]), 3_000)

    def test_a_thousand_failures_fit_into_a_frame(self):
        def fails(depth):
            if depth == 0:
                raise ValueError("x" * 10_000)
            fails(depth - 1)

        try:
            fails(200)
        except ValueError as error:
            failed = Failed("model", error)
        told, _ = host._told([failed] * 1024)
        self.assertLess(len(json.dumps(told)), frames.MAX_HEAD // 4)
        self.assertTrue(told[0]["trace"] and not told[-1]["trace"])

    def test_answers_that_no_frame_holds_fail_alone(self):
        with mock.patch.object(frames, "MAX_ANSWERS", 10):
            told, parts = host._told([b"1234", b"12345678", b"123456"])
        self.assertEqual((told[0], told[2], parts), (4, 6, [b"1234", b"123456"]))
        self.assertEqual(told[1]["stage"], "size")
        self.assertIn("8 bytes", told[1]["message"])

    def test_an_error_with_a_category_of_its_own_is_the_codes(self):
        class Mine(Exception):
            category = object()

        self.assertEqual(host._failure(Mine("no"))["category"], "code")


class ForkTest(unittest.TestCase):
    def child(self, line):
        """Forks, and gives the signal that the child gets when its parent ends."""
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            isolation._forked(line)
            value = ctypes.c_int(-1)
            ctypes.CDLL(None).prctl(2, ctypes.byref(value), 0, 0, 0)
            os.write(write, struct.pack("i", value.value))
            os._exit(0)
        os.waitpid(process, 0)
        answer = struct.unpack("i", os.read(read, 4))[0]
        os.close(read)
        os.close(write)
        return answer

    def test_only_children_of_the_main_thread_end_with_it(self):
        line, _ = pair(self)
        isolation._will_fork()
        self.assertEqual(self.child(line), 9)
        found = []

        def elsewhere():
            isolation._will_fork()
            found.append(self.child(line))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        self.assertEqual(found, [0])


if __name__ == "__main__":
    unittest.main()
