"""New versions take over without a lost request; bad ones never touch the one that serves."""

import json
from collections import Counter

from conftest import Load
from harness.examples import ARTIFACTS, manifest
from harness.waiting import until


def answered_by(load: Load) -> set[str]:
    return {json.loads(body)["model_version"] for _, status, body in load.records if status == 200}


def test_update_under_load_loses_nothing(berth):
    berth.start()
    berth.apply(manifest("iris", "iris"))
    berth.available("iris")
    with Load(berth, "iris") as load:
        load.more(50)
        for artifact in ("iris-v2", "iris", "iris-v2"):
            berth.apply(manifest("iris", artifact))
            berth.available("iris")
            load.more(50)
    assert not load.failed, load.failed[:3]
    assert len(answered_by(load)) == 2
    # Once the new one answers the old one does not: each change is one switch.
    versions = [json.loads(body)["model_version"] for _, _, body in sorted(load.records)]
    assert versions[0] != versions[-1]


def test_a_bad_version_leaves_the_old_one_serving(berth, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((ARTIFACTS / "iris.onnx").read_bytes()[:200])
    berth.start()
    berth.apply(manifest("iris"))
    berth.available("iris")
    with Load(berth, "iris") as load:
        load.more(20)
        berth.apply(manifest("iris", model={"uri": f"file:{broken}"}))
        until("the failure to show", lambda: berth.status("iris")["phase"] == "Degraded")
        load.more(20)
    assert not load.failed, load.failed[:3]
    status = berth.status("iris")
    assert status["observedGeneration"] == 2 and status["replicas"]["ready"] == 1
    messages = " ".join(condition["message"] for condition in status["conditions"])
    assert "old" in messages or "previous" in messages or "serving" in messages, messages
    # The way forward is another declaration.
    berth.apply(manifest("iris", "iris-v2"))
    berth.available("iris")


def test_a_canary_gets_its_share_until_it_is_promoted(berth):
    berth.start()
    berth.apply(manifest("iris"))
    berth.available("iris")

    def version() -> str:
        status, answer = berth.infer("iris")
        assert status == 200, answer
        return answer["model_version"]

    old = version()
    berth.apply(manifest("iris", "iris-v2", rollout={"canary": 10}))
    said = berth.run("rollout", "status", "iris")
    assert "gets 10 % of requests" in said and "berth rollout promote iris" in said, said
    until("the new version to answer", lambda: version() != old)
    answered = Counter(version() for _ in range(200))
    (new,) = answered.keys() - {old}
    assert abs(answered[new] - 20) <= 2, answered
    with Load(berth, "iris") as load:
        load.more(20)
        berth.run("rollout", "promote", "iris")
        assert "is rolled out" in berth.run("rollout", "status", "iris")
        load.more(20)
    assert not load.failed, load.failed[:3]
    assert {version() for _ in range(20)} == {new}
    assert "canary" not in berth.deployment("iris")["spec"].get("rollout", {})
    berth.run("rollout", "promote", "iris", code=1)
    assert "nothing to promote" in berth.stderr, berth.stderr


def test_the_wrong_digest_is_refused(berth):
    berth.start()
    berth.apply(manifest("iris", model={"sha256": "0" * 64}))
    until("the failure to show", lambda: berth.status("iris")["phase"] == "Failed")
    assert "sha256" in berth.run("describe", "deployment", "iris").lower()


def test_what_changes_nothing_moves_nothing(berth, tmp_path):
    berth.start()
    first = berth.apply(manifest("iris"))
    berth.available("iris")
    assert "created" in first and "unchanged" in berth.apply(manifest("iris"))
    before = berth.status("iris")["revision"]
    # The same bytes from another place, and another priority: a new generation, the same revision.
    copy = tmp_path / "copy.onnx"
    copy.write_bytes((ARTIFACTS / "iris.onnx").read_bytes())
    berth.apply(manifest("iris", model={"uri": f"file:{copy}"}, priority=70))
    berth.available("iris")
    assert berth.status("iris")["revision"] == before and berth.deployment("iris")["metadata"]["generation"] == 2
    events = json.loads(berth.run("get", "events", "-o", "json"))["items"]
    assert sum(event["reason"] == "Loaded" for event in events) == 1


def test_a_changed_file_in_the_folder_is_an_update(berth, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    artifact = folder / "model.onnx"
    artifact.write_bytes((ARTIFACTS / "iris.onnx").read_bytes())
    declared = manifest("iris", model={"uri": "file:model.onnx"})
    (folder / "iris.yaml").write_text(json.dumps(declared))
    berth.start(models=folder)
    berth.available("iris")
    before = berth.status("iris")["revision"]["serving"]
    with Load(berth, "iris") as load:
        load.more(20)
        artifact.with_suffix(".new").write_bytes((ARTIFACTS / "iris-v2.onnx").read_bytes())
        artifact.with_suffix(".new").rename(artifact)
        until("the new version to serve", lambda: berth.status("iris")["revision"]["serving"] != before)
    assert not load.failed, load.failed[:3]
    # A manifest that breaks leaves what runs alone; one that goes takes its deployment along.
    # In one step: the folder may be read at any time, and an empty file declares nothing.
    (folder / "broken.new").write_text("spec: [")
    (folder / "broken.new").rename(folder / "iris.yaml")
    until("the error to be told", lambda: "iris.yaml" in berth.run("get", "events"))
    assert berth.infer("iris")[0] == 200
    (folder / "iris.yaml").unlink()
    until("it to be gone", lambda: berth.get("/v2/models/iris")[0] == 404)


def test_delete_under_load_answers_what_it_took(berth):
    berth.start()
    berth.apply(manifest("iris"))
    berth.available("iris")
    with Load(berth, "iris") as load:
        load.more(50)
        berth.run("delete", "deployment", "iris")
        until("requests to be refused", lambda: load.records[-1][1] == 404)
    assert {status for _, status, _ in load.records} == {200, 404}


def test_what_was_acknowledged_is_routed_by(berth):
    berth.start()
    for name in (f"iris-{n}" for n in range(10)):
        berth.apply(manifest(name, replicas={"min": 0, "max": 1}))
        assert berth.infer(name)[0] == 200
        berth.run("delete", "deployment", name)
        assert berth.infer(name)[0] == 404
