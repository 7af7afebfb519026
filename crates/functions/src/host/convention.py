"""The calling conventions of Python functions: their parameters, and the answer for the value that they return.

Comes before host.py, and before azure_entry.py, in one file with it, so that a function answers the same on this machine and in Azure.
"""

import asyncio
import inspect
import json
import sys


def annotated(parameter):
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rsplit(".", 1)[-1] == "HttpRequest"


def style_of(function, module):
    """`json`: takes the parsed body. `nothing`: has no parameters. `azure`: takes an HttpRequest. `azure-context`: that and a context."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "json"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not positional:
        return "nothing"
    if len(positional) > 1 and positional[1].name == "context":
        return "azure-context"
    imports = "azure.functions" in sys.modules and any(
        getattr(value, "__name__", "") == "azure.functions" for value in vars(module).values()
    )
    if annotated(positional[0]) or (imports and positional[0].name == "req"):
        # Without a default it needs a second argument, whatever it calls it.
        needs_context = len(positional) > 1 and positional[1].default is inspect.Parameter.empty
        return "azure-context" if needs_context else "azure"
    return "json"


def unwrapped(function):
    """The function that the decorators of Azure's second model have wrapped, if they have."""
    wrapped = getattr(function, "_function", None)
    return wrapped.get_user_function() if hasattr(wrapped, "get_user_function") else function


def call(function, *arguments):
    value = function(*arguments)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def plain(value):
    """Arrays and numbers of numpy and its kin."""
    for method in ("tolist", "item", "numpy"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, (set, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    raise TypeError(f"the function returned a {type(value).__name__}, which is no JSON")


def as_json(value, status=200):
    # NaN and infinities are no JSON: most parsers refuse the whole answer.
    return status, {"content-type": "application/json"}, json.dumps(value, default=plain, allow_nan=False).encode()


def refuse(status, message):
    return as_json({"error": message}, status)


def as_answer(style, value):
    """Status, headers and body for a returned value."""
    if hasattr(value, "get_body") and hasattr(value, "status_code"):
        headers = {str(k).lower(): str(v) for k, v in dict(value.headers or {}).items()}
        if value.mimetype and "content-type" not in headers:
            headers["content-type"] = value.mimetype
        return int(value.status_code), headers, bytes(value.get_body() or b"")
    if style.startswith("azure"):
        if value is None:
            return 204, {}, b""
        if isinstance(value, (str, bytes)):
            return 200, {"content-type": "text/plain; charset=utf-8"}, value.encode() if isinstance(value, str) else value
    return as_json(value)


def answer_json(style, function, method, body):
    """Calls a function that takes the parsed body or nothing: the answer."""
    if method not in ("POST", "PUT"):
        return refuse(405, "this function takes a POST of JSON")
    try:
        value = json.loads(body) if body else None
    except ValueError as error:
        return refuse(400, f"the body is not JSON: {error}")
    return as_answer(style, call(function, *(() if style == "nothing" else (value,))))


