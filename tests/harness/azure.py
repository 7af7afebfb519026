"""The part of Azure Resource Manager that deploys functions, and the apps: each runs its package as the platform does.

Sources: the REST reference of App Service, version 2023-12-01 (Web Apps: Get, Get Slot, Create Or Update, Create Or Update Slot, Delete,
Delete Slot, Start, Stop, List Application Settings, Update Application Settings, List Host Keys, Swap Slot, Sync Function Triggers; App Service Plans:
Create Or Update), those of resource groups and tags, version 2021-04-01 (Get; Update At Scope), "Track asynchronous Azure operations" (202, Location, Azure-AsyncOperation, Retry-After),
"Understand how Azure Resource Manager throttles requests" (429), the client credentials flow of the Microsoft identity platform,
"Run your functions from a package file in Azure" (WEBSITE_RUN_FROM_PACKAGE), and "Azure Functions HTTP trigger" (authLevel, x-functions-key).
Simplified: no role assignments, one subscription, and a package is run by the Python or Node.js at hand.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
import zipfile
from collections import Counter
from pathlib import Path

from .http_server import Answer, HttpServer, Request

TENANT, CLIENT, SECRET, SUBSCRIPTION = "tenant-1", "client-1", "secret-1", "subscription-1"
TOKEN = "a-token"

# Reads a body, prints the answer of the entrypoint that the package names.
RUN = """
import importlib, json, sys
about = json.load(open("berth.json"))
sys.path[:0] = [".", ".python_packages/lib/site-packages"]
function = getattr(importlib.import_module(about["module"]), about["function"])
print(json.dumps(function(json.load(sys.stdin))))
"""

RUN_NODE = """
const about = require('./berth.json');
const body = JSON.parse(require('fs').readFileSync(0));
// Typed arrays become lists, as in the adapter.
const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
Promise.resolve(require('./' + about.module)[about.function](body)).then((value) => console.log(JSON.stringify(value, plain)));
"""


def said(status: int, body: object = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"content-type": "application/json"} | named, b"" if body is None else json.dumps(body).encode())


def refused(status: int, code: str, message: str = "") -> Answer:
    return said(status, {"error": {"code": code, "message": message or code}})


def auth_level(folder: Path, about: dict) -> str:
    """The level that a package asks for, where the host finds it: in the first model of Python in `function.json`, else in the code."""
    described = folder / about["name"] / "function.json"
    if described.is_file():
        function = json.loads(described.read_text())
        assert (described.parent / function["scriptFile"]).is_file() and not (folder / "function_app.py").exists(), "laid out for the v1 model"
        return next(binding["authLevel"] for binding in function["bindings"] if binding["type"] == "httpTrigger")
    code = folder / ("function_app.py" if about["language"] == "python" else "berth_function.mjs")
    found = re.search(r'(?:AuthLevel, |authLevel: )"(\w+)"', code.read_text())
    return found[1] if found else "anonymous"


class Site(HttpServer):
    """A place of an app: production, or a slot. A swap exchanges what it runs; its address and its key stay."""

    def __init__(self, name: str, body: dict):
        self.name, self.settings, self.state, self.body = name, {}, "Running", body
        self.key = f"key-{id(self)}"
        super().__init__()

    def resource(self) -> dict:
        properties = self.body["properties"] | {"state": self.state, "defaultHostName": f"127.0.0.1:{self.port}"}
        return {"name": self.name, "type": "Microsoft.Web/sites"} | self.body | {"properties": properties}

    def answer(self, request: Request) -> Answer:
        if self.state != "Running":
            return Answer(403)
        package = self.settings.get("WEBSITE_RUN_FROM_PACKAGE")
        if not package or not re.match(r"/api/\w", request.path):
            return Answer(404)
        with urllib.request.urlopen(package, timeout=60) as found:
            content = zipfile.ZipFile(io.BytesIO(found.read()))
        with tempfile.TemporaryDirectory() as folder:
            content.extractall(folder)
            files = {path.name for path in Path(folder).iterdir()}
            about = json.loads((Path(folder) / "berth.json").read_text())
            level = auth_level(Path(folder), about)
            if level == "function" and request.headers.get("x-functions-key") != self.key:
                return Answer(401)
            if about["language"] == "python":
                assert {"host.json", "requirements.txt"} <= files and files & {"function_app.py", about["name"]}, "laid out for a model"
                command = [sys.executable, "-c", RUN]
            else:
                assert {"host.json", "package.json", "node_modules"} <= files, "laid out for the v4 model"
                assert (Path(folder) / "node_modules/@azure/functions/package.json").is_file()
                command = ["node", "-e", RUN_NODE]
            if request.path != f"/api/{about['name']}":
                return Answer(404)
            env = {"PATH": os.environ["PATH"]} | {name: value for name, value in self.settings.items() if "\0" not in value}
            run = subprocess.run(command, input=request.body, capture_output=True, cwd=folder, env=env, timeout=60)
        return Answer(500, {}, run.stderr[-500:]) if run.returncode else said(200, json.loads(run.stdout))


class Azure(HttpServer):
    """Resource Manager and the token endpoint."""

    def __init__(self):
        self.groups, self.plans, self.sites = {"ml-prod-rg": {"location": "westeurope"}}, {}, {}
        self.calls, self.throttle, self.operations = Counter(), 0, {}
        self.lost_swaps, self.late_keys = 0, 0
        self.lock = threading.RLock()
        super().__init__()

    def environment(self) -> dict[str, str]:
        return {
            "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION, "AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT,
            "AZURE_CLIENT_SECRET": SECRET, "AZURE_AUTHORITY_HOST": self.url, "AZURE_RESOURCE_MANAGER_ENDPOINT": self.url,
        }  # fmt: skip

    def close(self) -> None:
        super().close()
        for site in self.sites.values():
            site.close()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            return self._answer(request)

    def _answer(self, request: Request) -> Answer:
        path, _, query = request.path.partition("?")
        if path == f"/{TENANT}/oauth2/v2.0/token":
            form = dict(urllib.parse.parse_qsl(request.body.decode()))
            wanted = {
                "grant_type": "client_credentials", "client_id": CLIENT, "client_secret": SECRET,
                "scope": f"{self.url}/.default",
            }  # fmt: skip
            return said(200, {"access_token": TOKEN, "expires_in": 3599}) if form == wanted else refused(401, "invalid_client")
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return refused(401, "InvalidAuthenticationToken")
        if self.throttle:
            self.throttle -= 1
            return said(429, {"error": {"code": "TooManyRequests"}}, retry_after="1")
        if path.startswith("/operations/"):
            return self._operation(path)
        if "api-version=" not in query:
            return refused(400, "MissingApiVersionParameter")
        group = re.fullmatch(rf"/subscriptions/{SUBSCRIPTION}/resourceGroups/([\w-]+)(/.*)?", path)
        if not group or group[1] not in self.groups:
            return refused(404, "ResourceGroupNotFound", f"Resource group '{group and group[1]}' could not be found.")
        if not group[2]:
            return said(200, self.groups[group[1]])
        body = json.loads(request.body or "null")
        if plan := re.fullmatch(r"/providers/Microsoft\.Web/serverfarms/([\w-]+)", group[2]):
            self.plans[path] = body
            return self._later(lambda: self.plans[path], asynchronous=True, about=plan[1])
        named = re.fullmatch(r"/providers/Microsoft\.Web/sites/([\w-]+)(?:/slots/([\w-]+))?(/.*)?", group[2])
        if not named:
            return refused(404, "NotFound", path)
        key = (named[1], named[2])
        self.calls[request.method, named[3] or "", "slot" if named[2] else "production"] += 1
        return self._site(request.method, key, named[3] or "", body)

    def _site(self, method: str, key: tuple[str, str | None], below: str, body: dict | None) -> Answer:
        site = self.sites.get(key)
        if (method, below) == ("PUT", ""):
            if body["properties"]["serverFarmId"] not in self.plans or (key[1] and (key[0], None) not in self.sites):
                return refused(404, "ResourceNotFound", "the plan or the app is missing")
            if site:
                site.body = body
            else:
                site = self.sites[key] = Site(key[0], body)
            return said(200, site.resource())
        if not site:
            return refused(404, "ResourceNotFound", f"The Resource 'Microsoft.Web/sites/{key[0]}' was not found.")
        match (method, below):
            case ("GET", ""):
                return said(200, site.resource())
            case ("DELETE", ""):
                gone = [other for other in self.sites if other == key or (not key[1] and other[0] == key[0])]
                for other in gone:
                    self.sites.pop(other).close()
                return said(200)
            case ("POST", "/config/appsettings/list"):
                return said(200, {"properties": site.settings})
            case ("PUT", "/config/appsettings"):
                site.settings = body["properties"]
                return said(200, {"properties": site.settings})
            case ("POST", "/start" | "/stop"):
                site.state = "Running" if below == "/start" else "Stopped"
                return said(200)
            case ("POST", "/host/default/listkeys"):
                if self.late_keys:  # the host, which keeps them, has not started
                    self.late_keys -= 1
                    return refused(400, "BadRequest", "Encountered an error (ServiceUnavailable) from host runtime.")
                return said(200, {"masterKey": "master", "functionKeys": {"default": site.key}, "systemKeys": {}})
            case ("POST", "/syncfunctiontriggers"):
                return said(204)
            case ("PATCH", "/providers/Microsoft.Resources/tags/default"):
                assert body["operation"] == "Merge"
                site.body["tags"] = site.body.get("tags", {}) | body["properties"]["tags"]
                return said(200, {"properties": {"tags": site.body["tags"]}})
            case ("POST", "/slotsswap"):
                if self.lost_swaps:  # done, but the connection broke before the answer
                    self.lost_swaps -= 1
                    self._swap(site, self.sites[key[0], None])
                    return refused(503, "ServiceUnavailable")
                assert body["targetSlot"] == "production"
                return self._later(lambda: self._swap(site, self.sites[key[0], None]), asynchronous=False, about="swap")
        return refused(405, "MethodNotAllowed")

    def _swap(self, slot: Site, production: Site) -> None:
        for field in ("settings", "state"):
            mine, other = getattr(slot, field), getattr(production, field)
            setattr(slot, field, other)
            setattr(production, field, mine)

    def _later(self, work, asynchronous: bool, about: str) -> Answer:
        """Accepts now, and does it when it is asked for the second time."""
        place = f"/operations/{about}-{len(self.operations)}"
        self.operations[place] = [1, work, asynchronous]
        header = "azure_asyncoperation" if asynchronous else "location"
        return said(202, {} if asynchronous else None, **{header: f"{self.url}{place}?api-version=x"}, retry_after="0")

    def _operation(self, path: str) -> Answer:
        left, work, asynchronous = self.operations[path]
        if left:
            self.operations[path][0] -= 1
            return said(200, {"status": "InProgress"}, retry_after="1") if asynchronous else said(202, retry_after="1")
        work()
        return said(200, {"status": "Succeeded"}) if asynchronous else said(200)
