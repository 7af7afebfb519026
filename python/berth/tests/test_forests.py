"""Forests whose trees are asked directly: the same results and errors as the forest's own method, which stays where anything differs."""

import os
import pickle
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from berth import forests, loaders  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    from sklearn import ensemble
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
except ImportError:
    ensemble = None


class BaseForest:
    """The parts of a forest of scikit-learn that are used, for rows of which each tree gives the sum, times its number."""

    n_outputs_, n_features_in_, n_jobs, verbose = 1, 4, None, 0
    trees_count = False

    def __init__(self):
        self.estimators_ = [types.SimpleNamespace(tree_=Tree(n, self.trees_count)) for n in range(1, 6)]

    def _validate_X_predict(self, X):
        return numpy.asarray(X, dtype="float32")


class ForestRegressor(BaseForest):
    def predict(self, X):
        rows = self._validate_X_predict(X).sum(axis=1, dtype="float64")
        return sum(number * rows for number in range(1, 6)) / 5


class ForestClassifier(BaseForest):
    n_classes_ = 2

    def predict_proba(self, X):
        return numpy.ones((len(X), 2)) / 2


class Tree:
    def __init__(self, number, counts):
        self.number, self.counts = number, counts

    def predict(self, table):
        return (2 * self.number if self.counts else self.number) * table.sum(axis=1, dtype="float64").reshape(-1, 1)


class ForestWhoseTreesCount(ForestRegressor):
    """As before version 1.3, whose trees give the numbers of samples and not their shares."""

    trees_count = True


class ForestWithoutChecks(ForestRegressor):
    _validate_X_predict = property()

    def predict(self, X):
        return numpy.zeros(len(X))


@unittest.skipIf(numpy is None, "without numpy")
class AnotherLibraryTest(unittest.TestCase):
    def sped_up(self, forest):
        with mock.patch.dict(sys.modules, {"sklearn.ensemble._forest": sys.modules[__name__]}):
            forests.speed_up(forest)
        return forest

    def test_a_library_with_these_parts_is_asked_directly(self):
        forest = self.sped_up(ForestRegressor())
        self.assertIsInstance(forest.predict, forests.Direct)
        rows = numpy.arange(8.0).reshape(2, 4)
        self.assertEqual(forest.predict(rows).tolist(), ForestRegressor().predict(rows).tolist())

    def test_another_library_predicts_in_its_own_way(self):
        for forest in (ForestWhoseTreesCount(), ForestWithoutChecks(), ForestClassifier()):
            self.assertNotIn("Direct", repr(vars(self.sped_up(forest))), forest)


@unittest.skipIf(ensemble is None, "without scikit-learn")
class ForestTest(unittest.TestCase):
    def setUp(self):
        self.rows = numpy.random.default_rng(7).normal(size=(80, 4))
        self.numbers = self.rows[:, 0] * self.rows[:, 1]
        self.labels = numpy.where(self.numbers > 0.3, "high", numpy.where(self.numbers < -0.3, "low", "middle"))

    def fitted(self, kind, targets, **settings):
        return kind(n_estimators=12, random_state=7, **settings).fit(self.rows, targets)

    def test_results_are_the_forests_own(self):
        for kind, targets, methods in [
            (ensemble.RandomForestClassifier, self.labels, ["predict", "predict_proba"]),
            (ensemble.ExtraTreesClassifier, self.labels, ["predict", "predict_proba"]),
            (ensemble.RandomForestRegressor, self.numbers, ["predict"]),
            (ensemble.ExtraTreesRegressor, self.numbers, ["predict"]),
        ]:
            forest = self.fitted(kind, targets)
            tables = (self.rows, self.rows[:1], self.rows.astype("float32"), self.rows.tolist())
            before = [getattr(forest, method)(table) for method in methods for table in tables]
            forests.speed_up(forest)
            self.assertIsInstance(vars(forest)[methods[-1]], forests.Direct)
            after = [getattr(forest, method)(table) for method in methods for table in tables]
            for one, other in zip(before, after):
                self.assertEqual(one.dtype, other.dtype)
                self.assertTrue(numpy.array_equal(one, other), kind)

    def test_a_forest_at_the_end_of_a_pipeline_is_found(self):
        pipeline = make_pipeline(StandardScaler(), ensemble.RandomForestClassifier(8, random_state=7))
        pipeline.fit(self.rows, self.labels)
        before = pipeline.predict(self.rows)
        self.assertIsInstance(loaders.Tables(pipeline).model, type(pipeline))
        self.assertIsInstance(pipeline[-1].predict_proba, forests.Direct)
        self.assertEqual(pipeline.predict(self.rows).tolist(), before.tolist())

    def test_rows_that_do_not_fit_are_refused_as_before(self):
        forest = self.fitted(ensemble.RandomForestRegressor, self.numbers)
        forests.speed_up(forest)
        with self.assertRaisesRegex(ValueError, "3 features, but RandomForestRegressor is expecting 4"):
            forest.predict(self.rows[:, :3])
        with self.assertRaisesRegex(ValueError, "NaN|infinity"):
            forest.predict(numpy.full((1, 4), numpy.inf))

    def test_a_forest_that_is_fitted_again_or_copied_has_its_new_trees(self):
        forest = self.fitted(ensemble.RandomForestRegressor, self.numbers)
        forests.speed_up(forest)
        copy = pickle.loads(pickle.dumps(forest))
        self.assertEqual(copy.predict(self.rows).tolist(), forest.predict(self.rows).tolist())
        forest.fit(self.rows, self.numbers + 100)
        self.assertGreater(forest.predict(self.rows).min(), 90)

    def test_what_differs_keeps_its_own_method(self):
        class Own(ensemble.RandomForestRegressor):
            def predict(self, X):
                return super().predict(X) + 1

        several = numpy.stack([self.numbers, self.numbers], axis=1)
        kept = [
            self.fitted(Own, self.numbers),
            self.fitted(ensemble.RandomForestRegressor, several),
            self.fitted(ensemble.RandomForestRegressor, self.numbers, n_jobs=2),
            self.fitted(ensemble.RandomForestRegressor, self.numbers, verbose=1),
            ensemble.RandomForestRegressor(),
            StandardScaler(),
        ]
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="2"):
            for model in kept:
                forests.speed_up(model)
                self.assertNotIn("predict", vars(model), model)

    def test_threads_are_for_models_that_have_several_processors(self):
        for threads, n_jobs in (("1", None), ("4", -1)):
            forest = self.fitted(ensemble.RandomForestRegressor, self.numbers, n_jobs=-1)
            with mock.patch.dict(os.environ, OMP_NUM_THREADS=threads):
                forests.speed_up(forest)
            self.assertEqual((forest.n_jobs, "predict" in vars(forest)), (n_jobs, threads == "1"))


if __name__ == "__main__":
    unittest.main()
