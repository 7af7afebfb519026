"""Entry of Azure Functions (Python, v2 model). Comes after azure_entry.py, in one file with it. Written by Berth."""

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

app = func.FunctionApp(http_auth_level=getattr(func.AuthLevel, "$AUTH".upper()))
app.function_name("$NAME")(app.route(route="$NAME", methods=METHODS)(berth_function))
