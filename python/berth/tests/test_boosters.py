"""Boosters behind the library's own interface: the same results as the booster's method, which does what is unusual."""

import os
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import boosters  # noqa: E402

try:
    import numpy
    import xgboost
except ImportError:
    xgboost = None


class AnotherLibraryTest(unittest.TestCase):
    def test_a_library_that_lacks_something_is_called_as_it_wants(self):
        booster = types.SimpleNamespace(inplace_predict=lambda rows: rows)
        self.assertIs(boosters.in_place(booster), booster.inplace_predict)


@unittest.skipIf(xgboost is None, "without XGBoost")
class BoosterTest(unittest.TestCase):
    def trained(self, **settings):
        chance = numpy.random.default_rng(7)
        rows = chance.normal(size=(60, 4))
        labels = (rows[:, 0] > 0) * 1 + (rows[:, 1] > 0)
        return xgboost.train(settings, xgboost.DMatrix(rows, labels), 5), rows

    def test_results_are_the_boosters_own(self):
        for settings in ({}, {"objective": "multi:softprob", "num_class": 3}):
            booster, rows = self.trained(**settings)
            direct = boosters.InPlace(booster)
            self.assertEqual(boosters.in_place(booster).__func__, boosters.InPlace.predict)
            for table in (rows[:1], rows, rows[:7].astype("float32"), rows[:3].astype("int64")):
                found, wanted = direct.result(table), booster.inplace_predict(table)
                self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
                self.assertTrue(numpy.array_equal(found, wanted))
                self.assertTrue(found.flags.writeable)

    def test_what_is_unusual_is_the_boosters_own_to_do_or_to_refuse(self):
        booster, rows = self.trained()
        direct = boosters.InPlace(booster)
        for table in (rows[:, ::-1], rows[:3].astype("float16"), numpy.asfortranarray(rows)):
            self.assertIsNone(direct.result(table))
            self.assertTrue(numpy.array_equal(direct.predict(table), booster.inplace_predict(table)))
        with self.assertRaisesRegex(ValueError, "mismatch"):
            direct.predict(rows[:, :3])


if __name__ == "__main__":
    unittest.main()
