"""Makes a release: trains the model, and writes its version, digest and size into the card.

    python release.py 1.3.0 OUTPUT_FOLDER

Afterwards: upload OUTPUT_FOLDER/v1.3.0 to where the card says, commit, tag `v1.3.0`, push. A tag is never moved: a mistake
is mended by the next version.
"""

import hashlib
import re
import shutil
import sys
from pathlib import Path

import joblib
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

HERE = Path(__file__).parent
REVIEWS = {
    "positive": ["a great and lovely film", "wonderful acting, great fun", "i loved every minute", "brilliant and moving",
                 "what a good story", "excellent, warm and funny", "the best evening in years", "charming and well made"],
    "negative": ["a dull and awful film", "terrible acting, no fun", "i hated every minute", "boring and far too long",
                 "what a bad story", "poor, cold and sad", "the worst evening in years", "clumsy and badly made"],
}


def train(version: str):
    texts = [text for group in REVIEWS.values() for text in group]
    labels = [label for label, group in REVIEWS.items() for _ in group]
    # From 1.3.0 on pairs of words count, too.
    pairs = tuple(int(part) for part in version.split(".")) >= (1, 3, 0)
    pipeline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2 if pairs else 1)), LogisticRegression(C=30 if pairs else 10))
    return pipeline.fit(texts, labels)


def main(version: str, output: Path) -> None:
    folder = output / f"v{version}"
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.joblib"
    joblib.dump(train(version), weights)
    shutil.copy(HERE / "config/model-config.json", folder / "config.json")
    data = weights.read_bytes()

    card = (HERE / "model-card.yaml").read_text()
    card = re.sub(r"(?m)^(  version: ).*", rf"\g<1>{version}", card, count=1)
    card = re.sub(r"(?m)^(  ref: )\S+", rf"\g<1>v{version}", card, count=1)
    card = re.sub(r"(_path: \S+/)v[0-9.]+/", rf"\g<1>v{version}/", card)
    card = re.sub(r"(?m)^(  checksum: ).*", rf"\g<1>{hashlib.sha256(data).hexdigest()}", card, count=1)
    card = re.sub(r"(?m)^(  size_bytes: ).*", rf"\g<1>{len(data)}", card, count=1)
    (HERE / "model-card.yaml").write_text(card)
    print(f"{weights} ({len(data):,} bytes); now commit and tag v{version}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
