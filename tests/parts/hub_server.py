"""A hub of one model on 127.0.0.1, as huggingface_hub's client expects it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "acme/tiny"
LARGE = ".safetensors"


class Hub:
    """The files of one model, by revision.

    Attributes:
        url: Address of the server.
        files: Content of each file, by revision and name.
        received: Names of the files that were sent, with the first byte of each response.
        wrong: Names of files whose content is not what the hub announces.
        refusal: Status and error code of every response; None: the hub serves the model.
        may_send: Unset to hold back the second half of every large file.
    """

    def __init__(self, **files: dict[str, bytes]) -> None:
        self.files = files
        self.received: list[tuple[str, int]] = []
        self.wrong: set[str] = set()
        self.refusal: tuple[int, str] | None = None
        self.url = ""
        self.may_send = threading.Event()
        self.may_send.set()

    def commit(self, revision: str) -> str:
        if revision in self.files:
            return hashlib.sha1(revision.encode()).hexdigest()
        return revision

    def files_of(self, revision: str) -> dict[str, bytes]:
        for name, files in self.files.items():
            if self.commit(revision) == self.commit(name):
                return files
        raise KeyError(revision)

    def names(self) -> list[str]:
        return [name for name, _ in self.received]


def etag(name: str, content: bytes) -> str:
    hashed = hashlib.sha256 if name.endswith(LARGE) else hashlib.sha1
    return hashed(content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content),
                             "oid": etag(name, content)}  # fmt: skip
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": etag(name, content), "size": len(content), "pointerSize": 134}
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def _answer(self, *, is_head: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        if self.hub.refusal is not None:
            self._refuse(*self.hub.refusal)
            return
        try:
            if path.startswith(f"api/models/{MODEL}"):
                self._send_json(self._listing(path.removeprefix(f"api/models/{MODEL}").strip("/")))
            else:
                revision, name = path.removeprefix(f"{MODEL}/resolve/").split("/", 1)
                self._send_file(revision, name, is_head)
        except KeyError as error:
            is_file = "." in str(error)
            self._refuse(404, "EntryNotFound" if is_file else "RevisionNotFound")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _listing(self, path: str) -> Any:
        kind, _, revision = path.partition("/")
        files = self.hub.files_of(revision or "main")
        if kind == "tree":
            return [_entry(name, content) for name, content in files.items()]
        siblings = [{"rfilename": name} for name in files]
        return {"id": MODEL, "sha": self.hub.commit(revision or "main"), "siblings": siblings}

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, revision: str, name: str, is_head: bool) -> None:
        content = self.hub.files_of(revision)[name]
        first = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{etag(name, content)}"')
        self.send_header("X-Repo-Commit", self.hub.commit(revision))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if is_head:
            return
        self.hub.received.append((name, first))
        body = content[first:]
        if name in self.hub.wrong:
            body = bytes(len(body))
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        if name.endswith(LARGE):
            self.hub.may_send.wait(60)
        self.wfile.write(body[len(body) // 2 :])


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.may_send.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
