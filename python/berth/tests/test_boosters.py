"""Boosters behind the library's own interface: the same results as the booster's method, which does what is unusual."""

import ctypes
import json
import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import boosters  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import xgboost
except ImportError:
    xgboost = None


class Library:
    """The functions of XGBoost's library that are called, for a model whose prediction is the sum of a row."""

    added = 0

    def XGProxyDMatrixCreate(self, matrix):
        return 0

    def XGBoosterPredictFromDense(self, handle, about, settings, matrix, shape, dimensions, results):
        about = json.loads(about)
        length, width = about["shape"]
        kind = {"<f4": ctypes.c_float, "<f8": ctypes.c_double, "<i4": ctypes.c_int32, "<i8": ctypes.c_int64}[about["typestr"]]
        rows = (kind * width * length).from_address(about["data"][0])
        # The memory is the library's, and lasts until the next call.
        self.shape = (ctypes.c_uint64 * 1)(length)
        self.results = (ctypes.c_float * length)(*(sum(row) + self.added for row in rows))
        for out, value in ((shape, self.shape), (results, self.results)):
            ctypes.c_void_p.from_address(ctypes.addressof(out._obj)).value = ctypes.addressof(value)
        dimensions._obj.value = 1
        return 0


class LibraryBeforeProxies(Library):
    """As before version 1.5, which made its matrix objects in another way."""

    XGProxyDMatrixCreate = property()


class LibraryWithoutPredictions(Library):
    """As before version 1.4."""

    XGBoosterPredictFromDense = property()


class LibraryWithOtherResults(Library):
    added = 1


class LibraryThatRefuses(Library):
    def XGBoosterPredictFromDense(self, *arguments):
        return -1


@unittest.skipIf(numpy is None, "without numpy")
class AnotherLibraryTest(unittest.TestCase):
    def loaded(self, library, version):
        """The function for a booster of this library, and the booster's own."""
        core = types.ModuleType("xgboost.core")
        core._LIB = library
        package = types.ModuleType("xgboost")
        package.core, package.__version__ = core, version

        class Booster:
            handle = None

            def num_features(self):
                return 4

            def inplace_predict(self, rows):
                return rows.sum(axis=1).astype("float32")

        booster = Booster()
        with mock.patch.dict(sys.modules, {"xgboost": package, "xgboost.core": core}):
            return boosters.in_place(booster), booster.inplace_predict

    def test_a_library_with_these_functions_is_called_by_them(self):
        for version in ("1.7.6", "2.1.4", "3.2.0-dev"):
            function, own = self.loaded(Library(), version)
            self.assertIs(function.__func__, boosters.InPlace.predict)
            rows = numpy.arange(12.0).reshape(3, 4)
            self.assertEqual(function(rows).tolist(), own(rows).tolist())

    def test_another_library_is_called_by_the_boosters_method(self):
        kinds = (LibraryBeforeProxies, LibraryWithoutPredictions, LibraryWithOtherResults, LibraryThatRefuses)
        for library, version in [(kind(), "3.1.1") for kind in kinds] + [(Library(), "1.6.2"), (Library(), "4.0.0"), (Library(), "?")]:
            function, own = self.loaded(library, version)
            self.assertEqual(function, own, (library, version))
            self.assertEqual(function(numpy.ones((2, 4))).tolist(), [4.0, 4.0])

    def test_a_booster_of_another_kind_is_called_as_it_wants(self):
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
