"""An HTTP server in this event loop that answers by a script, and remembers what it was asked."""

import asyncio
import json
from contextlib import asynccontextmanager


def event(data):
    """Return a server-sent event."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def streamed(*events):
    """Return a whole chunked reply with one chunk for each event, and `[DONE]`."""
    chunks = [*map(event, events), event(b"[DONE]")]
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + body + b"0\r\n\r\n"


def whole(status, data, close=False):
    """Return a reply with a JSON body."""
    body = json.dumps(data).encode()
    closing = "Connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{closing}\r\n".encode() + body


def text_events(*texts, usage=(3, None)):
    """Return the events of a completion whose parts are texts."""
    parts = [{"choices": [{"index": 0, "text": text}]} for text in texts]
    num_tokens = len(texts) if usage[1] is None else usage[1]
    counted = {"prompt_tokens": usage[0], "completion_tokens": num_tokens}
    return [*parts, {"choices": [], "usage": counted}]


class ScriptedServer:
    """Answers each request with what a function returns: bytes, or None to close.

    Attributes:
        requests: Method and path, headers, and body of each request.
        num_connections: Connections so far.
        most_at_once: Largest number of requests that were under way at one time.
    """

    def __init__(self, answer, delay_s=0.0):
        self._answer = answer
        self._delay_s = delay_s
        self.requests = []
        self.num_connections = self.num_running = self.most_at_once = 0
        self.url = ""

    async def serve(self, reader, writer):
        self.num_connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def _serve_one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((first, headers, json.loads(body) if body else None))
        self.num_running += 1
        self.most_at_once = max(self.most_at_once, self.num_running)
        await asyncio.sleep(self._delay_s)
        self.num_running -= 1
        reply = self._answer(*self.requests[-1])
        if reply is None:
            return False
        writer.write(reply)
        await writer.drain()
        return b"Connection: close" not in reply


@asynccontextmanager
async def scripted_server(answer, delay_s=0.0):
    """Serve while the context is open."""
    script = ScriptedServer(answer, delay_s)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
