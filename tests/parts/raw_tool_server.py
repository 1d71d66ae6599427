"""A tool server of the protocol of 2025-06-18 on standard input and output, without any package.

    python raw_tool_server.py [NAME] [FAULT]

FAULT: `mute` never responds, `babble` writes what is no message between messages, `many` offers
more tools than are taken, `huge` has a tool with a huge schema, `stubborn` ignores SIGTERM and the
end of its input, `dies` exits at once.
"""

import json
import os
import signal
import sys
import time

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
]


def send(message):
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
            sys.exit(3)
        case "process/id":
            return text(str(os.getpid()))
        case "environment":
            return text(" ".join(sorted(os.environ)))
    return None


def listed(fault):
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


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "raw"
    fault = sys.argv[2] if len(sys.argv) > 2 else ""
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
        result = respond(message, name, fault)
        if result is None:
            send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        else:
            send({"id": message["id"], "result": result})
    while fault == "stubborn":
        time.sleep(1)


if __name__ == "__main__":
    main()
