"""The package as an author meets it: a card that is run at home."""

import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import RequestError, adapt  # noqa: E402
from berth.errors import CardError, traceback_of  # noqa: E402
from berth.testing import Model  # noqa: E402

CODE = """
import berth

def load(path):
    with open(path) as file:
        factor = float(file.read())

    @berth.batched
    def predict(items):
        return [item * factor for item in items]

    return predict

def pre(request, config):
    if request["x"] < 0:
        raise berth.RequestError("must not be negative", "/x")
    return request["x"] + config["add"]

def post(output):
    return {"y": output}
"""

CARD = {
    "runtime": {"framework": "custom"},
    "code": {"path": "src/", "entrypoint": "home_model"},
    "preprocessing": {"module": "home_model", "function": "pre", "config": {"add": 1}},
    "postprocessing": {"module": "home_model", "function": "post"},
    "interface": {
        "input_schema": {"type": "object", "properties": {"x": {"type": "number"}}},
        "output_schema": {"type": "object", "required": ["y"]},
        "batch_size": 4,
    },
}


class AtHome(unittest.TestCase):
    def test_a_card_is_run(self):
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "src"))
            for name, text in [("src/home_model.py", CODE), ("model-card.json", json.dumps(CARD)), ("weights", "2")]:
                with open(os.path.join(root, name), "w") as file:
                    file.write(text)
            model = Model(os.path.join(root, "model-card.json"), artifact=os.path.join(root, "weights"))
            self.assertEqual(model({"x": 2}), {"y": 6.0})
            self.assertEqual(model.batch([{"x": 0}, {"x": 1}]), [{"y": 2.0}, {"y": 4.0}])
            # Ctrl-C ends the whole batch.
            with mock.patch.object(model.pipeline.steps[1], "_called", side_effect=KeyboardInterrupt) as called:
                self.assertRaises(KeyboardInterrupt, model.batch, [{"x": 0}, {"x": 1}])
            self.assertEqual(called.call_count, 1)
            with self.assertRaises(RequestError) as refused:
                model({"x": -1})
            self.assertEqual(refused.exception.path, "/x")
            with self.assertRaises(ValueError):
                model.batch([{"x": 0}] * 5)


class Adapting(unittest.TestCase):
    def test_extra_things_go_by_name(self):
        call = adapt.Call(lambda output, request: (output, request), adapt.POSTPROCESSING, {})
        self.assertEqual(call(1, request=2), (1, 2))

    def test_functions_written_in_c_get_the_main_thing(self):
        self.assertEqual(adapt.Call(max, adapt.MODEL, {})([1, 3, 2]), 3)

    def test_what_is_refused_says_what_was_expected(self):
        with self.assertRaises(CardError) as refused:
            adapt.Call(lambda a, b, c: None, adapt.PREPROCESSING, {})
        self.assertIn("expected (request, config)", str(refused.exception))

    def test_tracebacks_name_causes(self):
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")
        except ValueError as error:
            text = traceback_of(error)
        self.assertLess(text.index("KeyError"), text.index("ValueError"))


if __name__ == "__main__":
    unittest.main()
