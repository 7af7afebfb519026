"""The package's own side of the line: whatever the model's code does, what is sent can be read."""

import asyncio
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import RequestError, batched, documents, encoding, errors, frames, host, isolation, loaders  # noqa: E402
from berth.adapt import PREPROCESSING  # noqa: E402
from berth.frames import Line  # noqa: E402
from berth.pipeline import Failed, Step  # noqa: E402
from berth.rows import Rows  # noqa: E402


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

    def test_a_body_begins_where_numbers_are_aligned(self):
        ours, theirs = pair(self)
        for run in (1, 10, 100, 1000, 10**7):
            ours.send(frames.RUN, {"run": run}, [b"12345678"])
            body = theirs.receive()[2]
            self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(body)) % frames.ALIGNMENT, 0, run)

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

        class Itself:
            def tolist(self):
                return Itself()

        with self.assertRaisesRegex(TypeError, "an answer is JSON, and Itself is not"):
            documents.encode([Itself()])
        circle = []
        circle.append(circle)
        for limit in (sys.getrecursionlimit(), 10**6):
            self.addCleanup(sys.setrecursionlimit, sys.getrecursionlimit())
            sys.setrecursionlimit(limit)
            with self.assertRaisesRegex(ValueError, "Circular"):
                documents.encode(circle)

    def test_what_is_kept_writes_as_the_library_does(self):
        things = [None, True, 1, -0.5, "é\"\n", [], {}, {"a": [1, {"b": None}]}, {1: 2, None: 3}, [float("inf")]]
        for separators in ((", ", ": "), (",", ":")):
            wanted = json.JSONEncoder(ensure_ascii=False, separators=separators).encode
            found = encoding.encoder(None, True, separators)
            for thing in things:
                self.assertEqual(found(thing), wanted(thing))
        with self.assertRaisesRegex(ValueError, "Out of range"):
            encoding.encoder(None, allow_nan=False)([float("nan")])


class StepTest(unittest.TestCase):
    def run_step(self, function, items):
        return Step("preprocessing", function, PREPROCESSING, {}, 8).run(items, items)

    def test_whatever_code_raises_is_a_failure_of_its_request(self):
        for error in (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError):

            def one(data):
                if data == 1:
                    raise error
                return data

            for function in (one, batched(lambda data: [one(item) for item in data])):
                results = self.run_step(function, [0, 1, 2])
                self.assertEqual((results[0], results[2]), (0, 2), error)
                told = results[1].told()
                self.assertEqual(told["stage"], "preprocessing", error)
                self.assertIn(told["message"], ("(no message)", "the code called sys.exit()"))

    def test_results_that_are_not_one_for_each_request_are_refused(self):
        class Table:
            columns = ["a", "b"]

            def __len__(self):
                return 2

            def __iter__(self):
                return iter(self.columns)

        class Miscounted(Table):
            columns = property()

            def __iter__(self):
                return iter([1, 2, 3])

        values = {"a": 1, "b": 2}
        for results in (values, set(values), Table(), Miscounted(), "ab", iter([1, 2]), None, [1, 2, 3]):
            answers = self.run_step(batched(lambda data: results), [1, 2])
            self.assertEqual([type(answer) for answer in answers], [Failed, Failed], results)
            self.assertIn("got a list of 1 and returned a", answers[0].told()["message"])

    def test_results_with_code_of_their_own_do_no_harm(self):
        class Odd:
            @property
            def __class__(self):
                raise RuntimeError("no")

        odd = Odd()
        self.assertIs(self.run_step(lambda data: odd, [1])[0], odd)
        self.assertEqual(self.run_step(lambda data: data, [odd])[0], odd)

    def test_an_estimator_that_returns_too_little_gives_no_answer_to_others(self):
        class Short:
            def predict(self, table):
                return table[1:]

        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy")
        predict = loaders.Tables(Short()).predict
        with self.assertRaisesRegex(TypeError, "returned 1 results for 2 rows"):
            predict([numpy.zeros((1, 2)), numpy.zeros((1, 2))])


class RowsTest(unittest.TestCase):
    def test_an_error_for_rows_of_another_length_is_their_callers(self):
        def model(error, width):
            return Rows(None, mock.Mock(side_effect=error)).of_callers(width)._function

        table = types.SimpleNamespace(ndim=2, shape=(1, 3))
        with self.assertRaisesRegex(RequestError, "a row has 3 numbers, and the model takes 4"):
            model(ValueError("shapes differ"), 4)(table)
        for error, width in [(ValueError("other"), 3), (ValueError("other"), None), (RequestError("names the columns"), 4)]:
            with self.assertRaisesRegex(type(error), str(error)):
                model(error, width)(table)


class ErrorTest(unittest.TestCase):
    def test_errors_whose_methods_fail_are_told(self):
        class Odd(KeyError):
            def __str__(self):
                raise SystemExit

        told = Failed("model", Odd("x")).told()
        self.assertEqual((told["type"], told["message"]), ("Odd", "(its message cannot be printed)"))
        self.assertIn("Odd", told["trace"])
        refusal = RequestError("bad", [Odd("x"), mock.Mock(__str__=mock.Mock(side_effect=KeyboardInterrupt))])
        self.assertEqual(Failed("model", refusal).told(), {"request": {"message": "bad", "path": ""}})

    def test_what_is_told_of_an_error_is_bounded(self):
        def deep(depth):
            if depth == 0:
                raise ValueError("x" * 20_000_000)
            deep(depth - 1)

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)
        self.addCleanup(sys.setrecursionlimit, limit)
        try:
            deep(10_000)
        except ValueError as error:
            told = Failed("model", error).told()
        self.assertLess(len(told["message"]), 3_000)
        self.assertLessEqual(len(told["trace"]), errors.MAX_TRACE)
        self.assertIn("more times", told["trace"])


#: A model that does what a request says.
ANYTHING = """
def load(path):
    def predict(request):
        names = {}
        exec(request["run"], names)
        return names.get("answer")

    return predict

def same(value):
    return value
"""


class ProcessTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, "anything.py"), "w") as file:
            file.write(ANYTHING)
        ours, theirs = socket.socketpair()
        source = os.path.dirname(os.path.dirname(os.path.abspath(host.__file__)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "berth.host"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PYTHONPATH": source},
            cwd=folder.name,
        )
        theirs.close()
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.line = Line(ours)
        self.addCleanup(self.line.close)
        same = {"module": "anything", "function": "same"}
        spec = {"limits": {}, "code": folder.name, "framework": "custom", "entrypoint": "anything", "model_path": ""}
        self.line.send(frames.LOAD, dict(spec, preprocessing=same, postprocessing=same), [])
        self.assertEqual(self.heard()[0], frames.LOADED)

    def heard(self):
        while True:
            kind, head, body = self.line.receive()
            if kind not in (frames.STEP, frames.LOG, frames.COMPUTED):
                return kind, head, bytes(body)

    def run_code(self, *codes):
        body = [json.dumps({"run": code}).encode() for code in codes]
        ends = [sum(map(len, body[: at + 1])) for at in range(len(body))]
        requests = [[end - len(part), end, []] for part, end in zip(body, ends)]
        self.line.send(frames.RUN, {"run": 1, "requests": requests}, body)
        kind, head, answers = self.heard()
        self.assertEqual((kind, head["run"]), (frames.RESULT, 1))
        return head["answers"], answers

    def test_code_that_changes_its_process_is_answered(self):
        for code in (
            "import os; os.chdir('/')",
            "import os, sys; sys.stdout.close(); sys.stdin.close(); os.close(0)",
            "import sys; sys.stdout = sys.stderr = None; import logging; logging.warning('x')",
            "import json; json.loads = json.dumps = json.JSONDecoder = json.JSONEncoder = None",
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "import sys; sys.setrecursionlimit(50)",
            "import sys; sys.setrecursionlimit(10**6)",
            "import threading; threading.Thread(target=threading.Event().wait).start()",
        ):
            self.assertEqual(self.run_code(code + "\nanswer = 1"), ([1], b"1"), code)
        answers, body = self.run_code("raise KeyboardInterrupt", "answer = 2", "1/0")
        self.assertEqual([answers[0]["type"], answers[1], answers[2]["type"]], ["KeyboardInterrupt", 1, "ZeroDivisionError"])
        self.line.send(frames.SHUTDOWN, {}, [])
        self.assertEqual(self.process.wait(), 0)

    def test_a_run_of_several_requests_says_that_it_is_computed_before_its_answers(self):
        for codes, wanted in ((["answer = 1"], [frames.RESULT]), (["answer = 1", "1/0"], [frames.COMPUTED, frames.RESULT])):
            body = [json.dumps({"run": code}).encode() for code in codes]
            ends = [sum(map(len, body[: at + 1])) for at in range(len(body))]
            requests = [[end - len(part), end, []] for part, end in zip(body, ends)]
            self.line.send(frames.RUN, {"run": 7, "requests": requests}, body)
            heard = []
            while not heard or heard[-1][0] != frames.RESULT:
                heard.append(self.line.receive())
            self.assertEqual([(kind, head["run"]) for kind, head, _ in heard], [(kind, 7) for kind in wanted])

    def test_a_child_that_comes_back_answers_nothing(self):
        for then in ("answer = False", "raise SystemExit"):
            code = "import os\nchild = os.fork()\nif child: os.waitpid(child, 0); answer = True\nelse: " + then
            self.assertEqual(self.run_code(code), ([4], b"true"))
        self.line.send(frames.SHUTDOWN, {}, [])
        printed = self.process.stdout.read().decode()
        self.assertEqual(printed.count("a child that the model's code forked returned"), 2, printed)
        self.assertNotIn("Traceback", printed)

    def test_a_line_that_the_code_closes_ends_the_process_with_the_reason(self):
        wait = "import os, threading\nthreading.Thread(target=threading.Event().wait).start()\nos.closerange(3, 64)"
        body = json.dumps({"run": wait}).encode()
        self.line.send(frames.RUN, {"run": 1, "requests": [[0, len(body), []]]}, [body])
        self.assertRaises(frames.Closed, self.heard)
        self.assertEqual(self.process.wait(), 1)
        self.assertIn("did the model's code close a file descriptor", self.process.stdout.read().decode())


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
