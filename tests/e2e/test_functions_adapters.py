"""The adapters for Azure answer as the programs that run functions on this machine; the check knows the route that Berth asks.

Stubs stand for the libraries of Azure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.waiting import PATIENCE

HOST = Path(__file__).parents[2] / "crates/functions/src/host"

AZURE = """
import json

class HttpRequest:
    def __init__(self, method, url, *, headers=None, params=None, route_params=None, body):
        self.method, self.url, self.headers, self.params, self.body = method, url, headers, params, body
    def get_body(self):
        return self.body
    def get_json(self):
        return json.loads(self.body)

class HttpResponse:
    def __init__(self, body=None, *, status_code=200, headers=None, mimetype="text/plain"):
        self.body = body.encode() if isinstance(body, str) else body or b""
        self.status_code, self.headers, self.mimetype = status_code, headers or {}, mimetype
    def get_body(self):
        return self.body

class Context:
    pass

class AuthLevel:
    ANONYMOUS = "anonymous"

class FunctionApp:
    def __init__(self, http_auth_level):
        pass
    def function_name(self, name):
        return lambda function: function
    def route(self, route, methods):
        return lambda function: function
"""

HANDLER = """
import azure.functions as func

class Array:
    def tolist(self):
        return [0.5, 2.0]

def array(body):
    return {"scores": Array()}

def several(body):
    return {1}

def text(body):
    return "hi"

async def echo(body):
    return body

def nothing():
    return 1

def plain_request(req):
    return func.HttpResponse(req.get_body(), status_code=201)

def words(req: func.HttpRequest):
    return req.method

def with_context(body, context):
    return None

def with_another(req: func.HttpRequest, invocation):
    return [req.get_json()]
"""

# Asks one function in the program of this machine and in the adapter.
ASK = """
import json, os, sys
name, method, body = sys.argv[1:]
body = body.encode()
host, adapter = {"__name__": "host"}, {"__name__": "function_app"}
exec(open("host.py").read().removesuffix("\\nmain()\\n"), host)
here = host["Function"](os.getcwd(), "handler", name).answer(method, "http://localhost/x", {}, body)
exec(open("function_app.py").read(), adapter)
func = sys.modules["azure.functions"]
there = adapter["berth_function"](func.HttpRequest(method, "http://localhost/x", body=body), func.Context())
print(json.dumps([[here[0], here[2].decode()], [there.status_code, there.get_body().decode()]]))
"""


def program(*files: str) -> str:
    return "".join((HOST / file).read_text() for file in files)


def filled(text: str, module: str, function: str) -> str:
    for name, value in {"NAME": "x", "MODULE": module, "FUNCTION": function, "AUTH": "anonymous"}.items():
        text = text.replace(f'"${name}"', json.dumps(value))
    return text


def run(folder: Path, *command: str) -> list:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "method", "body", "status", "answer"),
    [
        ("array", "POST", "{}", 200, '{"scores": [0.5, 2.0]}'),
        ("several", "POST", "{}", 200, "[1]"),
        ("text", "POST", "{}", 200, '"hi"'),
        ("echo", "PUT", "[1]", 200, "[1]"),
        ("echo", "POST", "", 200, "null"),
        ("echo", "POST", "{", 400, '{"error": "the body is not JSON: '),
        ("echo", "GET", "", 405, '{"error": "this function takes a POST of JSON"}'),
        ("nothing", "POST", "{}", 200, "1"),
        ("plain_request", "POST", "[1]", 201, "[1]"),
        ("words", "GET", "", 200, "GET"),
        ("with_context", "POST", "{}", 204, ""),
        ("with_another", "POST", "1", 200, "[1]"),
    ],
)
def test_python_answers_as_on_this_machine(tmp_path, name, method, body, status, answer):
    (tmp_path / "azure").mkdir()
    adapter = filled(program("convention.py", "azure_entry.py", "function_app.py"), "handler", name)
    files = {
        "azure/__init__.py": "", "azure/functions.py": AZURE, "handler.py": HANDLER, "ask.py": ASK,
        "host.py": program("convention.py", "host.py"), "function_app.py": adapter,
    }  # fmt: skip
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    here, there = run(tmp_path, sys.executable, "ask.py", name, method, body)
    assert here == there
    assert here[0] == status and here[1].startswith(answer) and bool(here[1]) == bool(answer), here


LIBRARY = "export const app = { http(name, options) { globalThis.asked = options.handler; } };\n"

SCRIPT = """
export const scores = () => ({ scores: Float32Array.of(0.5, 2) });
export const echo = (body) => body;
export const earlier = {
  async handler(context, req) {
    context.log.info('asked');
    const headers = { 'Content-Type': 'application/problem+json' };
    context.res = { status: 201, headers, body: { q: req.query.q, sum: req.body[0] + req.body[1] } };
  },
}.handler;
export async function whole(request, context) {
  return { status: 202, jsonBody: { list: Uint8Array.of(1), text: await request.text() }, cookies: [{ name: 'c', value: '1' }] };
}
export const text = async (req) => `${req.query.get('q')}`;
export const none = (request, context) => undefined;
export const form = (request, context) => ({ body: new Blob(['x'], { type: 'text/css' }) });
"""

# Asks as the library does.
ASK_NODE = """
const [method, body] = process.argv.slice(2);
await import('./berth_function.mjs');
const request = new Request('http://localhost/api/x?q=1', { method, body: body || undefined });
Object.defineProperty(request, 'query', { value: new URL(request.url).searchParams });
Object.defineProperty(request, 'params', { value: {} });
const context = { invocationId: '1', functionName: 'x', log() {} };
const { status, headers, body: answer, cookies } = await globalThis.asked(request, context);
const response = new Response(answer, { status, headers });
console.log(JSON.stringify([response.status, response.headers.get('content-type'), await response.text(), cookies?.length ?? 0]));
"""


@pytest.mark.parametrize(
    ("name", "method", "body", "answer"),
    [
        ("scores", "POST", "{}", [200, "application/json", '{"scores":[0.5,2]}', 0]),
        ("echo", "PUT", "[1]", [200, "application/json", "[1]", 0]),
        ("echo", "POST", "", [200, "application/json", "null", 0]),
        ("echo", "GET", "", [405, "application/json", '{"error":"this function takes a POST of JSON"}', 0]),
        ("earlier", "POST", "[1, 2]", [201, "application/problem+json", '{"q":"1","sum":3}', 0]),
        ("whole", "POST", "hi", [202, "application/json", '{"list":[1],"text":"hi"}', 1]),
        ("text", "GET", "", [200, "text/plain; charset=utf-8", "1", 0]),
        ("none", "POST", "{}", [204, None, "", 0]),
        ("form", "POST", "{}", [200, "text/css", "x", 0]),
    ],
)
def test_javascript_answers_as_on_this_machine(tmp_path, name, method, body, answer):
    library = tmp_path / "node_modules/@azure/functions"
    library.mkdir(parents=True)
    (library / "package.json").write_text('{"name": "@azure/functions", "type": "module", "exports": "./index.js"}')
    (library / "index.js").write_text(LIBRARY)
    adapter = filled(program("convention.js", "function.mjs"), "./handler.mjs", name)
    for file, text in {"handler.mjs": SCRIPT, "ask.mjs": ASK_NODE, "berth_function.mjs": adapter}.items():
        (tmp_path / file).write_text(text)
    assert run(tmp_path, "node", "ask.mjs", method, body) == answer


# One function with a route, as azure.functions tells of it.
INDEXED = """
class One:
    def __init__(self, route):
        self.route = route
    def get_function_name(self):
        return "score"
    def get_user_function(self):
        return lambda: None
    def get_bindings(self):
        return [self]
    def get_dict_repr(self):
        return {"name": "req", "type": "httpTrigger", "direction": 0, "route": self.route}

class FunctionApp(list):
    def get_functions(self):
        return self
"""

WORKER = """
from types import SimpleNamespace
from unittest.mock import MagicMock

bindings = loader = protos = MagicMock()

class Registry:
    def add_function(self, name, function, metadata):
        self.function = function
    def get_function(self, name):
        return SimpleNamespace(input_types={}, output_types={}, requires_context=False, return_type=None, func=self.function)

functions = SimpleNamespace(Registry=Registry)
"""

REGISTERS = """
const core = require('@azure/functions-core');
core.setProgrammingModel({
  name: 'stub', version: '4.0.0',
  getInvocationModel: () => ({
    getArguments: async () => ({ context: {}, inputs: [] }),
    invokeFunction: async (context, inputs, callback) => callback(),
    getResponse: async () => ({ returnValue: { http: { statusCode: '200', body: { string: '' } } } }),
  }),
});
core.registerFunction({ name: 'score', bindings: { req: { type: 'httpTrigger', route: ROUTE } } }, () => {});
"""


@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize(
    ("route", "host", "found"),
    [
        ("words", "{}", None),
        ("/Words/", "{}", None),
        ("{*rest}", "{}", None),
        ("words/{id?}", "{}", None),
        ("api/words", '{"extensions": {"http": {"routePrefix": ""}}}', None),
        ("other", "{} // Azure takes comments", None),
        ("other", "{}", "/api/other"),
        ("other/{id}", "{}", "/api/other/{id}"),
        (None, "{}", "/api/score"),
        ("words", '{"extensions": {"http": {"routePrefix": "v1"}}}', "/v1/words"),
    ],
)
def test_code_with_a_route_that_nobody_asks_is_refused(tmp_path, language, route, host, found):
    """Azure's host answers 404 there, as it does while it starts: nothing would tell the two apart."""
    code, worker = tmp_path / "code", tmp_path / "worker"
    packages = code / ".python_packages/lib/site-packages"
    files = {code / "berth.json": '{"name": "words"}', code / "host.json": host}
    if language == "python":
        files |= {
            code / "function_app.py": f"import azure.functions as func\napp = func.FunctionApp([func.One({route!r})])\n",
            packages / "azure/__init__.py": "", packages / "azure/functions.py": INDEXED,
            worker / "azure_functions_worker.py": WORKER, tmp_path / "check.py": program("check.py"),
        }  # fmt: skip
        command = [sys.executable, "-s", "-B", "check.py", str(code), str(worker), ""]
    else:
        files |= {
            code / "package.json": '{"main": "index.js"}', code / "index.js": REGISTERS.replace("ROUTE", json.dumps(route)),
            tmp_path / "check.cjs": program("core.cjs", "check.cjs"),
        }  # fmt: skip
        command = ["node", "check.cjs", str(code), ""]
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    if found is None:
        assert done.returncode == 0, done.stderr
    else:
        refusal = f"error: Berth asks the function at /api/words, and the code answers at {found} only"
        assert done.returncode == 1 and refusal in done.stderr, done.stderr
