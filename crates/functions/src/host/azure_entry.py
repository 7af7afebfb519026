"""The function that spec.entrypoint names, as Azure's Python worker calls it. Written by Berth.

Comes after convention.py, in one file with it. The first model has a function.json that names it; in the second, function_app.py follows.
"""

import importlib

import azure.functions as func

module = importlib.import_module("$MODULE")
function = unwrapped(getattr(module, "$FUNCTION"))
style = style_of(function, module)


def berth_function(req: func.HttpRequest, context: func.Context) -> func.HttpResponse:
    if style.startswith("azure"):
        value = call(function, *((req, context) if style == "azure-context" else (req,)))
        if isinstance(value, func.HttpResponse):
            return value
        status, headers, body = as_answer(style, value)
    else:
        status, headers, body = answer_json(style, function, req.method, req.get_body())
    return func.HttpResponse(body, status_code=status, headers=headers)


