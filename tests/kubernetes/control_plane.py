"""A control plane of Kubernetes: etcd, the API server, the garbage collector. Nothing schedules or runs pods: tests write the
status of Deployments themselves, in place of their controller.

The programs are in the folder KUBERNETES (`cargo xtask test --kubernetes` builds and names them).
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
from pathlib import Path

from harness.ports import free_port
from harness.waiting import until

OPERATOR = "system:serviceaccount:berth:berth-operator"
FLEET = "system:serviceaccount:berth:berth-fleet"
APPS, BERTH, RBAC, REGISTRATION = "apis/apps/v1", "apis/berth.dev/v1", "apis/rbac.authorization.k8s.io/v1", "apis/admissionregistration.k8s.io/v1"
KSERVE = "apis/serving.kserve.io"
# Collections of the API server by the names that tests and kubectl use.
COLLECTIONS = {
    "clops": f"{BERTH}/clopsdeployments", "mdep": f"{BERTH}/modeldeployments", "asyncapi": f"{BERTH}/asyncapis", "deployment": f"{APPS}/deployments",
    "statefulset": f"{APPS}/statefulsets", "hpa": "apis/autoscaling/v1/horizontalpodautoscalers", "lease": "apis/coordination.k8s.io/v1/leases",
    "crd": "apis/apiextensions.k8s.io/v1/customresourcedefinitions", "isvc": f"{KSERVE}/v1beta1/inferenceservices",
    "predictor": f"{KSERVE}/v1alpha1/predictors", "trainedmodel": f"{KSERVE}/v1alpha1/trainedmodels",
    "inferencepool": "apis/inference.networking.k8s.io/v1/inferencepools",
    "httproute": "apis/gateway.networking.k8s.io/v1/httproutes", "networkpolicy": "apis/networking.k8s.io/v1/networkpolicies",
    "role": f"{RBAC}/roles", "rolebinding": f"{RBAC}/rolebindings", "clusterrole": f"{RBAC}/clusterroles",
    "clusterrolebinding": f"{RBAC}/clusterrolebindings", "validatingwebhook": f"{REGISTRATION}/validatingwebhookconfigurations",
    "mutatingwebhook": f"{REGISTRATION}/mutatingwebhookconfigurations",
} | {name: f"api/v1/{name}s" for name in ("namespace", "service", "configmap", "event", "secret", "serviceaccount", "pod")}
PROGRAMS = Path(os.environ.get("KUBERNETES", ""))


class ControlPlane:
    """Runs until it is stopped. Its admin is in `kubeconfig`."""

    def __init__(self, root: Path):
        self.root, self.processes, self.connection = root, {}, None
        self.etcd, self.peer, self.port = free_port(), free_port(), free_port()
        self.kubeconfig = self.config("admin", "admin-token")
        (root / "tokens.csv").write_text("admin-token,admin,1,system:masters\n"
                                         f"operator-token,{OPERATOR},2\n"
                                         f"fleet-token,{FLEET},3\n")
        subprocess.run(["openssl", "genrsa", "-out", root / "sa.key", "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", root / "sa.key", "-pubout", "-out", root / "sa.pub"], check=True, capture_output=True)

    def config(self, user: str, token: str) -> Path:
        """A kubeconfig for a user."""
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        # A colon would separate two files in KUBECONFIG.
        file = self.root / f"{user.replace(':', '-')}.kubeconfig"
        file.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))
        return file

    def start(self) -> ControlPlane:
        store = f"http://127.0.0.1:{self.etcd}"
        peer = f"http://127.0.0.1:{self.peer}"
        self.run("etcd", "etcd", "--name=k", f"--data-dir={self.root}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={store}",
                 f"--advertise-client-urls={store}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                 f"--initial-cluster=k={peer}")
        self.start_api()
        self.run("collector", PROGRAMS / "kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--controllers=garbagecollector,namespace",
                 f"--service-account-private-key-file={self.root}/sa.key", f"--cert-dir={self.root}/collector", "--bind-address=127.0.0.1",
                 f"--secure-port={free_port()}", "--leader-elect=false", "--port=0")
        return self

    def start_api(self) -> None:
        self.run("api", PROGRAMS / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd}", "--bind-address=127.0.0.1",
                 "--endpoint-reconciler-type=none", f"--secure-port={self.port}", f"--cert-dir={self.root}/api",
                 f"--token-auth-file={self.root}/tokens.csv", "--authorization-mode=RBAC",
                 "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={self.root}/sa.pub",
                 f"--service-account-signing-key-file={self.root}/sa.key", "--service-cluster-ip-range=10.99.0.0/16",
                 "--disable-admission-plugins=ServiceAccount",
                 f"--audit-log-path={self.root}/audit.log", f"--audit-policy-file={self.policy()}")
        until("the API server", self.is_ready)

    def policy(self) -> Path:
        """Each write is a line in the audit log, and each request of an operator."""
        file = self.root / "policy.json"
        rule = {"level": "Metadata", "omitStages": ["RequestReceived"], "verbs": ["create", "update", "patch", "delete"]}
        operator = {"level": "Metadata", "omitStages": ["RequestReceived"], "users": [OPERATOR, FLEET]}
        file.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [operator, rule, {"level": "None"}]}))
        return file

    def writes(self, agent: str, namespace: str) -> list[tuple[str, str, str]]:
        """Writes of a client in a namespace so far: verb, resource, name."""
        lines = [line for line in self.audited() if line["verb"] not in ("get", "list", "watch")]
        ours = [line for line in lines if agent in line["user"]["username"] and line["objectRef"].get("namespace") == namespace]
        return [(line["verb"], line["objectRef"]["resource"], line["objectRef"].get("name", "")) for line in ours]

    def audited(self) -> list[dict]:
        """The audit log so far."""
        return [json.loads(line) for line in (self.root / "audit.log").read_text().splitlines()]

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, method: str, path: str, body: dict | None = None, content: str = "application/json") -> tuple[int, bytes]:
        """An answer of the API server, as its admin. Each kubectl costs more than the request."""
        if self.connection is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
        headers = {"authorization": "Bearer admin-token", "content-type": content}
        try:
            self.connection.request(method, f"/{path}", json.dumps(body) if body else None, headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            # Half an exchange is left on it.
            self.hang_up()
            raise

    def hang_up(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None

    def run(self, name: str, *command: object) -> subprocess.Popen:
        log = (self.root / f"{name}.log").open("ab")
        # Processor time is short here, and memory is not: Go collects garbage less often.
        environment = os.environ | {"GOGC": "400"}
        self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, cwd=self.root, env=environment)
        return self.processes[name]

    def stop(self, *names: str) -> None:
        for name in names or list(reversed(self.processes)):
            process = self.processes.pop(name)
            process.kill()
            process.wait()
        self.hang_up()

    def kubectl(self, *words: str, text: str | None = None, fails: bool | None = False) -> str:
        """What it says, on standard error where it should fail. It may do either where `fails` is None: then all that it says."""
        done = subprocess.run(["kubectl", f"--kubeconfig={self.kubeconfig}", *words], input=text, capture_output=True, text=True, timeout=120)
        assert fails is None or (done.returncode != 0) == fails, f"kubectl {words}: {done.stdout}{done.stderr}"
        return {None: done.stdout + done.stderr, True: done.stderr, False: done.stdout}[fails]

    def find(self, kind: str, namespace: str = "", name: str = "", labels: str = "") -> dict:
        """An object, or the list of all; nothing where it is not there. `kind`: of COLLECTIONS, or PLURAL.VERSION.GROUP."""
        if kind not in COLLECTIONS:
            plural, version, group = kind.split(".", 2)
            kind, path = plural, f"apis/{group}/{version}/{plural}"
        else:
            path = COLLECTIONS[kind]
        base, _, plural = path.rpartition("/")
        path = "/".join(filter(None, [base, namespace and f"namespaces/{namespace}", plural, name]))
        status, said = self.ask("GET", f"{path}?labelSelector={labels}" if labels else path)
        assert status in (200, 404), said
        return json.loads(said) if status == 200 else {}

    def get(self, kind: str, namespace: str = "", name: str = "", labels: str = "") -> dict:
        """What `find` finds, and it must be there."""
        found = self.find(kind, namespace, name, labels)
        assert found, f"there is no {kind} {namespace}/{name}"
        return found

    def all(self, namespace: str, *kinds: str) -> list[dict]:
        """The objects of several kinds, each with the name of its collection: in a list they have none of their own."""
        return [{"kind": kind} | one for kind in kinds for one in self.get(kind, namespace)["items"]]

    def patch(self, kind: str, namespace: str, name: str, body: dict, part: str = "") -> None:
        """Merges `body` into an object, or into a part of it: `/status`."""
        base, _, plural = COLLECTIONS[kind].rpartition("/")
        place = f"{base}/namespaces/{namespace}" if namespace else base
        status, said = self.ask("PATCH", f"{place}/{plural}/{name}{part}", body, "application/merge-patch+json")
        assert status == 200, said

    def apply(self, *objects: dict) -> None:
        """Applies objects on the server's side. `kubectl apply` costs forty times the processor time: it fetches the schemas of all kinds first.
        Of an object inside that is left out now, an empty one stays: use `kubectl_apply` there."""
        for one in objects:
            status, said = self.ask("PATCH", f"{place(one)}?fieldManager=tests&force=true", one, "application/apply-patch+yaml")
            assert status in (200, 201), said

    def kubectl_apply(self, *objects: dict) -> None:
        """Applies objects as people do."""
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def create(self, collection: str, *objects: dict) -> None:
        """Objects of one collection, without kubectl: it allows itself a few requests per second."""
        for one in objects:
            status, said = self.ask("POST", collection, one)
            assert status == 201, said


def place(one: dict) -> str:
    """The path of an object at an API server."""
    version, kind, metadata = one["apiVersion"], one["kind"].lower(), one["metadata"]
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    namespace = metadata.get("namespace")
    parts = ["apis" if "/" in version else "api", version, namespace and f"namespaces/{namespace}", plural, metadata["name"]]
    return "/".join(filter(None, parts))
