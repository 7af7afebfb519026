"""Predictions of scikit-learn's forests without the price of each tree's turn.

A forest spends nine tenths of its time for one row on handing its trees to joblib and on checks that each of them repeats.
Here they are asked directly, one after the other, and added up in the same order, so the results are the same. This is
tried when the model is loaded: where anything differs, the forest's own method stays.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Callable, List


def speed_up(model: Any) -> None:
    """Gives the forest that a model is, or that a pipeline ends with, the direct way to its predictions."""
    # Whoever made such an object has imported its module.
    module, pipeline = (sys.modules.get(name) for name in ("sklearn.ensemble._forest", "sklearn.pipeline"))
    while pipeline is not None and isinstance(model, pipeline.Pipeline) and model.steps:
        model = model.steps[-1][1]
    if module is None or not isinstance(model, module.BaseForest):
        return
    if os.environ.get("OMP_NUM_THREADS") == "1" and getattr(model, "n_jobs", None) is not None:
        # As many threads as the machine has processors only get in each other's way on the one that the model has.
        model.n_jobs = None
    try:
        direct = Direct(model, module)
        own = getattr(model, direct.method)
        with warnings.catch_warnings():
            # The samples have no names of columns.
            warnings.simplefilter("ignore")
            same = all(_same(direct(table), own(table)) for table in _samples(model.n_features_in_))
        if same:
            setattr(model, direct.method, direct)
    except Exception:
        # Another version of the library, or a forest that it has not fitted.
        return


class Direct:
    """The trees of a forest with one output, in place of ``predict_proba`` of a classifier or ``predict`` of a regressor."""

    def __init__(self, forest: Any, module: Any) -> None:
        classifier = isinstance(forest, module.ForestClassifier)
        #: The method that it stands for. A classifier's ``predict`` goes by this one.
        self.method = "predict_proba" if classifier else "predict"
        base = module.ForestClassifier if classifier else module.ForestRegressor
        if getattr(type(forest), self.method) is not getattr(base, self.method):
            raise TypeError("a forest that predicts in a way of its own")
        if forest.n_outputs_ != 1 or forest.n_jobs not in (None, 1) or forest.verbose:
            raise ValueError("several outputs or threads, or words about them")
        if classifier and any(abs(estimator.tree_.value[0].sum() - 1) > 1e-6 for estimator in forest.estimators_):
            raise ValueError("trees that count samples: those of before version 1.3")
        self._forest = forest
        self._width = (int(forest.n_classes_),) if classifier else ()
        self._estimators = forest.estimators_
        self._trees: List[Callable[[Any], Any]] = [estimator.tree_.predict for estimator in self._estimators]

    def __call__(self, X: Any) -> Any:
        """What the forest's own method gives for a table, and its errors."""
        import numpy

        forest = self._forest
        if forest.estimators_ is not self._estimators or len(self._estimators) != len(self._trees):
            # Fitted again, or further.
            return getattr(type(forest), self.method)(forest, X)
        table = forest._validate_X_predict(X)
        total = numpy.zeros((table.shape[0],) + self._width)
        for predict in self._trees:
            total += predict(table).reshape(total.shape)
        total /= len(self._trees)
        return total


def _samples(columns: int) -> List[Any]:
    import numpy

    ramp = numpy.linspace(-3, 3, 7 * columns).reshape(7, columns)
    return [ramp[:1], ramp]


def _same(one: Any, other: Any) -> bool:
    import numpy

    return one.dtype == other.dtype and one.shape == other.shape and bool(numpy.array_equal(one, other))
