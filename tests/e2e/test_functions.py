"""Functions from etcd: plain `etcdctl put` in, builds by the real programs, answers over HTTP out."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from harness.azure import Azure, Site
from harness.examples import EXAMPLES
from harness.functions import BUILD, WORDS, Etcd, archive, archive_of, ask, at_endpoint, function
from harness.npm import installed
from harness.ports import free_port, listens
from harness.processes import BERTH, Process
from harness.server import Berth
from harness.waiting import PATIENCE, until

KERAS = '{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{"name":"sentiment-analyzer","uid":"a1b2c3d4-e5f6-7890-1234-567890abcdef"},"spec":{"type":"keras","sourceUri":"azure-blob://artifacts/models/sentiment-analyzer/v1.2.0/src.zip","entrypoint":"handler.predict","runtime":{"pythonVersion":"3.9"},"target":{"platform":"azure-function","resourceGroup":"ml-prod-rg","appName":"sentiment-analyzer-prod"}},"status":{"phase":"Pending","observedGeneration":0}}'  # fmt: skip
TFJS = '{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{"name":"image-classifier-js","uid":"b2c3d4e5-f6a7-8901-2345-67890abcdef1"},"spec":{"type":"tfjs","sourceUri":"azure-blob://artifacts/models/image-classifier-js/v0.8.1/src.zip","entrypoint":"dist/bundle.handler","runtime":{"nodeVersion":"18"},"build":{"bundler":"rollup","configFile":"rollup.config.js"},"target":{"platform":"azure-function","resourceGroup":"ml-edge-rg","appName":"image-classifier-js-prod"}},"status":{"phase":"Pending","observedGeneration":0}}'  # fmt: skip

CODE = EXAMPLES.parent / "functions"


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


@pytest.fixture
def functions(berth, etcd):
    """A server that follows etcd, and runs all functions itself."""
    berth.arguments = ("--source", f"etcd={etcd.client}", "--function-target", "local")
    return berth.start(*berth.arguments)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> str:
    """TensorFlow.js itself, with a model that is trained here, once; its URI."""
    folder = tmp_path_factory.mktemp("classifier")
    training = folder / "training"
    shutil.copytree(CODE / "pixels-tfjs", training)
    packages = json.loads((training / "package.json").read_text())["dependencies"]
    (training / "node_modules").symlink_to(installed(packages))
    subprocess.run(["node", "train.mjs"], cwd=training, check=True, capture_output=True, timeout=BUILD)
    return archive_of(folder, "js.zip", CODE / "pixels-tfjs", **{"model.js": (training / "model.js").read_bytes()})


@pytest.mark.timeout(900)
def test_both_lines_of_a_manual_answer(functions, etcd, classifier, tmp_path):
    """Verbatim but for the place of the code."""
    # A model that Keras has saved, read as its format says: an installed Keras would take half a gigabyte.
    keras = archive_of(tmp_path, "src.zip", CODE / "sentiment-keras")
    etcd.put(KERAS.replace("azure-blob://artifacts/models/sentiment-analyzer/v1.2.0/src.zip", keras))
    etcd.put(TFJS.replace("azure-blob://artifacts/models/image-classifier-js/v0.8.1/src.zip", classifier))
    status = etcd.settled("sentiment-analyzer", "Succeeded", 1)
    answer = at_endpoint(functions, status, {"text": "good good film"})
    assert answer["positive"] > 0.98 and at_endpoint(functions, status, {"text": "a bad film"})["positive"] < 0.2
    assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
        ["SpecValid", "Built", "Deployed", "Ready"], "True"
    )
    assert status["artifact"]["digest"].startswith("sha256:") and status["artifact"]["size"] > 1000
    assert status["build"]["logTail"] and status["build"]["took"].endswith("s")
    status = etcd.settled("image-classifier-js", "Succeeded", 1)
    left, right = at_endpoint(functions, status, {"pixels": [1, 1, 0, 0]})["scores"]
    assert left > 0.9 and right < 0.1
    bill = json.loads(functions.control("/v1/functions/image-classifier-js/sbom")[2])
    bundled = next(one for one in bill["components"] if one["name"] == "@tensorflow/tfjs-core")
    assert bundled["purl"] == "pkg:npm/%40tensorflow/tfjs-core@4.22.0" and bundled["hashes"][0]["alg"] == "SHA-512"
    stored = etcd.object("image-classifier-js")
    assert stored["metadata"] == json.loads(TFJS)["metadata"], "all but the status stays as it was put"
    code, _, body = functions.post("/functions/image-classifier-js", b"{", {})
    assert (code, "not JSON" in body.decode()) == (400, True)


@pytest.mark.timeout(600)
def test_update_break_roll_back_delete(functions, etcd, tmp_path):
    first = archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})
    second = archive(tmp_path, "2.zip", {"handler.py": WORDS % 2})
    broken = archive(tmp_path, "3.zip", {"handler.py": "import nothing_like_this\n"})
    etcd.put(function("words", first))
    one = etcd.settled("words", "Succeeded", 1)
    assert ask(functions, "words", {"text": "a b c"}) == (200, {"version": 1, "words": 3})

    # Requests without a pause from before the update until after it: none may fail.
    answers, over = [], threading.Event()

    def call():
        while not over.is_set():
            answers.append(ask(functions, "words", {"text": "a b"}))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    etcd.put(function("words", second, 2))
    etcd.settled("words", "Succeeded", 2)
    assert ask(functions, "words", {"text": "a"}) == (200, {"version": 2, "words": 1})
    over.set()
    for caller in callers:
        caller.join()
    assert {status for status, _ in answers} == {200} and len(answers) > 10
    assert {answer["version"] for _, answer in answers} <= {1, 2}

    etcd.put(function("words", broken, 3))
    failed = etcd.settled("words", "Failed", 3)
    assert "nothing_like_this" in failed["message"] and "previous version keeps serving" in failed["message"]
    assert ask(functions, "words", {"text": "a"}) == (200, {"version": 2, "words": 1})

    etcd.put(function("words", first, 4))
    back = etcd.settled("words", "Succeeded", 4)
    assert ask(functions, "words", {"text": "a"}) == (200, {"version": 1, "words": 1})
    assert back["artifact"] == one["artifact"] and back["build"]["cached"], "the way back needs no build"

    etcd.put(function("words", first, 5, entrypoint="handler.nothing"))
    failed = etcd.settled("words", "Failed", 5)
    assert "handler has no nothing" in failed["message"] and "it has predict" in failed["message"]
    etcd.put(function("words", first, 6) | {"spec": {"type": "pytorch"}})
    failed = etcd.settled("words", "Failed", 6)
    assert 'spec.type "pytorch" is unknown' in failed["message"]
    assert ask(functions, "words", {"text": "a"})[0] == 200

    etcd.ctl("del", "/models/deployments/words")
    until("the function to go", lambda: ask(functions, "words", {"text": "a"})[0] == 404)
    assert etcd.object("words") == {}, "what was deleted stays deleted"


@pytest.mark.timeout(600)
def test_a_namespace_is_a_part_of_the_key(functions, etcd, tmp_path):
    """`/models/deployments/team/words` is another function than `/models/deployments/words`."""
    def put(key: str, number: int, namespace: str | None = None) -> None:
        document = function("words", archive(tmp_path, f"{number}.zip", {"handler.py": WORDS % number}))
        document["metadata"] |= {"namespace": namespace} if namespace else {}
        etcd.ctl("put", f"/models/deployments/{key}", json.dumps(document))

    put("words", 1)
    put("team/words", 2)
    put("shop/words", 3, "shop")
    put("other/words", 4, "team")
    put("default/words", 5)
    for number, key in enumerate(("words", "team/words", "shop/words"), 1):
        assert at_endpoint(functions, etcd.settled(key, "Succeeded", 1), {"text": "a"}) == {"version": number, "words": 1}
    assert 'metadata.namespace is "team", but the key' in etcd.settled("other/words", "Failed", 1)["message"]
    assert "leave default/ out of the key" in etcd.settled("default/words", "Failed", 1)["message"]
    etcd.ctl("del", "/models/deployments/default/words")
    etcd.ctl("del", "/models/deployments/team/words")
    gone = lambda: functions.post("/namespaces/team/functions/words", {"text": "a"})[0] == 404
    until("the function of the team to go", gone)
    assert ask(functions, "words", {"text": "a"}) == (200, {"version": 1, "words": 1}), "the others stay"
    assert functions.post("/namespaces/shop/functions/words", {"text": "a"})[0] == 200


@pytest.mark.timeout(600)
def test_an_etcd_that_asks_for_a_user(berth, etcd, tmp_path, monkeypatch):
    """The user may do nothing but read and write below the prefix. Its password is seen nowhere."""
    for arguments in (
        ("user", "add", "root:all"), ("user", "grant-role", "root", "root"), ("role", "add", "functions"),
        ("role", "grant-permission", "--prefix=true", "functions", "readwrite", "/models/deployments/"),
        ("user", "add", "berth:pass-word"), ("user", "grant-role", "berth", "functions"), ("auth", "enable"),
    ):  # fmt: skip
        etcd.ctl(*arguments)
    monkeypatch.setenv("ETCDCTL_USER", "root:all")
    password = tmp_path / "password"
    password.write_text("pass-word\n")
    source = ("--source", f"etcd={etcd.client}", "--function-target", "local")
    berth.start(*source, "--source-etcd-user", "berth", "--source-etcd-password-file", str(password))
    etcd.put(function("words", archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})))
    etcd.settled("words", "Succeeded", 1)
    assert ask(berth, "words", {"text": "a b"}) == (200, {"version": 1, "words": 2})
    told = berth.run("get", "sources", "-o", "json") + berth.run("get", "events", "-o", "json") + berth.logged()
    assert "pass-word" not in told and "pass-word" not in json.dumps(etcd.object("words"))


@pytest.mark.timeout(600)
def test_another_generation_of_the_same_goes_on_in_its_process(functions, etcd, tmp_path):
    # In a sandbox every process may have the same number: what it remembers tells it from others.
    code = "import time\nBEGAN = time.time_ns()\ndef predict(body):\n    return {'began': BEGAN}\n"
    uri = archive(tmp_path, "1.zip", {"handler.py": code})
    etcd.put(function("same", uri, probe={}))
    first = etcd.settled("same", "Succeeded", 1)
    began = ask(functions, "same", {})
    etcd.put(function("same", uri, 2, probe={}))
    second = etcd.settled("same", "Succeeded", 2)
    assert ask(functions, "same", {}) == began and second["build"]["cached"]
    assert second["artifact"] == first["artifact"] and second["history"] == first["history"]
    assert functions.metric("berth_function_builds_total", function="same", result="built") == 1
    # Another variable is another version, of the same artifact.
    etcd.put(function("same", uri, 3, probe={}, env={"A": "1"}))
    etcd.settled("same", "Succeeded", 3)
    assert ask(functions, "same", {}) != began


@pytest.mark.timeout(600)
def test_a_process_that_hangs_is_replaced_by_another_generation_of_the_same(functions, etcd, tmp_path):
    code = (
        "import ctypes, time\nBEGAN = time.time_ns()\ndef predict(body):\n"
        # A call into C that keeps the lock of the interpreter: no other thread goes on.
        "    if body.get('stop'):\n        print('it stops', flush=True)\n        ctypes.PyDLL(None).sleep(600)\n"
        "    return {'began': BEGAN}\n"
    )
    uri = archive(tmp_path, "1.zip", {"handler.py": code})
    etcd.put(function("same", uri))
    etcd.settled("same", "Succeeded", 1)
    began = ask(functions, "same", {})
    caller = threading.Thread(target=lambda: ask(functions, "same", {"stop": True}), daemon=True)
    caller.start()
    until("the process to stop", lambda: b"it stops" in functions.control("/v1/functions/same/log")[2])
    etcd.put(function("same", uri, 2))
    etcd.settled("same", "Succeeded", 2)
    answer = ask(functions, "same", {})
    assert answer[0] == 200 and answer != began
    caller.join(PATIENCE)


@pytest.mark.timeout(600)
def test_a_start_goes_on_though_its_callers_leave(functions, etcd, tmp_path):
    """Each caller that left ended the start, so that no later one found the function up."""
    code = "import time\ntime.sleep(3)\ndef predict(body):\n    return 7\n"
    etcd.put(function("slow", archive(tmp_path, "slow.zip", {"handler.py": code}), limits={"idleSeconds": 2}))
    etcd.settled("slow", "Succeeded", 1)
    until("its process", lambda: functions.metric("berth_function_processes") == 1)
    until("its process to rest", lambda: functions.metric("berth_function_processes") == 0)
    request = urllib.request.Request(f"http://{functions.http}/functions/slow", b"{}", {"content-type": "application/json"})

    def answered():
        try:
            return urllib.request.urlopen(request, timeout=1).read()
        except TimeoutError:
            return None

    assert until("an answer", answered) == b"7"


@pytest.mark.timeout(600)
def test_two_servers_of_the_same_objects_do_not_write_without_end(functions, etcd, tmp_path):
    etcd.put(function("words", archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})))
    etcd.settled("words", "Succeeded", 1)
    other = Berth(tmp_path / "other")
    try:
        other.start("--source", f"etcd={etcd.client}", "--function-target", "local")
        servers = (functions, other)
        contended = lambda server: "FunctionContended" in server.run("get", "events", "--for", "function/words")
        until("one of them to say so", lambda: any(map(contended, servers)))
        builds = lambda: [server.metric("berth_function_builds_total", result="built") for server in servers]
        until(lambda: f"one build each: {builds()}", lambda: builds() == [1, 1])
        revisions = []

        def quiet():
            revisions.append(etcd.revision())
            return len(revisions) > 3 and len(set(revisions[-4:])) == 1

        until("the writes to end", quiet)
    finally:
        other.close()


@pytest.mark.timeout(600)
def test_restarts_and_compaction_neither_lose_nor_repeat(functions, etcd, tmp_path):
    uri = archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})
    for name in ("a", "b", "c", "e"):
        etcd.put(function(name, uri))
    before = {name: etcd.settled(name, "Succeeded", 1) for name in ("a", "b", "c", "e")}
    functions.kill()
    # While nobody follows: one changes, one goes, one comes, and the history is compacted.
    etcd.put(function("a", archive(tmp_path, "2.zip", {"handler.py": WORDS % 2}), 2))
    etcd.ctl("del", "/models/deployments/b")
    etcd.put(function("d", uri))
    etcd.put(function("e", archive(tmp_path, "3.zip", {"handler.py": "import nothing_like_this\n"}), 2))
    etcd.ctl("compact", str(etcd.revision()))
    functions.start(*functions.arguments)
    assert ask(functions, "c", {"text": "x"})[0] == 200, "what was deployed serves from the start"
    etcd.settled("a", "Succeeded", 2)
    etcd.settled("d", "Succeeded", 1)
    # The object that was put has no status: the version that serves is known from the machine.
    broken = etcd.settled("e", "Failed", 2)
    assert "previous version keeps serving" in broken["message"] and broken["endpoint"] == before["e"]["endpoint"]
    assert [past["generation"] for past in broken["history"]] == [1] and broken["artifact"] == before["e"]["artifact"]
    functions.run("rollout", "undo", "function/e")
    etcd.settled("e", "Succeeded", 3)
    until("b to go", lambda: ask(functions, "b", {"text": "x"})[0] == 404)
    assert etcd.status("c") == before["c"], "nothing is built, and nothing is written, where nothing changed"
    assert ask(functions, "a", {"text": "x"}) == (200, {"version": 2, "words": 1})
    # A store that is away and comes back is caught up with.
    etcd.kill()
    assert ask(functions, "a", {"text": "x"})[0] == 200
    etcd.start()
    etcd.put(function("a", uri, 3))
    etcd.settled("a", "Succeeded", 3)
    # A person overwrites the status: it is mended, and nothing is built.
    build = etcd.status("a")["build"]
    etcd.put(function("a", uri, 3) | {"status": {"phase": "Pending", "observedGeneration": 0}})
    assert etcd.settled("a", "Succeeded", 3)["build"] == build


@pytest.mark.timeout(600)
def test_a_version_after_a_restart_leaves_the_one_that_serves_alone(berth, etcd, tmp_path):
    """In a container each process has the number of the one before."""
    berth.command = lambda *command: ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", *command]
    arguments = ("--source", f"etcd={etcd.client}", "--function-target", "local")
    berth.start(*arguments)
    etcd.put(function("f", archive(tmp_path, "1.zip", {"handler.py": WORDS % 1})))
    etcd.settled("f", "Succeeded", 1)

    def restart():
        berth.kill()
        until("the process to end with the one that started it", lambda: not listens(int(berth.api.split(":")[1])))
        berth.start(*arguments)

    restart()
    etcd.put(function("f", archive(tmp_path, "2.zip", {"handler.py": WORDS % 2}), 2))
    etcd.settled("f", "Succeeded", 2)
    assert ask(berth, "f", {"text": "x"}) == (200, {"version": 2, "words": 1})
    restart()
    assert ask(berth, "f", {"text": "x"}) == (200, {"version": 2, "words": 1})


@pytest.mark.timeout(600)
def test_functions_for_azure_work_unchanged(functions, etcd, tmp_path):
    python = archive(tmp_path, "azure.zip", {
        "handler.py": (
            "import json, os\nimport azure.functions as func\n"
            "def main(req: func.HttpRequest) -> func.HttpResponse:\n"
            "    body = req.get_json()\n"
            "    text = json.dumps({'sum': sum(body), 'by': os.environ['WHO'], 'q': req.params.get('q')})\n"
            "    return func.HttpResponse(text, status_code=201, mimetype='application/json', headers={'x-one': '1'})\n"
        ),
    })  # fmt: skip
    node = archive(tmp_path, "node.zip", {
        "src/score.js": (
            "exports.handler = async (request, context) => {\n"
            "  const body = await request.json();\n"
            "  context.log('scoring');\n"
            "  return { status: 202, jsonBody: { sum: body[0] + body[1], q: request.query.get('q') } };\n"
            "};\n"
        ),
    })  # fmt: skip
    etcd.put(function("py", python, entrypoint="handler.main", env={"WHO": "me"}, probe=[1]))
    etcd.put(function("js", node, type="javascript", entrypoint="src/score.handler"))
    etcd.settled("py", "Succeeded", 1)
    etcd.settled("js", "Succeeded", 1)
    code, headers, body = functions.post("/functions/py?q=7", [1, 2])
    assert (code, headers["x-one"], json.loads(body)) == (201, "1", {"sum": 3, "by": "me", "q": "7"})
    code, _, body = functions.post("/functions/js?q=8", [1, 2])
    assert (code, json.loads(body)) == (202, {"sum": 3, "q": "8"})


@pytest.mark.timeout(600)
def test_bad_code_is_bounded(functions, etcd, tmp_path):
    uri = archive(tmp_path, "bad.zip", {
        "handler.py": (
            "import os, time, uuid\nME = uuid.uuid4().hex\n"
            "def predict(body):\n"
            "    if body == 'exit': os._exit(3)\n"
            "    if body == 'sleep': time.sleep(1000)\n"
            "    if body == 'raise': raise ValueError('no')\n"
            "    return {'me': ME, 'secrets': [k for k in os.environ if 'SECRET' in k or 'AWS' in k]}\n"
        ),
    })  # fmt: skip
    etcd.put(function("bad", uri, limits={"timeoutSeconds": 2, "idleSeconds": 1, "concurrency": 2}))
    etcd.settled("bad", "Succeeded", 1)
    status, first = ask(functions, "bad", "x")
    assert (status, first["secrets"]) == (200, [])
    assert ask(functions, "bad", "raise") == (500, {"error": "ValueError: no"})
    assert ask(functions, "bad", "exit")[0] == 502
    status, after = ask(functions, "bad", "x")
    assert status == 200 and after["me"] != first["me"], "another process took its place"
    status, answer = ask(functions, "bad", "sleep")
    assert status == 504 and "spec.limits.timeoutSeconds" in answer["error"]
    assert ask(functions, "bad", "x")[0] == 200
    until("its process to rest", lambda: functions.metric("berth_function_processes") == 0)
    assert ask(functions, "bad", "x")[0] == 200, "the next request starts one"
    escape = tmp_path / "escape.zip"
    with zipfile.ZipFile(escape, "w") as zipped:
        zipped.writestr("../../outside.py", "x")
    etcd.put(function("escape", f"file:{escape}"))
    assert "leads out of its folder" in etcd.settled("escape", "Failed", 1)["message"]
    etcd.put(function("gone", f"file:{tmp_path}/none.zip"))
    assert "Tried again in" in etcd.settled("gone", "Failed", 1)["message"]
    archive(tmp_path, "none.zip", {"handler.py": WORDS % 1})
    etcd.settled("gone", "Succeeded", 1)


@pytest.mark.timeout(600)
def test_a_followed_log_repeats_and_loses_nothing(functions, etcd, tmp_path):
    code = (
        "def predict(body):\n"
        "    for number in body:\n"
        "        print(f'\\x1b[31mline {number}\\x1b[0m of the output, long enough to leave the end of it soon', flush=True)\n"
        "    return {}\n"
    )
    etcd.put(function("says", archive(tmp_path, "says.zip", {"handler.py": code})))
    etcd.settled("says", "Succeeded", 1)
    follower = Process("follower", tmp_path)
    follower.spawn(BERTH, "logs", "function/says", "-f", env={"BERTH_API": f"http://{functions.api}"})
    try:
        until("the build", lambda: "sha256:" in follower.logged())
        for first in range(0, 2_000, 200):
            assert ask(functions, "says", list(range(first, first + 200)))[0] == 200
            until("the lines", lambda last=first + 199: f"line {last} of" in follower.logged())
        numbers = [line.split()[1] for line in follower.logged_lines() if line.startswith("line ")]
        assert numbers == [str(number) for number in range(2_000)]
        assert "\x1b" not in follower.logged()
    finally:
        follower.close()
    shown = functions.run("logs", "function/says", "--tail", "2").splitlines()
    assert "... earlier lines left out: 1998" in shown and [line[:9] for line in shown[-2:]] == ["line 1998", "line 1999"]
    objects = [json.loads(line) for line in functions.run("logs", "function/says", "--tail", "1", "-o", "json").splitlines()]
    assert [one["part"] for one in objects] == ["build", "output"] and objects[1]["number"] == 1_999

    # Where a version does not start, its output stays, and Python's mistakes have a place.
    broken = archive(tmp_path, "broken.zip", {"handler.py": "print('before')\nimport other\n", "other.py": "def predict(body)\n"})
    etcd.put(function("says", broken, 2))
    failed = etcd.settled("says", "Failed", 2)
    assert "(other.py, line 1). The previous version keeps serving." in failed["message"]
    assert "before" in functions.run("logs", "function/says")
    explained = functions.run("explain", "function/says")
    assert "rollout undo" in explained and "Deployed is False: " in explained
    etcd.put(function("says", archive(tmp_path, "azure.zip", {"handler.py": "def predict(body, context): return {}\n"}), 3))
    assert "add azure-functions to requirements.txt" in etcd.settled("says", "Failed", 3)["message"]

    # The way back leaves a person's object as it is.
    before = etcd.object("says") | {"note": 1}
    before["metadata"]["uid"] = "a1"
    etcd.put(before | {"metadata": before["metadata"] | {"generation": 4}})
    etcd.settled("says", "Failed", 4)
    functions.run("rollout", "undo", "function/says")
    etcd.settled("says", "Succeeded", 5)
    after = etcd.object("says")
    assert (after["apiVersion"], after["kind"], after["note"], after["metadata"]["uid"]) == ("v1alpha1", "ModelDeployment", 1, "a1")
    assert "etcd" in functions.run("describe", "function", "says").split("Declared by:")[1].split("\n")[0]

    # A store that is gone is told.
    etcd.kill()
    until("the trouble to be told", lambda: "Retrying" in functions.run("get", "sources"), 15)
    etcd.start()
    until("its return to be told", lambda: "Retrying" not in functions.run("get", "sources"))


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    """Microsoft's server of Azure Blob Storage for developers; the account and its key are fixed."""
    folder = tmp_path_factory.mktemp("azurite")
    server, port = Process("azurite", folder), free_port()
    server.spawn(
        str(installed({"azurite": "3.35.0"}) / ".bin/azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port),
        "--location", str(folder / "data"), "--skipApiVersionCheck", "--disableTelemetry",
    )  # fmt: skip
    until("Azurite", lambda: "successfully listens" in server.logged())
    yield f"http://127.0.0.1:{port}"
    server.close()


AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azure_blob(url: str, method: str, path: str, body: bytes = b"") -> None:
    """A request that is signed with the key of the account (Shared Key)."""
    when = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": when, "x-ms-version": "2021-08-06"}
    if not path.endswith("restype=container"):
        headers["x-ms-blob-type"] = "BlockBlob"
    named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    place, _, query = path.partition("?")
    asked = f"/devstoreaccount1/devstoreaccount1{place}" + (f"\n{query.replace('=', ':')}" if query else "")
    kind = "application/octet-stream"
    text = f"{method}\n\n\n{len(body) or ''}\n\n{kind}\n\n\n\n\n\n\n{named}{asked}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    headers["authorization"] = f"SharedKey devstoreaccount1:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{url}/devstoreaccount1{path}", body, headers | {"content-type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert answer.status == 201


def container_of(url: str, name: str) -> None:
    """Makes a container, which another test may have made before."""
    try:
        azure_blob(url, "PUT", f"/{name}?restype=container")
    except urllib.error.HTTPError as error:
        assert error.code == 409


@pytest.mark.timeout(900)
def test_code_comes_from_many_places(berth, etcd, files, azurite, tmp_path):
    """A web server, Azure Blob Storage and a commit; the first line of the manual, verbatim."""
    source = {"handler.py": WORDS % 1}
    zipped = Path(archive(tmp_path, "a.zip", source).removeprefix("file:")).read_bytes()
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        (tmp_path / "handler.py").write_text(source["handler.py"])
        tar.add(tmp_path / "handler.py", "code/handler.py")
    files.files["src.tar.gz"] = tarred.getvalue()
    container_of(azurite, "artifacts")
    azure_blob(azurite, "PUT", "/artifacts/models/sentiment-analyzer/v1.2.0/src.zip", zipped)
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "handler.py").write_text(source["handler.py"])
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    account = {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{azurite}/devstoreaccount1",
        "AZURE_ALLOW_HTTP": "true",
    }
    berth.start("--source", f"etcd={etcd.client}", "--function-target", "local", env=account)
    sha256 = hashlib.sha256(tarred.getvalue()).hexdigest()
    etcd.put(function("web", files.place("src.tar.gz"), sourceSha256=sha256))
    etcd.put(function("other", files.place("src.tar.gz"), sourceSha256="0" * 64))
    etcd.put(function("commit", f"git+file://{repository}@{commit}"))
    etcd.put(KERAS)
    for name in ("web", "commit", "sentiment-analyzer"):
        etcd.settled(name, "Succeeded", 1)
        assert ask(berth, name, {"text": "a b"}) == (200, {"version": 1, "words": 2})
    assert sha256 in etcd.settled("other", "Failed", 1)["message"]
    listed = berth.run("get", "functions")
    assert "sentiment-analyzer" in listed and "ChecksumMismatch" in berth.run("describe", "function", "other")
    assert "file:" not in berth.run("logs", "function/web") and "sha256:" in berth.run("logs", "function/web")


def test_the_same_code_gives_the_same_artifact(functions, etcd, tmp_path):
    """From a folder and from an archive, in two builds."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "handler.py").write_text(WORDS % 1)
    etcd.put(function("one", f"file:{folder}"))
    one = etcd.settled("one", "Succeeded", 1)
    shutil.rmtree(functions.data / "functions" / "builds" / "artifacts" / "built")
    (functions.data / "functions" / "builds" / "artifacts" / "built").mkdir()
    etcd.put(function("one", archive(tmp_path, "a.zip", {"handler.py": WORDS % 1}), 2))
    two = etcd.settled("one", "Succeeded", 2)
    assert not two["build"]["cached"] and two["artifact"] == one["artifact"]


@pytest.fixture
def azure():
    azure = Azure()
    yield azure
    azure.close()


def packages(azurite) -> dict[str, str]:
    """Settings of a container of packages, which is empty."""
    container = f"packages-{free_port()}"
    azure_blob(azurite, "PUT", f"/{container}?restype=container")
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{azurite}/devstoreaccount1",
        "AZURE_STORAGE_PACKAGES_CONTAINER": container,
        "AZURE_ALLOW_HTTP": "true",
    }


# Settings of an app for `timeoutSeconds: 90` and `concurrency: 2`.
LIMITS = {
    "AzureFunctionsJobHost__functionTimeout": "00:01:30",
    "AzureFunctionsJobHost__extensions__http__maxConcurrentRequests": "2",
    "PYTHON_THREADPOOL_THREAD_COUNT": "2",
}


@pytest.mark.timeout(900)
def test_a_function_goes_to_azure(berth, etcd, azurite, azure, tmp_path):
    """Created, updated beside what serves, a broken one kept from it, drift corrected, deleted."""
    account = packages(azurite)
    berth.start("--source", f"etcd={etcd.client}", env=account | azure.environment())
    target = {"platform": "azure-function", "resourceGroup": "ml-prod-rg", "appName": "words-prod"}

    def words(code: str, generation: int, **spec) -> dict:
        uri = archive(tmp_path, f"{generation}.zip", {"handler.py": code})
        return function("words", uri, generation, target=target, probe={"text": "a b"}, env={"WHO": "me"}, **spec)

    def at(status: dict) -> dict:
        body = json.dumps({"text": "a b c"}).encode()
        with urllib.request.urlopen(urllib.request.Request(status["endpoint"], body), timeout=PATIENCE) as answer:
            return json.load(answer)

    azure.throttle = 1
    etcd.put(words(WORDS % 1, 1))
    one = etcd.settled("words", "Succeeded", 1)
    assert at(one) == {"version": 1, "words": 3}
    production = azure.sites["words-prod", None]
    assert one["endpoint"] == f"http://127.0.0.1:{production.port}/api/words"
    assert ("words-prod", "berth") not in azure.sites, "nothing served yet, and no slot is needed"
    assert production.settings["WHO"] == "me" and production.settings["FUNCTIONS_WORKER_RUNTIME"] == "python"
    assert production.settings["BERTH_ARTIFACT"] == one["artifact"]["digest"]
    assert production.body["properties"]["siteConfig"]["linuxFxVersion"] == "Python|3.11"
    assert production.body["tags"] == {"berth-function": "words", "berth-created": "true"}
    assert azure.calls["POST", "/syncfunctiontriggers", "production"] == 1

    azure.lost_swaps = 1
    etcd.put(words(WORDS % 2, 2, limits={"timeoutSeconds": 90, "concurrency": 2, "memoryMiB": 512}))
    two = etcd.settled("words", "Succeeded", 2)
    assert two["endpoint"] == one["endpoint"] and at(two) == {"version": 2, "words": 3}
    assert {name: production.settings.get(name) for name in LIMITS} == LIMITS
    assert "spec.limits.memoryMiB" in next(fact["message"] for fact in two["conditions"] if fact["type"] == "Deployed")
    assert azure.sites["words-prod", "berth"].settings["BERTH_ARTIFACT"] == one["artifact"]["digest"], "the way back"

    swaps = azure.calls["POST", "/slotsswap", "slot"]
    calls = azure.calls.total()
    etcd.put(words("def predict(body):\n    raise ValueError('no such word')\n", 3))
    failed = etcd.settled("words", "Failed", 3)
    assert "words answers spec.probe with 500 ValueError: no such word" in failed["message"], failed["message"]
    assert azure.calls.total() == calls, "what Azure's worker cannot run is not uploaded"
    etcd.put(words("import os\nif 'WEBSITE_RUN_FROM_PACKAGE' in os.environ:\n    raise ValueError('not there')\n" + WORDS % 3, 35))
    failed = etcd.settled("words", "Failed", 35)
    assert "the new version answers spec.probe with 500" in failed["message"], failed["message"]
    assert azure.calls["POST", "/slotsswap", "slot"] == swaps and at(two) == {"version": 2, "words": 3}

    # The failure between has not forgotten the settings of the version that serves.
    etcd.put(words(WORDS % 2, 36))
    four = etcd.settled("words", "Succeeded", 36)
    assert at(four) == at(two) and not LIMITS.keys() & production.settings.keys()
    # Somebody changes the app by hand; the next look finds it. A restart looks at once.
    production.settings = {**production.settings, "WHO": "them", "THEIRS": "stays"}
    berth.kill()
    # The record of an earlier version of Berth tells no spec; the look fills it in.
    noted = berth.data / "functions" / "azure" / "words.json"
    (record,) = json.loads(noted.read_text())
    version = record.pop("version")
    assert (version["revision"]["generation"], version["artifact"]) == (36, four["artifact"])
    assert version["revision"]["spec"] == etcd.object("words")["spec"] and version["endpoint"] == four["endpoint"]
    noted.write_text(json.dumps([record]))
    berth.start("--source", f"etcd={etcd.client}", env=account | azure.environment())
    until("the drift to be corrected", lambda: production.settings["WHO"] == "me")
    until("the record to be filled in", lambda: json.loads(noted.read_text())[0].get("version", {}).get("artifact") == four["artifact"])
    assert production.settings["THEIRS"] == "stays"
    without = words(WORDS % 2, 36)
    without["metadata"]["generation"], without["spec"]["env"] = 40, {}
    etcd.put(without)
    etcd.settled("words", "Succeeded", 40)
    assert "WHO" not in production.settings and production.settings["THEIRS"] == "stays"
    etcd.put(words(WORDS % 2, 50) | {"spec": words(WORDS % 2, 36)["spec"] | {"target": target | {"resourceGroup": "none"}}})
    assert "resource group" in etcd.settled("words", "Failed", 50)["message"]
    etcd.put(words(WORDS % 2, 60))
    assert at(etcd.settled("words", "Succeeded", 60)) == at(four)

    other = function("other", archive(tmp_path, "o.zip", {"handler.py": WORDS % 9}), target=target)
    etcd.put(other)
    assert "belongs to the function words" in etcd.settled("other", "Failed", 1)["message"]
    etcd.ctl("del", "/models/deployments/words")
    until("the app to go", lambda: not azure.sites)


@pytest.mark.timeout(900)
def test_the_second_line_of_a_manual_goes_to_azure(berth, etcd, azurite, azure, classifier):
    """Verbatim: TensorFlow.js from Azure Blob Storage, bundled by Rollup, asked in @azure/functions, in an app of its own."""
    code = Path(classifier.removeprefix("file:")).read_bytes()
    container_of(azurite, "artifacts")
    azure_blob(azurite, "PUT", "/artifacts/models/image-classifier-js/v0.8.1/src.zip", code)
    azure.groups["ml-edge-rg"] = {"location": "northeurope"}
    berth.start("--source", f"etcd={etcd.client}", env=packages(azurite) | azure.environment())
    etcd.put(TFJS)
    status = etcd.settled("image-classifier-js", "Succeeded", 1)
    app = azure.sites["image-classifier-js-prod", None]
    assert status["endpoint"] == f"http://127.0.0.1:{app.port}/api/image-classifier-js"
    request = urllib.request.Request(status["endpoint"], b'{"pixels": [1, 1, 0, 0]}')
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        left, right = json.load(answer)["scores"]
    assert left > 0.9 and right < 0.1
    assert (app.body["location"], app.body["properties"]["siteConfig"]["linuxFxVersion"]) == ("northeurope", "Node|18")
    assert (app.settings["FUNCTIONS_WORKER_RUNTIME"], app.settings["BERTH_ARTIFACT"]) == ("node", status["artifact"]["digest"])
    assert "image-classifier-js answers" in berth.run("logs", "function/image-classifier-js")
    stored = etcd.object("image-classifier-js")
    assert {name: stored[name] for name in ("metadata", "spec")} == {name: json.loads(TFJS)[name] for name in ("metadata", "spec")}


@pytest.mark.timeout(900)
def test_the_first_model_and_callers_with_a_key(berth, etcd, azurite, azure, tmp_path):
    """`programmingModel: v1` has a `function.json`; with `authLevel: function` new versions are asked with the key of their place."""
    berth.start("--source", f"etcd={etcd.client}", env=packages(azurite) | azure.environment())
    target = {"platform": "azure-function", "resourceGroup": "ml-prod-rg", "appName": "words-prod"}

    def put(number: int, generation: int, files: dict | None = None, **more) -> None:
        uri = archive(tmp_path, f"{generation}.zip", {"handler.py": WORDS % number} | (files or {}))
        etcd.put(function("words", uri, generation, target=target | more, probe={"text": "a b"}))

    def at(status: dict, **headers) -> tuple[int, object]:
        request = urllib.request.Request(status["endpoint"], b'{"text": "a b c"}', headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, None

    azure.late_keys = 1
    put(1, 1, programmingModel="v1", authLevel="function")
    one = etcd.settled("words", "Succeeded", 1)
    assert "words answers 200 in azure_functions_worker" in berth.run("logs", "function/words")
    key = {"x-functions-key": azure.sites["words-prod", None].key}
    assert (at(one), at(one, **key)) == ((401, None), (200, {"version": 1, "words": 3}))
    assert not azure.late_keys, "the key was asked for again"
    put(2, 2, authLevel="function")
    two = etcd.settled("words", "Succeeded", 2)
    assert azure.calls["POST", "/host/default/listkeys", "slot"] == 1
    assert (at(two), at(two, **key)) == ((401, None), (200, {"version": 2, "words": 3}))
    put(2, 3)
    three = etcd.settled("words", "Succeeded", 3)
    assert not three["build"]["cached"], "who may call it is in the artifact"
    assert at(three) == (200, {"version": 2, "words": 3})
    put(4, 4, {"function_app.py": ""}, programmingModel="v1")
    failed = etcd.settled("words", "Failed", 4)
    assert "the code brings function_app.py" in failed["message"] and at(three)[1]["version"] == 2


@pytest.mark.timeout(900)
def test_an_app_that_was_there_is_stopped_and_stays(berth, etcd, azurite, azure, tmp_path):
    azure.plans["/plan"] = {}
    properties = {"serverFarmId": "/plan", "siteConfig": {"linuxFxVersion": "Python|3.11"}}
    app = azure.sites["old-app", None] = Site("old-app", {"location": "westeurope", "tags": {"team": "a"}, "properties": properties})
    app.settings = {"THEIRS": "stays"}
    berth.start("--source", f"etcd={etcd.client}", env=packages(azurite) | azure.environment())
    target = {"platform": "azure-function", "resourceGroup": "ml-prod-rg", "appName": "old-app"}
    etcd.put(function("words", archive(tmp_path, "a.zip", {"handler.py": WORDS % 1}), target=target, probe={"text": "a"}))
    etcd.settled("words", "Succeeded", 1)
    assert app.body["tags"] == {"team": "a", "berth-function": "words"} and app.settings["THEIRS"] == "stays"
    etcd.ctl("del", "/models/deployments/words")
    until("the slot to go", lambda: app.state == "Stopped" and ("old-app", "berth") not in azure.sites)
    assert ("old-app", None) in azure.sites
    etcd.put(function("a.b", archive(tmp_path, "b.zip", {"handler.py": WORDS % 1}), target=target))
    assert "no dots" in etcd.settled("a.b", "Failed", 1)["message"]
    etcd.put(function("up", archive(tmp_path, "c.zip", {"handler.py": WORDS % 1}), target=target | {"appName": "a/../b"}))
    assert "spec.target.appName" in etcd.settled("up", "Failed", 1)["message"]


def test_azure_without_an_account_says_what_is_missing(berth, etcd, tmp_path):
    berth.start("--source", f"etcd={etcd.client}")
    etcd.put(KERAS)
    message = etcd.settled("sentiment-analyzer", "Failed", 1)["message"]
    assert "AZURE_SUBSCRIPTION_ID" in message and "--function-target local" in message


@pytest.mark.timeout(900)
def test_javascript_for_azure_brings_the_library_along(berth, etcd, azurite, azure, tmp_path):
    """Bundled by esbuild, asked once in @azure/functions; what that cannot run is not uploaded."""
    account = packages(azurite)
    berth.start("--source", f"etcd={etcd.client}", env=account | azure.environment())
    target = {"platform": "azure-function", "resourceGroup": "ml-prod-rg", "appName": "js-prod"}

    def javascript(code: str, generation: int) -> dict:
        package = json.dumps({"private": True, "devDependencies": {"esbuild": "0.25.10"}})
        uri = archive(tmp_path, f"{generation}.zip", {"package.json": package, "src/index.ts": code, "src/count.ts": COUNT})
        more = {"type": "javascript", "entrypoint": "dist/bundle.handler", "build": {"bundler": "esbuild"}, "probe": {"text": "a b"}}
        return function("js", uri, generation, target=target, **more)

    broken = "export function handler(body: unknown) { throw new Error('not yet'); }\n"
    etcd.put(javascript(broken, 1))
    failed = etcd.settled("js", "Failed", 1)
    assert "js answers spec.probe with 500 Error: not yet" in failed["message"] and not azure.sites
    etcd.put(javascript("import { count } from './count';\nexport const handler = (body: { text: string }) => ({ words: count(body.text) });\n", 2))
    status = etcd.settled("js", "Succeeded", 2)
    request = urllib.request.Request(status["endpoint"], b'{"text": "a b c"}')
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert json.load(answer) == {"words": 3}
    assert "js answers 200 in @azure/functions" in berth.run("logs", "function/js")
    digest = status["artifact"]["digest"].removeprefix("sha256:")
    place = f"{azurite}/devstoreaccount1/{account['AZURE_STORAGE_PACKAGES_CONTAINER']}/js/{digest}"
    assert azure.sites["js-prod", None].settings["WEBSITE_RUN_FROM_PACKAGE"].startswith(f"{place}.zip?")
    bill = json.loads(berth.control("/v1/functions/js/sbom")[2])
    purls = {one["purl"]: one["scope"] for one in bill["components"]}
    assert purls["pkg:npm/%40azure/functions@4.16.5"] == "required" and purls["pkg:npm/esbuild@0.25.10"] == "excluded"


COUNT = "export function count(text: string): number {\n  return text.split(' ').length;\n}\n"
