"""Three models of Python's frameworks, for `cargo xtask bench python`.

    models.py train FOLDER            trains them and writes them, with a request for each in samples.json
    models.py call FOLDER NAME        calls one in a loop, one row each, and prints the median in microseconds
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

# Each call of the loop that is timed takes some 100 µs to some ms.
CALLS = 500


def reviews(count: int) -> tuple[list[str], list[str]]:
    """Texts of 20 to 60 words out of 5,000, some of which lean to one of three labels."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 10))) for _ in range(5_000)]
    labels = ["negative", "neutral", "positive"]
    texts, given = [], []
    for _ in range(count):
        label = chance.choice(labels)
        leaning = words[labels.index(label) * 300 :][:300]
        texts.append(" ".join(chance.choices(words, k=chance.randint(15, 45)) + chance.choices(leaning, k=8)))
        given.append(label)
    return texts, given


def train(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table, labels = load_breast_cancer(return_X_y=True)
    forest = make_pipeline(StandardScaler(), RandomForestClassifier(100, max_depth=8, random_state=7)).fit(table, labels)
    joblib.dump(forest, folder / "forest.joblib")
    trees = xgboost.XGBRegressor(n_estimators=200, max_depth=6, random_state=7).fit(table, table[:, 0] * table[:, 7])
    trees.save_model(folder / "trees.ubj")
    texts, given = reviews(3_000)
    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), max_features=20_000), LogisticRegression(max_iter=500)).fit(texts, given)
    joblib.dump(words, folder / "text.joblib")
    row = [float(np.float32(value)) for value in table[0]]
    checksum = hashlib.sha256((folder / "text.joblib").read_bytes()).hexdigest()
    (folder / "samples.json").write_text(json.dumps({"forest": row, "trees": row, "text": texts[0], "checksum": checksum}))


def load(path: Path):
    """A function from rows to results, the quickest that the framework itself has."""
    if path.suffix == ".ubj":
        booster = xgboost.Booster(model_file=path)
        return lambda rows: booster.inplace_predict(np.asarray(rows, dtype=np.float32))
    return joblib.load(path).predict


def file_of(folder: Path, name: str) -> Path:
    return folder / ("trees.ubj" if name == "trees" else f"{name}.joblib")


def call(folder: Path, name: str) -> float:
    predict = load(file_of(folder, name))
    sample = json.loads((folder / "samples.json").read_text())[name]
    rows = [sample] if name == "text" else np.asarray([sample], dtype=np.float32)
    times = []
    for i in range(CALLS + 50):
        start = time.perf_counter()
        predict(rows)
        if i >= 50:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]))
    else:
        print(f"{call(Path(sys.argv[2]), sys.argv[3]):.1f}")
