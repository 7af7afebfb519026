"""`berth serve`: one command for a file or folder, and a request to paste that works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess

import pytest

from harness.examples import ARTIFACTS
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

# A LightGBM model of two features in its text form: 1.5 where the first is at most 0.5, else 2.5.
STUMP = """tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=regression
feature_names=a b
feature_infos=[0:1] [0:1]
tree_sizes=350

Tree=0
num_leaves=2
num_cat=0
split_feature=0
split_gain=1
threshold=0.5
decision_type=2
left_child=-1
right_child=-2
leaf_value=1.5 2.5
leaf_weight=10 10
leaf_count=10 10
internal_value=0
internal_weight=0
internal_count=20
is_linear=0
shrinkage=1


end of trees

pandas_categorical:null
"""


class Serve(Process):
    """A `berth serve` with its own folders and ports."""

    def __init__(self, folder):
        super().__init__("serve", folder)

    def start(self, *arguments: str) -> Serve:
        self.http, self.api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.spawn(BERTH, "serve", *arguments, "--data", str(self.folder / "data"), "--http", self.http, "--api", self.api)
        return self

    def described(self, name: str) -> str:
        """What `berth describe` says of the model."""
        return subprocess.run([BERTH, "describe", name, "--api", f"http://{self.api}"], check=True, capture_output=True, text=True).stdout

    def curl(self) -> list[str]:
        """The command that it prints, once it does."""

        def printed():
            assert self.runs(), self.logged()
            return re.search(r"^  (curl .*)$", self.logged(), re.MULTILINE)

        return shlex.split(until("a request to paste", printed).group(1))

    def pasted(self) -> dict:
        return json.loads(subprocess.run(self.curl(), check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def serve(tmp_path):
    process = Serve(tmp_path)
    yield process
    process.close()


def test_an_onnx_file_answers_the_request_that_is_printed(serve):
    serve.start(str(ARTIFACTS / "iris.onnx"))
    assert serve.pasted()["model_name"] == "iris"
    assert serve.stop() == 0


def test_a_folder_of_graphs_is_served_on_demand(serve):
    serve.start(str(ARTIFACTS))
    assert serve.pasted()["outputs"]
    assert "each loaded by its first request" in serve.logged()


def test_of_a_folder_a_model_is_asked_that_loads(serve, tmp_path):
    folder = tmp_path / "graphs"
    folder.mkdir()
    (folder / "broken.onnx").write_text("no graph")
    shutil.copy(ARTIFACTS / "iris.onnx", folder)
    serve.start(str(folder))
    assert serve.pasted()["model_name"] == "iris"
    assert re.search("^broken: ", serve.logged(), re.MULTILINE)


def test_an_estimator_runs_with_pinned_packages_and_says_so(serve, tmp_path):
    model = tmp_path / "stump.txt"
    model.write_text(STUMP)
    serve.start(str(model), "--model", "stump")
    assert serve.pasted() == {"prediction": 1.5}
    assert "lightgbm==" in serve.logged() and "pinned here" in serve.logged()
    described = serve.described("stump")
    assert "features" in described and "\nRequest:" not in described, "nobody but the model knows how long a row is"


def test_a_card_is_asked_as_its_schema_says(serve, tmp_path):
    folder, weights = tmp_path / "sums", tmp_path / "weights.json"
    subprocess.run([BERTH, "card", "new", str(folder), "--framework", "custom"], check=True, capture_output=True)
    weights.write_text("[1, 2, 3, 4]")
    serve.start(str(folder), "--artifact", str(weights))
    assert any(word.endswith("/v1/sums") for word in serve.curl())
    assert serve.pasted()["prediction"] == pytest.approx(17.1)
    line = next(line.strip() for line in serve.described("sums").splitlines() if line.endswith("| berth infer /v1/sums"))
    pasted = line.replace("| berth infer", f"| '{BERTH}' infer --http http://{serve.http}")
    assert "17." in subprocess.run(pasted, shell=True, check=True, capture_output=True, text=True).stdout


def test_weights_that_are_not_to_be_had_are_told(serve, tmp_path):
    folder = tmp_path / "sums"
    subprocess.run([BERTH, "card", "new", str(folder), "--framework", "custom"], check=True, capture_output=True)
    card = folder / "model-card.yaml"
    card.write_text(re.sub("storage_type: .*", "storage_type: http", re.sub("s3://[^ ]*/", "http://127.0.0.1:1/", card.read_text())))
    serve.start(str(folder))
    until("the way to go on", lambda: "`--artifact FILE` takes weights from here" in serve.logged())


def test_a_model_that_lacks_a_package_is_told_the_flags_for_packages(serve, tmp_path):
    pickled = tmp_path / "lacks.pkl"
    pickled.write_bytes(b"cnot_there\nModel\n.")
    serve.start(str(pickled))
    until("the way to go on", lambda: "`--requirements FILE` takes other packages" in serve.logged())
    assert "No module named 'not_there'" in serve.logged() and "spec.model.environment" in serve.logged()


def test_another_model_under_the_name_of_an_earlier_run_is_waited_for(serve, tmp_path):
    serve.start(str(ARTIFACTS / "iris.onnx"))
    serve.curl()
    assert serve.stop() == 0
    model = tmp_path / "iris.txt"
    model.write_text(STUMP)
    serve.start(str(model))
    until("the other model", lambda: "/v1/iris'" in serve.logged())
    assert "tensors only" not in serve.logged()


def test_what_is_no_model_is_refused_with_what_is(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    done = subprocess.run([BERTH, "serve", str(notes)], capture_output=True, text=True)
    assert done.returncode == 2 and "scikit-learn" in done.stderr, done.stderr
