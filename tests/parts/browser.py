"""Headless Chromium, driven through a pipe by the DevTools protocol, without any package."""

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 30.0  # on a machine where others compute
_EXEC = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def browser_path() -> str | None:
    """Return the path of a Chromium; None if there is none."""
    given = os.environ.get("QUIRE_TEST_BROWSER")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """A page in the browser.

    Args:
        browser: Browser that has it.
        session: Session of the protocol.

    Attributes:
        complaints: Errors that its scripts raised, and what its policy refused.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol; return its result."""
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({url!r})")

    def js(self, expression: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def wait(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if self.js(f"!!({expression})"):
                    return self.js(expression)
            except AssertionError:  # the page is being replaced
                pass
            time.sleep(0.05)
        text = self.js("document.body.innerText")
        raise AssertionError(f"never true: {expression}\n{self.complaints}\n{text}")

    def fill(self, selector: str, text: str) -> None:
        """Write a text into a field, as a user does."""
        self.js(
            f"(() => {{ const field = document.querySelector({selector!r});"
            f" field.focus(); field.value = {json.dumps(text)};"
            " field.dispatchEvent(new Event('input', {bubbles: true}));"
            " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def click(self, selector: str) -> None:
        """Click an element."""
        self.js(f"document.querySelector({selector!r}).click()")

    def press(self, key: str, code: int) -> None:
        """Press a key of the keyboard."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            params = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", **params, **(text if kind == "keyDown" else {}))

    def resize(self, width: int, height: int, *, scale: float = 1, dark: bool = False) -> None:
        """Show the page on a screen of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write a PNG of what is seen."""
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


class Browser:
    """A Chromium process.

    Args:
        process: The process.
        to_browser: File descriptor that it reads from.
        from_browser: File descriptor that it writes to.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int
    ) -> None:
        self._process = process
        self._to = to_browser
        self._from = from_browser
        self._rest = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}
        self._events: Callable[[dict[str, Any]], None] = self._take

    def tab(self) -> Tab:
        """Return a new page, which shares nothing with others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)[
            "sessionId"
        ]
        tab = Tab(self, session)
        self._tabs[session] = tab
        return tab

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise AssertionError(f"{method}: {reply['error']}")
                return reply["result"]
            self._events(reply)

    def _take(self, event: dict[str, Any]) -> None:
        tab, params = self._tabs.get(event.get("sessionId", "")), event.get("params", {})
        if tab is None:
            return
        if event["method"] == "Runtime.exceptionThrown":
            tab.complaints.append(json.dumps(params["exceptionDetails"])[:1000])
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            tab.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise AssertionError(f"the browser ended: {self._process.poll()}")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


@contextmanager
def browser(path: str, folder: Path) -> Iterator[Browser]:
    """Run a browser until the block ends.

    Args:
        path: Path of its program.
        folder: Folder for its profile.
    """
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
    child_reads, we_write, we_read, child_writes = ends
    flags = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(child_reads), str(child_writes), path, *flags],
        pass_fds=(child_reads, child_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(child_reads)
    os.close(child_writes)
    try:
        yield Browser(process, we_write, we_read)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(we_write)
        os.close(we_read)
