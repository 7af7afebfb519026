"""`kind: Function` by `berth apply` and from a folder, with the same controller as objects in etcd; and several controllers."""

from __future__ import annotations

import json
import re
import shutil
import threading

import pytest

from harness.functions import BUILD, WORDS, Etcd, archive, ask, function
from harness.http_server import Answer, HttpServer, Request
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.server import Berth
from harness.waiting import PATIENCE, until

MANIFEST = """
apiVersion: berth.dev/v1
kind: Function
metadata:
  name: words
  labels: {team: text}
spec:
  type: python
  sourceUri: file:code
  entrypoint: handler.predict
  target: {platform: local}
  probe: {text: a b}
"""


@pytest.mark.timeout(900)
def test_functions_by_apply(berth, tmp_path):
    """Apply, see, change, go back, delete; a name may be that of a model, too."""
    (tmp_path / "code").mkdir()
    code, manifest = tmp_path / "code" / "handler.py", tmp_path / "words.yaml"
    code.write_text(WORDS % 1)
    manifest.write_text(MANIFEST)
    berth.start()
    assert "function/words is new" in berth.run("diff", "-f", str(manifest))
    assert berth.run("apply", "-f", str(manifest)) == "function/words created\n"
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a b c"}) == (200, {"version": 1, "words": 3})
    assert berth.run("apply", "-f", str(manifest)) == "function/words unchanged\n"
    shown = json.loads(berth.run("get", "function", "words", "-o", "json"))
    assert shown["metadata"]["generation"] == 1 and shown["metadata"]["origin"] == "api"
    assert shown["metadata"]["labels"] == {"team": "text"} and shown["spec"]["sourceUri"] == f"file:{tmp_path}/code"
    again = berth.run("get", "function", "words", "-o", "yaml")
    assert berth.run("apply", "-f", "-", stdin=again) == "function/words unchanged\n", "what was printed can be applied"

    # A change of the code is none of the manifest: a new place is.
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "handler.py").write_text(WORDS % 2)
    second = MANIFEST.replace("file:code", "file:two")
    manifest.write_text(second)
    plan = berth.run("plan", "-f", str(manifest))
    assert f"spec.sourceUri: file:{tmp_path}/code → file:{tmp_path}/two" in plan
    assert "build: likely, because of spec.sourceUri (a guess" in plan
    (guess,) = json.loads(berth.run("plan", "-f", str(manifest), "-o", "json"))["builds"]
    assert (guess["function"], guess["build"], guess["guess"], guess["because"]) == ("words", "likely", True, ["spec.sourceUri"])
    assert "builds" in berth.run("plan", "-f", str(manifest), "-o", "yaml")
    berth.run("apply", "-f", str(manifest))
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 2
    assert "sha256:" in berth.run("logs", "function/words")

    # One that cannot start: the earlier one serves, and its spec is the way back.
    manifest.write_text(second.replace("handler.predict", "handler.nothing"))
    berth.run("apply", "-f", str(manifest))
    assert "handler has no nothing" in berth.run("rollout", "status", "function/words", code=1) + berth.stderr
    explained = berth.run("explain", "function/words")
    assert "Generation 2 serves at" in explained and "entrypoint: handler.predict → handler.nothing" in explained
    assert "generation 4 is what 2 was" in berth.run("rollout", "undo", "function/words")
    berth.run("rollout", "status", "function/words")
    assert "generation 5 is what 1 was" in berth.run("rollout", "undo", "function/words", "--to-generation", "1")
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 1
    described = berth.run("describe", "function", "words")
    assert "function/words" in described.split("Events:")[1] and "FunctionDeployed" in described
    assert "function/words" in berth.run("get", "events")
    assert berth.metric("berth_function_requests_total", function="words", **{"class": "2xx"}) == 3
    history = berth.run("rollout", "history", "function/words")
    assert re.findall(r"^(\d+) ", history, re.MULTILINE) == ["5", "2", "1"], "what failed is no way back"
    assert "handler.predict" in berth.run("rollout", "history", "function/words", "--generation", "1")

    wrong = MANIFEST.replace("handler.predict", "predict")
    assert "write MODULE.FUNCTION" in berth.run("validate", "-f", "-", stdin=wrong, code=4) + berth.stderr
    status, _, body = berth.control("/v1/apply", "POST", wrong.replace("file:code", "file:/code"), {"content-type": "application/yaml"})
    assert status == 422 and "write MODULE.FUNCTION" in body.decode()
    assert berth.control("/v1/functions/words/sbom")[1]["content-type"] == "application/vnd.cyclonedx+json"
    provenance = json.loads(berth.control("/v1/functions/words/provenance")[2])
    digest = json.loads(berth.run("get", "function", "words", "-o", "json"))["status"]["artifact"]["digest"]
    assert provenance["subject"] == [{"name": "words.zip", "digest": {"sha256": digest.removeprefix("sha256:")}}]
    reasons = [event["reason"] for event in json.loads(berth.run("get", "events", "-o", "json"))["items"]]
    assert {"FunctionBuilt", "FunctionDeployed", "FunctionNotDeployed"} <= set(reasons)
    about = json.loads(berth.run("get", "events", "--for", "function/words", "-o", "json"))["items"]
    assert [event["reason"] for event in about] == [reason for reason in reasons if reason.startswith("Function")]
    assert {event["function"] for event in about} == {"words"} and not any("deployment" in event for event in about)
    assert json.loads(berth.control("/v1/events?function=other")[2])["items"] == []
    assert "--for is for lists of events" in berth.run("get", "functions", "--for", "function/words", code=None) + berth.stderr

    # What was declared is in Berth's own store, and what was deployed serves from the start.
    berth.kill()
    berth.start()
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 1
    until("the function to be known", lambda: berth.run("get", "functions", "-o", "name", code=None) == "function/words\n")
    assert berth.run("delete", "function/words") == "function/words deleted\n"
    until("the function to go", lambda: ask(berth, "words", {"text": "a"})[0] == 404)
    # Its record goes after its route.
    unknown = lambda: "there is no function" in berth.run("describe", "function", "words", code=None) + berth.stderr
    until("the function to be unknown", unknown)
    berth.run("describe", "function", "words", code=3)


@pytest.mark.timeout(600)
def test_the_way_back_has_the_code_of_before(berth, tmp_path):
    """Other code at the same place, built by a change of an annotation: the artifact of before is kept and serves again."""
    (tmp_path / "code").mkdir()
    code, manifest = tmp_path / "code" / "handler.py", tmp_path / "words.yaml"
    code.write_text(WORDS % 1)
    manifest.write_text(MANIFEST)
    berth.start()
    berth.run("apply", "-f", str(manifest))
    berth.run("rollout", "status", "function/words")
    code.write_text(WORDS % 2)
    manifest.write_text(MANIFEST.replace("metadata:", 'metadata:\n  annotations: {build: "2"}', 1))
    assert "build: no, unless the code" in berth.run("plan", "-f", str(manifest))
    berth.run("apply", "-f", str(manifest))
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 2
    builds = berth.metric("berth_function_builds_total", function="words", result="built")
    assert "generation 3 is what 1 was" in berth.run("rollout", "undo", "function/words")
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 1
    assert berth.metric("berth_function_builds_total", function="words", result="built") == builds == 2
    # A declaration of the same spec is built from the code that is there now.
    berth.run("apply", "-f", str(manifest))
    berth.run("rollout", "status", "function/words")
    assert ask(berth, "words", {"text": "a"})[1]["version"] == 2


@pytest.mark.timeout(600)
def test_a_name_in_two_namespaces_is_two_functions(berth, tmp_path):
    """Both answer, each with code, log, events and records of its own; one goes, the other stays."""
    manifest = tmp_path / "words.yaml"
    berth.start()
    for number, namespace, written in ((1, "default", "words"), (2, "team", "team/words")):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "handler.py").write_text(WORDS % number)
        manifest.write_text(MANIFEST.replace("file:code", f"file:{number}"))
        assert berth.run("apply", "-f", str(manifest), "-n", namespace) == f"function/{written} created\n"
        berth.run("rollout", "status", "function/words", "-n", namespace)

    def asked(path: str) -> tuple[int, object]:
        status, _, body = berth.post(path, {"text": "a b"})
        return status, json.loads(body)

    ours, theirs = "/functions/words", "/namespaces/team/functions/words"

    def both_answer() -> None:
        assert asked(ours) == asked("/namespaces/default/functions/words") == (200, {"version": 1, "words": 2})
        assert asked(theirs) == (200, {"version": 2, "words": 2})

    both_answer()
    assert asked("/functions/team%2Fwords")[0] == asked("/namespaces/shop/functions/words")[0] == 404
    shown = json.loads(berth.run("get", "function", "words", "-n", "team", "-o", "json"))
    assert shown["status"]["endpoint"] == f"http://{berth.http}{theirs}"
    assert (shown["metadata"]["name"], shown["metadata"]["namespace"]) == ("words", "team")
    again = berth.run("get", "function", "team/words", "-o", "yaml")
    assert berth.run("apply", "-f", "-", stdin=again) == "function/team/words unchanged\n", "what was printed can be applied"

    for words, names in ([], "function/words\n"), (["-n", "team"], "function/team/words\n"), (["-A"], "function/team/words\nfunction/words\n"):
        assert berth.run("get", "functions", *words, "-o", "name") == names, words
    assert re.search(r"^team +words +Succeeded", berth.run("get", "functions", "-A"), re.MULTILINE)
    described = berth.run("describe", "function/words", "-n", "team")
    assert re.search(r"^Namespace: +team$", described, re.MULTILINE) and "function/team/words" in described
    about = json.loads(berth.run("get", "events", "--for", "function/team/words", "-o", "json"))["items"]
    assert about and {event["function"] for event in about} == {"team/words"}
    assert "build" in berth.run("logs", "function/team/words") and "Succeeded" in berth.run("explain", "function/words", "-n", "team")
    assert berth.metric("berth_function_requests_total", namespace="team", function="words", **{"class": "2xx"}) == 1
    assert berth.metric("berth_function_requests_total", namespace="default", function="words", **{"class": "2xx"}) == 2
    # The same files at another place are the same artifact, and each is told its own place.
    shutil.copytree(tmp_path / "1", tmp_path / "ours")
    manifest.write_text(MANIFEST.replace("file:code", "file:ours"))
    berth.run("apply", "-f", str(manifest), "-n", "team")
    berth.run("rollout", "status", "function/team/words")
    assert asked(theirs) == (200, {"version": 1, "words": 2})
    told = [json.loads(berth.control(f"/v1{path}/provenance")[2]) for path in (ours, theirs)]
    assert told[0]["subject"] == told[1]["subject"], "one artifact"
    for provenance, folder, other in ((told[0], "1", "ours"), (told[1], "ours", "1")):
        assert provenance["predicate"]["buildDefinition"]["externalParameters"]["sourceUri"] == f"file:{tmp_path}/{folder}"
        assert f"file:{tmp_path}/{other}" not in json.dumps(provenance)
    assert "is what 1 was" in berth.run("rollout", "undo", "function/words", "-n", "team")
    berth.run("rollout", "status", "function/team/words")

    berth.kill()
    berth.start()
    both_answer()
    until("both to be known", lambda: berth.run("get", "functions", "-A", "-o", "name", code=None).count("\n") == 2)
    assert berth.run("delete", "function/words", "-n", "team") == "function/team/words deleted\n"
    until("the function to go", lambda: asked(theirs)[0] == 404)
    assert asked(ours) == (200, {"version": 1, "words": 2})
    assert berth.run("get", "functions", "-A", "-o", "name") == "function/words\n"


@pytest.mark.timeout(600)
def test_a_folder_declares_functions(berth, tmp_path):
    folder = tmp_path / "declared"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "handler.py").write_text(WORDS % 1)
    (folder / "words.yaml").write_text(MANIFEST)
    berth.start(models=folder)
    until("the function to answer", lambda: ask(berth, "words", {"text": "a b"}) == (200, {"version": 1, "words": 2}), BUILD)
    (tmp_path / "mine.yaml").write_text(MANIFEST.replace("file:code", f"file:{folder}/code").replace("a b", "b"))
    refused = berth.run("apply", "-f", str(tmp_path / "mine.yaml"), code=1) + berth.stderr
    assert f"belongs to the folder {folder}" in refused
    (folder / "words.yaml").unlink()
    until("the function to go", lambda: ask(berth, "words", {"text": "a"})[0] == 404)


@pytest.mark.timeout(600)
def test_workers_serve_a_function(berth, tmp_path):
    """`platform: replica`: a deployment of the same name, with revisions; it goes with the function."""
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "handler.py").write_text(WORDS % number)
    manifest = tmp_path / "words.yaml"
    first = MANIFEST.replace("platform: local", "platform: replica").replace("file:code", "file:1")

    def applied(text: str, code: int = 0) -> str:
        manifest.write_text(text)
        berth.run("apply", "-f", str(manifest))
        return berth.run("rollout", "status", "function/words", code=code) + berth.stderr

    def answer() -> tuple[int, object]:
        status, _, body = berth.post("/replicas/words", {"text": "a b c"})
        return status, json.loads(body)

    berth.start()
    applied(first)
    assert answer() == (200, {"version": 1, "words": 3})
    assert json.loads(berth.run("get", "function", "words", "-o", "json"))["status"]["endpoint"] == f"http://{berth.http}/replicas/words"
    assert json.loads(berth.run("get", "deployment", "words", "-o", "json"))["metadata"]["origin"] == "functions:own"
    berth.run("delete", "deployment/words", code=1)
    assert "functions" in berth.stderr, "it is the function's"
    applied(first.replace("file:1", "file:2"))
    assert answer() == (200, {"version": 2, "words": 3})

    # One that does not answer the probe, then a mistake that is told at once: the earlier one serves.
    assert "text" in applied(first.replace("{text: a b}", "{other: a b}"), code=1)
    assert answer()[0] == 200
    wrong = first.replace("  probe:", "  env: {A: b}\n  probe:")
    assert "spec.env does not reach replicas" in berth.run("validate", "-f", "-", stdin=wrong, code=4) + berth.stderr
    assert answer() == (200, {"version": 2, "words": 3})

    # Back on this machine: the deployment goes.
    applied(MANIFEST.replace("file:code", "file:2"))
    assert ask(berth, "words", {"text": "a"}) == (200, {"version": 2, "words": 1})
    until("the deployment to go", lambda: "words" not in berth.run("get", "deployments", "-o", "name", code=None))
    assert answer()[0] == 404


class Gate(HttpServer):
    """Serves one archive; whoever asks waits until it is opened."""

    def __init__(self, content: bytes):
        self.content, self.open, self.asked = content, threading.Event(), 0
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.asked += 1
        assert self.open.wait(PATIENCE)
        return Answer(200, {"content-type": "application/zip"}, self.content)


class Node(Berth):
    """A `berth node` that follows functions."""

    def __init__(self, folder, name: str, pki, etcd: Etcd, joins: str):
        super().__init__(folder / name)
        self.name, self.gossip, peer = name, f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        store = "etcd://" + etcd.client.replace("http://", "").replace(";", ",") + "/berth"
        self.command_line = (
            BERTH, "node", "--name", name, "--store", store, "--pki", str(pki / name), "--data", str(self.data),
            "--http", self.http, "--api", self.api, "--gossip", self.gossip, "--peer", peer, *(["--join", joins] if joins else []),
            "--source", f"etcd={etcd.client}", "--function-target", "local",
        )  # fmt: skip

    def launch(self) -> Node:
        self.spawn(*self.command_line)
        until("the control API", self.alive)
        return self


@pytest.mark.timeout(900)
def test_two_controllers_and_three_members_of_etcd(tmp_path):
    """The controller that leads is killed amid a build, then a member of etcd; history is compacted under the watch."""
    etcd, nodes = Etcd(tmp_path, members=3), []
    content = (tmp_path / archive(tmp_path, "a.zip", {"handler.py": WORDS % 1}).rsplit("/", 1)[1]).read_bytes()
    gate = Gate(content)
    try:
        pki = tmp_path / "pki"
        for arguments in (["init", str(pki)], ["issue", str(pki), "a"], ["issue", str(pki), "b"]):
            made = Process("pki", tmp_path)
            made.spawn(BERTH, "pki", *arguments)
            assert made.process.wait(PATIENCE) == 0, made.logged()
        first = Node(tmp_path, "a", pki, etcd, "")
        nodes = [first, Node(tmp_path, "b", pki, etcd, first.gossip)]
        for node in nodes:
            node.launch()
        etcd.put(function("words", f"{gate.url}/a.zip"))
        until("the build to begin", lambda: etcd.status("words").get("phase") == "Building" and gate.asked == 1)
        leader = until("a leader", lambda: next((node for node in nodes if node.metric("berth_leader") == 1), None))
        follower = next(node for node in nodes if node is not leader)
        leader.kill()
        until("the other controller to build", lambda: gate.asked == 2)
        gate.open.set()
        status = etcd.settled("words", "Succeeded", 1)
        assert status["endpoint"].startswith(f"http://{follower.http}/") and len(status["history"]) == 1
        assert ask(follower, "words", {"text": "a b"}) == (200, {"version": 1, "words": 2})

        # The deposed one comes back, and changes nothing.
        leader.launch()
        assert etcd.status("words") == status

        # One of three members dies, and what is put is followed; then the history is compacted under the watch.
        etcd.members[0].kill()
        until("the two others to agree", lambda: etcd.ctl("get", "/", check=False).returncode == 0)
        etcd.put(function("words", archive(tmp_path, "2.zip", {"handler.py": WORDS % 2}), 2))
        etcd.settled("words", "Succeeded", 2)
        etcd.ctl("compact", str(etcd.revision()))
        etcd.put(function("words", archive(tmp_path, "3.zip", {"handler.py": WORDS % 3}), 3))
        etcd.settled("words", "Succeeded", 3)
        assert ask(follower, "words", {"text": "a"})[1]["version"] == 3
        etcd.start()
        etcd.ctl("del", "/models/deployments/words")
        until("the function to go", lambda: ask(follower, "words", {"text": "a"})[0] == 404)
    finally:
        gate.open.set()
        for process in (*nodes, etcd, gate):
            process.close()


@pytest.mark.timeout(900)
def test_every_gateway_answers_and_who_is_overtaken_steps_aside(tmp_path):
    """A follower forwards requests to the leader. A leader that was overtaken ends its processes, and forwards as well."""
    etcd, nodes = Etcd(tmp_path), []
    text = {"text": "word " * 100_000}
    try:
        pki = tmp_path / "pki"
        for arguments in (["init", str(pki)], ["issue", str(pki), "a"], ["issue", str(pki), "b"]):
            made = Process("pki", tmp_path)
            made.spawn(BERTH, "pki", *arguments)
            assert made.process.wait(PATIENCE) == 0, made.logged()
        first = Node(tmp_path, "a", pki, etcd, "")
        nodes = [first, Node(tmp_path, "b", pki, etcd, first.gossip)]
        for node in nodes:
            node.launch()
        etcd.put(function("words", archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})))
        etcd.settled("words", "Succeeded", 1)
        leader = until("a leader", lambda: next((node for node in nodes if node.metric("berth_leader") == 1), None))
        follower = next(node for node in nodes if node is not leader)
        until("the follower to forward", lambda: ask(follower, "words", {"text": "a"})[0] == 200)
        assert ask(follower, "words", text) == (200, {"version": 1, "words": 100_000})
        assert ask(follower, "nothing", {}) == ask(leader, "nothing", {})
        assert ask(follower, "nothing", {})[0] == 404

        # It hangs until another leads, then finds that out.
        until("its process to be counted", lambda: leader.metric("berth_function_processes") == 1)
        leader.pause()
        until("the other to lead", lambda: follower.metric("berth_leader") == 1)
        at_home, answers = f"http://{follower.http}/", set()

        def is_at_home() -> bool:
            answers.add(ask(follower, "words", {"text": "a"})[0])
            return etcd.status("words").get("endpoint", "").startswith(at_home)

        until("its own endpoint", is_at_home, BUILD)
        assert 404 not in answers, "it exists, and is built there"
        leader.resume()
        until("its processes to end", lambda: leader.metric("berth_function_processes") == 0)
        until("it to forward", lambda: ask(leader, "words", text) == (200, {"version": 1, "words": 100_000}))
        etcd.put(function("words", archive(tmp_path, "2.zip", {"handler.py": WORDS % 2}), 2))
        etcd.settled("words", "Succeeded", 2)
        assert ask(leader, "words", {"text": "a"})[1]["version"] == 2
    finally:
        for process in (*nodes, etcd):
            process.close()


@pytest.mark.timeout(900)
def test_who_leads_next_serves_all_of_it_without_a_build(tmp_path):
    """Three controllers, two of which copy the artifacts. The leader dies, and so does the code: a function serves, and one whose newest
    spec is wrong serves its earlier version."""
    etcd, nodes = Etcd(tmp_path), []
    try:
        pki = tmp_path / "pki"
        for arguments in (["init", str(pki)], *(["issue", str(pki), name] for name in "abc")):
            made = Process("pki", tmp_path)
            made.spawn(BERTH, "pki", *arguments)
            assert made.process.wait(PATIENCE) == 0, made.logged()
        first = Node(tmp_path, "a", pki, etcd, "")
        nodes = [first, *(Node(tmp_path, name, pki, etcd, first.gossip) for name in "bc")]
        for node in nodes:
            node.launch()
        for number, name in ((1, "words"), (2, "broken")):
            etcd.put(function(name, archive(tmp_path, f"{number}.zip", {"handler.py": WORDS % number})))
            etcd.settled(name, "Succeeded", 1)
        etcd.put(function("broken", f"file:{tmp_path}/3.zip", 2, entrypoint="nothing"))
        assert etcd.settled("broken", "Failed", 2)["message"].endswith("The previous version keeps serving.")

        leader = until("a leader", lambda: next((node for node in nodes if node.metric("berth_leader") == 1), None))
        others = [node for node in nodes if node is not leader]
        digests = [etcd.status(name)["artifact"]["digest"].removeprefix("sha256:") for name in ("words", "broken")]
        kept = [
            node.data / "functions" / "builds" / "artifacts" / f"{digest}.{ending}"
            for node in others for digest in digests for ending in ("zip", "sbom.json", "provenance.json")
        ]  # fmt: skip
        until(lambda: f"copies of all: {[path for path in kept if not path.exists()]}", lambda: all(path.exists() for path in kept))
        for node in others:
            until("copies to be counted", lambda: node.metric("berth_function_artifact_copies_total", result="copied") == 6)
            assert node.metric("berth_function_artifact_copies_total", result="failed") == 0

        for number in (1, 2):
            (tmp_path / f"{number}.zip").unlink()
        leader.kill()
        heir = until("another to lead", lambda: next((node for node in others if node.metric("berth_leader") == 1), None))
        at_home = f"http://{heir.http}/"
        for number, name, phase in ((1, "words", "Succeeded"), (2, "broken", "Failed")):
            until(f"{name} there", lambda: etcd.status(name).get("endpoint", "").startswith(at_home), BUILD)
            for node in others:
                until(f"{name} to answer", lambda: ask(node, name, {"text": "a b"}) == (200, {"version": number, "words": 2}))
            assert etcd.status(name)["phase"] == phase
        told = etcd.settled("broken", "Failed", 2)
        assert "write MODULE.FUNCTION" in told["message"] and told["message"].endswith("The previous version keeps serving.")
        ready = next(fact for fact in told["conditions"] if fact["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("True", "Serving")
        assert heir.metric("berth_function_builds_total") == 0, "nothing was built there"
        assert json.loads(heir.control("/v1/functions/words/provenance")[2])["predicateType"] == "https://slsa.dev/provenance/v1"
    finally:
        for process in (*nodes, etcd):
            process.close()
