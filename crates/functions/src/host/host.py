"""Runs one Python function: HTTP over a Unix socket in, the function, HTTP out.

Arguments: the folder of the code, MODULE, FUNCTION, the path of the socket. The process ends when its standard input does.
"""

import http.server
import importlib
import os
import socketserver
import sys
import threading
import traceback

LARGEST = 64 << 20

# The most characters of an error's message that are sent: what is longer is data.
LONGEST_MESSAGE = 2 << 10


def follow_parent():
    while os.read(0, 1024):
        pass
    os._exit(0)


def find(module, name):
    function = getattr(module, name, None)
    if function is None:
        have = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise SystemExit(f"{module.__name__} has no {name}, which spec.entrypoint names; it has {', '.join(have) or 'no functions'}")
    function = unwrapped(function)
    if not callable(function):
        raise SystemExit(f"{module.__name__}.{name} is no function")
    return function


def need_azure(module, name):
    """Ends the start where every request would fail."""
    try:
        importlib.import_module("azure.functions")
    except ModuleNotFoundError as error:
        if error.name not in ("azure", "azure.functions"):
            raise
        raise SystemExit(
            f"{module}.{name} is written for Azure (it takes an HttpRequest, or its second parameter is named context), "
            "and azure.functions is not among its packages: add azure-functions to requirements.txt"
        ) from None


class Context:
    """Of an invocation, as Azure's workers give it."""

    def __init__(self, name):
        self.function_name = name
        self.function_directory = os.getcwd()
        self.invocation_id = os.urandom(8).hex()
        self.trace_context = None
        self.retry_context = None


class Function:
    def __init__(self, folder, module_name, name):
        sys.path.insert(0, folder)
        packages = os.path.join(folder, ".python_packages", "lib", "site-packages")
        if os.path.isdir(packages):
            import site

            sys.path.insert(1, packages)
            site.addsitedir(packages)
        os.chdir(folder)
        module = importlib.import_module(module_name)
        self.name = os.environ.get("BERTH_FUNCTION", name)
        self.function = find(module, name)
        self.style = style_of(self.function, module)
        if self.style.startswith("azure"):
            need_azure(module_name, name)

    def answer(self, method, url, headers, body):
        if self.style.startswith("azure"):
            return self.azure(method, url, headers, body)
        return answer_json(self.style, self.function, method, body)

    def azure(self, method, url, headers, body):
        import azure.functions as func
        from urllib.parse import parse_qsl, urlsplit

        query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        request = func.HttpRequest(method=method, url=url, headers=headers, params=query, route_params={}, body=body)
        context = (Context(self.name),) if self.style == "azure-context" else ()
        return as_answer(self.style, call(self.function, request, *context))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one(self):
        if self.path == "/.berth/health":
            return 200, {}, b"ok"
        length = int(self.headers.get("content-length") or 0)
        if length > LARGEST:
            return refuse(413, "the body is too large")
        body = self.rfile.read(length)
        url = self.headers.get("x-berth-url") or self.path
        headers = {k: v for k, v in self.headers.items() if k.lower() != "x-berth-url"}
        try:
            return self.server.function.answer(self.command, url, headers, body)
        # sys.exit() in a thread would end the connection alone, without a word; so would CancelledError and its like.
        except BaseException as error:
            try:
                traceback.print_exc()
                message = str(error)[:LONGEST_MESSAGE]
            except BaseException:  # A broken __str__ must not hide the error itself.
                message = "(its message cannot be printed)"
            return refuse(500, f"{type(error).__name__}: {message}")

    def do(self):
        status, headers, body = self.handle_one()
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do

    def address_string(self):
        return "gateway"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    folder, module, name, path = sys.argv[1:5]
    threading.Thread(target=follow_parent, daemon=True).start()
    function = Function(folder, module, name)
    # The socket appears when everything is loaded.
    half = path + ".new"
    server = Server(half, Handler)
    server.function = function
    os.chmod(half, 0o600)
    os.rename(half, path)
    server.serve_forever()


main()
