"""Entry of Azure Functions (Python, v2 model) over the function that spec.entrypoint names. Written by Berth."""

import importlib

import azure.functions as func

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
module = importlib.import_module("$MODULE")
function = unwrapped(getattr(module, "$FUNCTION"))
style = style_of(function, module)


@app.function_name("$NAME")
@app.route(route="$NAME", methods=METHODS)
def berth_function(req: func.HttpRequest, context: func.Context) -> func.HttpResponse:
    if style.startswith("azure"):
        value = call(function, *((req, context) if style == "azure-context" else (req,)))
        if isinstance(value, func.HttpResponse):
            return value
        status, headers, body = as_answer(style, value)
    else:
        status, headers, body = answer_json(style, function, req.method, req.get_body())
    return func.HttpResponse(body, status_code=status, headers=headers)
