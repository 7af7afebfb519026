"""Entry of Azure Functions (Python, v2 model) over the function that spec.entrypoint names. Written by Berth."""

import asyncio
import importlib
import inspect
import json

import azure.functions as func

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
_function = getattr(importlib.import_module("$MODULE"), "$FUNCTION")
_parameters = list(inspect.signature(_function).parameters.values())


def _takes_request():
    if not _parameters:
        return False
    annotation = _parameters[0].annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rsplit(".", 1)[-1] == "HttpRequest" or (len(_parameters) > 1 and _parameters[1].name == "context")


def _plain(value):
    for method in ("tolist", "item", "numpy"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"the function returned a {type(value).__name__}, which is no JSON")


def _json(value, status=200):
    return func.HttpResponse(json.dumps(value, default=_plain), status_code=status, mimetype="application/json")


@app.function_name("$NAME")
@app.route(route="$NAME", methods=["GET", "POST"])
def berth_function(req: func.HttpRequest, context: func.Context) -> func.HttpResponse:
    if _takes_request():
        arguments = (req, context)[: len(_parameters)]
    else:
        try:
            arguments = (req.get_json(),)[: len(_parameters)]
        except ValueError as error:
            return _json({"error": f"the body is not JSON: {error}"}, 400)
    value = _function(*arguments)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    return value if isinstance(value, (func.HttpResponse, str, bytes)) else _json(value)
