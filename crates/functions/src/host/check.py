"""Loads an artifact as Microsoft's Python worker does, asks each HTTP function once, and ends with 1 where Azure would refuse it.

Arguments: the folder of the code, the folder of the worker's packages, and the probe as JSON (empty: any answer will do).
Source: azure_functions_worker 1.1.9 (dispatcher: function load and invocation requests) and azure.functions (FunctionApp.get_functions,
which the worker indexes function_app.py with).
"""

import asyncio
import importlib
import json
import os
import sys
import traceback
import types

folder, worker, probe = sys.argv[1:4]


def refuse(message):
    sys.stdout.flush()
    sys.exit(f"error: {message}")


# The worker's own packages are loaded first and then left out of sight, so that the code gets its own versions, as on Azure.
sys.path.insert(0, worker)
sys.modules["grpc"] = types.ModuleType("grpc")
try:
    from azure_functions_worker import bindings, functions, loader, protos  # noqa: E402
except Exception as error:
    # The library is older than some versions of Python.
    print(f"skipped: it does not run on Python {sys.version_info.major}.{sys.version_info.minor} ({type(error).__name__}: {error})")
    sys.exit(0)

for name in [name for name in sys.modules if name.split(".")[0] in ("google", "grpc")]:
    del sys.modules[name]
sys.path.remove(worker)
packages = os.path.join(folder, ".python_packages", "lib", "site-packages")
sys.path[:0] = [folder, packages]
# The library that Azure brings along, for code that has none of its own.
sys.path.append(worker)
os.chdir(folder)


def of_decorators():
    """Functions of function_app.py: the second model."""
    module = importlib.import_module("function_app")
    import azure.functions as func

    apps = [value for value in vars(module).values() if isinstance(value, func.FunctionApp)]
    if len(apps) != 1:
        refuse(f"function_app.py holds {len(apps)} FunctionApp objects, and Azure wants exactly one")
    for one in apps[0].get_functions():
        found = {}
        for binding in one.get_bindings():
            about = binding.get_dict_repr()
            found[about["name"]] = about
        yield one.get_function_name(), one.get_user_function(), found, folder


def of_files():
    """Functions of function.json files: the first model."""
    loader.install()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "function.json")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                about = json.load(file)
            where = os.path.join(folder, name)
            script = os.path.normpath(os.path.join(where, about.get("scriptFile", "__init__.py")))
            loaded = loader.load_function(name, where, script, about.get("entryPoint"))
            yield name, loaded, {binding["name"]: binding for binding in about["bindings"]}, where


def plain(value):
    return getattr(value, "value", value)


def metadata_of(name, found, where):
    metadata = protos.RpcFunctionMetadata(name=name, directory=where)
    for binding, about in found.items():
        # A number in the second model, a word in function.json.
        direction = plain(about.get("direction", "in"))
        direction = direction if isinstance(direction, int) else ("in", "out", "inout").index(str(direction).lower())
        metadata.bindings[binding].CopyFrom(protos.BindingInfo(type=str(plain(about["type"])), direction=direction))
    return metadata


def request(path):
    http = protos.RpcHttp(method="POST", url=f"http://localhost/api/{path}")
    http.headers["content-type"] = "application/json"
    http.body.CopyFrom(protos.TypedData(bytes=(probe or "{}").encode()))
    return protos.TypedData(http=http)


def ask(registry, name, found):
    """The answer of one invocation: status and body."""
    info = registry.get_function(name)
    arguments = {}
    for binding, kind in info.input_types.items():
        path = found[binding].get("route") or name
        arguments[binding] = bindings.from_incoming_proto(kind.binding_name, request(path), trigger_metadata=None, pytype=kind.pytype)
    for binding in info.output_types:
        arguments[binding] = bindings.Out()
    if info.requires_context:
        arguments["context"] = bindings.Context(name, folder, "check", bindings.TraceContext("", "", {}))
    try:
        value = info.func(**arguments)
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        traceback.print_exc()
        return 500, f"{type(error).__name__}: {error}"
    if info.return_type is None:
        return 200, ""
    try:
        answered = bindings.to_outgoing_proto(info.return_type.binding_name, value, pytype=info.return_type.pytype)
    except Exception as error:
        refuse(f"Azure's worker cannot take what {name} returns: {error}")
    http = answered.http
    body = http.body.bytes or http.body.string.encode()
    return int(http.status_code or 200), body.decode(errors="replace")[:300]


def read_json(file):
    with open(os.path.join(folder, file), encoding="utf-8") as opened:
        return json.load(opened)


def route_prefix():
    """The beginning of every path, as Azure's host reads it; None where it cannot be read here: that host takes comments, too."""
    prefix = os.environ.get("AzureFunctionsJobHost__extensions__http__routePrefix")
    try:
        return read_json("host.json")["extensions"]["http"]["routePrefix"] if prefix is None else prefix
    except (OSError, ValueError):
        return None
    except (KeyError, TypeError):
        return "api"


def may_be(path, wanted):
    """False where a path is certainly another one: parameters may stand for anything."""
    fixed, parameter, _ = path.lower().partition("{")
    return wanted.startswith(fixed.rstrip("/")) if parameter else wanted == fixed


def check_routes(routes):
    """Refuses code that does not answer where Berth asks it: Azure's host would answer 404, as it does while it starts."""
    prefix = route_prefix()
    if prefix is None:
        return
    wanted = f"api/{read_json('berth.json')['name']}"
    paths = [f"{prefix}/{route.strip('/')}".strip("/") for route in routes]
    if not any(may_be(path, wanted.lower()) for path in paths):
        found = ", ".join(f"/{path}" for path in paths)
        refuse(f"Berth asks the function at /{wanted}, and the code answers at {found} only: give one of them that route, or rename the function")


def main():
    registry = functions.Registry()
    first_model = not os.path.isfile(os.path.join(folder, "function_app.py"))
    try:
        all_of_them = list(of_files() if first_model else of_decorators())
    except Exception as error:
        traceback.print_exc()
        refuse(f"Azure's worker cannot load the code: {type(error).__name__}: {error}")
    if not all_of_them:
        refuse("Azure's worker finds no function in the code")
    routes = []
    for name, function, found, where in all_of_them:
        try:
            registry.add_function(name, function, metadata_of(name, found, where))
        except Exception as error:
            refuse(f"Azure's worker refuses the function: {error}")
        trigger = next((about for about in found.values() if str(plain(about["type"])) == "httpTrigger"), None)
        if trigger is not None:
            status, body = ask(registry, name, found)
            print(f"{name} answers {status} in azure_functions_worker: {body}")
            if probe and not 200 <= status < 300:
                refuse(f"{name} answers spec.probe with {status} {body}")
            routes.append(trigger.get("route") or name)
    if not routes:
        refuse("no function of the code has an HTTP trigger")
    check_routes(routes)
    # Threads of the code do not keep it.
    sys.stdout.flush()
    os._exit(0)


main()
