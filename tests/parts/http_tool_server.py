"""A tool server with a URL that responds to calls as a test wants, in a thread of this process."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EMPTY = {"type": "object", "properties": {}}
NAMES = ("ok", "slow", "500", "307", "404", "202", "html", "compressed", "cut", "hang", "long")


class Handler(BaseHTTPRequestHandler):
    """Responds; the name of a tool says how."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.respond(405)

    def do_DELETE(self) -> None:
        self.respond(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self.respond(202)
        match message["method"]:
            case "initialize":
                self.result(message, {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "http", "version": "1"},
                })  # fmt: skip
            case "tools/list":
                tools = [{"name": name, "inputSchema": EMPTY} for name in NAMES]
                self.result(message, {"tools": tools})
            case "tools/call":
                self.call(message)
            case _:
                error = {"code": -32601, "message": "no such method"}
                self.send_json({"id": message["id"], "error": error})
        return None

    def call(self, message: dict) -> None:
        output = {"content": [{"type": "text", "text": "fine"}]}
        match message["params"]["name"]:
            case "500" | "404" | "202" as status:
                self.respond(int(status))
            case "307":
                self.respond(307, location="http://127.0.0.1:9/inside")
            case "html":
                self.respond(200, b"<p>hello</p>", content_type="text/html")
            case "compressed":
                self.respond(200, b"x", content_encoding="gzip", content_type="application/json")
            case "cut":
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"{")
                self.close_connection = True
            case "hang":
                self.server.over.wait(60)
            case "long":
                self.result(message, {"content": [{"type": "text", "text": "x" * 3 * 2**20}]})
            case "slow":
                self.server.over.wait(1.5)
                self.result(message, output)
            case _:
                self.result(message, output)

    def result(self, message: dict, result: dict) -> None:
        self.send_json({"id": message["id"], "result": result})

    def send_json(self, message: dict) -> None:
        body = json.dumps({"jsonrpc": "2.0"} | message).encode()
        self.respond(200, body, content_type="application/json", mcp_session_id="s1")

    def respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """The server; `over` is set at its end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that leave."""


@contextmanager
def http_tool_server() -> Iterator[str]:
    """Run a server; yield its address, without a scheme."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}/mcp"
        finally:
            server.over.set()
            server.shutdown()
            thread.join()
