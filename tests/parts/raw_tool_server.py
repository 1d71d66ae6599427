"""A tool server of the protocol of 2025-06-18 on standard input and output, without any package.

    python raw_tool_server.py [NAME] [FAULT] [MARK]

Calls run at the same time.

FAULT: `mute` never responds, `babble` writes what is no message between messages, `many` offers
more tools than are taken, `huge` has a tool with a huge schema, `stubborn` ignores SIGTERM and the
end of its input, `dies` exits at once. `fading` is mute, and `failing` dies with a secret on its
standard error, from the second start on, of which the file MARK tells. `broken` has tools that are
none, and one with a broken schema.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
EMPTY = {"type": "object", "properties": {}}
TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather of a city",
        "inputSchema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "fail", "description": "Fails always", "inputSchema": EMPTY},
    {"name": "repeat", "description": "A text, often", "inputSchema": TEXT},
    {"name": "wait", "description": "Waits", "inputSchema": EMPTY},
    {"name": "leave", "description": "Ends the server", "inputSchema": EMPTY},
    {"name": "process/id", "description": "Number of the process", "inputSchema": EMPTY},
    {"name": "learn", "description": "Adds a tool", "inputSchema": EMPTY},
    {"name": "environment", "description": "Names of variables", "inputSchema": EMPTY},
    {"name": "refuse", "description": "An error of the protocol", "inputSchema": EMPTY},
    {"name": "flood", "description": "A message that is too long", "inputSchema": EMPTY},
    {
        "name": "match",
        "description": "An output with a schema that takes for ever",
        "inputSchema": EMPTY,
        "outputSchema": {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        },
    },
    {"name": "mismatch", "inputSchema": EMPTY, "outputSchema": EMPTY | {"required": ["a"]}},
    {"name": "nonsense", "description": "A result that is none", "inputSchema": EMPTY},
    {"name": "escape", "description": "Leaves a process in a new session", "inputSchema": EMPTY},
    {"name": "listings", "description": "How often tools were listed", "inputSchema": EMPTY},
]
BROKEN = [
    {"name": "no_schema"},
    {"name": "array", "inputSchema": {"type": "array"}},
    {"name": 7, "inputSchema": EMPTY},
    "tool",
    {"name": "typo", "inputSchema": EMPTY | {"properties": {"a": {"type": "strin"}}}},
]
NUM_LISTINGS = [0]
LOCK = threading.Lock()


def send(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        sys.stdout.flush()


def text(words, **fields):
    return {"content": [{"type": "text", "text": words}]} | fields


def call(name, arguments):
    match name:
        case "get_weather":
            return text(f"It rains in {arguments['city']}.")
        case "fail":
            return text("the cupboard is bare", isError=True)
        case "repeat":
            return text(arguments["text"] * 1000)
        case "wait":
            time.sleep(1)
            return text("done")
        case "learn":
            TOOLS.append({"name": "dance", "inputSchema": EMPTY})
            send({"method": "notifications/tools/list_changed"})
            return text("learnt")
        case "leave":
            os._exit(3)
        case "process/id":
            return text(str(os.getpid()))
        case "environment":
            return text(" ".join(sorted(os.environ)))
        case "flood":
            return text("x" * 3 * 2**20)
        case "match":
            return text("x", structuredContent={"a": "a" * 40 + "!"})
        case "mismatch":
            return text("x", structuredContent={"b": 1})
        case "nonsense":
            return {"content": [{"type": "text"}]}
        case "escape":
            return text(str(subprocess.Popen(["sleep", "60"], start_new_session=True).pid))
        case "listings":
            return text(str(NUM_LISTINGS[0]))
    return None


def listed(fault):
    NUM_LISTINGS[0] += 1
    if fault == "broken":
        return [*BROKEN, *TOOLS]
    if fault == "many":
        return [{"name": f"t{i}", "inputSchema": EMPTY} for i in range(600)]
    if fault == "huge":
        return [*TOOLS, {"name": "huge", "description": "x" * 40_000, "inputSchema": EMPTY}]
    return TOOLS


def respond(message, name, fault):
    """Return the result of a request; None if there is no such method."""
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": name, "version": "1"},
            }
        case "tools/list":
            return {"tools": listed(fault)}
        case "tools/call":
            return call(message["params"]["name"], message["params"].get("arguments") or {})
    return None


def handle(message, name, fault):
    result = respond(message, name, fault)
    if result is not None:
        send({"id": message["id"], "result": result})
    elif message["method"] == "tools/call":
        error = {"code": -32603, "message": "division by zero"}
        send({"id": message["id"], "error": error})
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})


def is_second(mark):
    """Return whether this is not the first start."""
    was_there = mark.exists()
    mark.touch()
    return was_there


def main():
    name, fault, mark = [*sys.argv[1:], *("raw", "", "")[len(sys.argv) - 1 :]]
    if fault in ("fading", "failing") and is_second(Path(mark)):
        if fault == "failing":
            sys.exit("cannot connect to db://admin:hunter2@cellar")
        fault = "mute"
    if fault == "dies":
        sys.exit("no cellar")
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or fault == "mute":
            continue
        if fault == "babble":
            print("this is no message")
        threading.Thread(target=handle, args=(message, name, fault), daemon=True).start()
    while fault == "stubborn":
        time.sleep(1)


if __name__ == "__main__":
    main()
