"""A supervisor that asks for `/livez`, for `overload.py`: a process of its own for a port.

It prints, for each request, the seconds until its response, and those by which the probe itself was
late: a program that gets no CPU sees late responses, too. It ends when its input ends.
"""

import json
import select
import socket
import sys
import time

INTERVAL_S = 0.05
TIMEOUT_S = 60.0
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def ask(port: int) -> float:
    """Ask over a new connection, and return the seconds until the response.

    Raises:
        RuntimeError: It is not 200.
    """
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(REQUEST)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("/livez does not answer with 200")
    return time.monotonic() - began_s


def main() -> None:
    """Ask again and again, and print what was measured."""
    port, seconds, late_s = int(sys.argv[1]), list[float](), list[float]()
    while True:
        due_s = time.monotonic() + INTERVAL_S
        if select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            break
        late_s.append(max(0.0, time.monotonic() - due_s))
        seconds.append(ask(port))
    print(json.dumps({"seconds": seconds, "late_s": late_s}))


if __name__ == "__main__":
    main()
