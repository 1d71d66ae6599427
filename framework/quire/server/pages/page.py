"""Pages for a browser: HTML with style and script inside, under a policy that allows no others.

A page has no data of the server: what it shows it asks for with the key that its user enters.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = "files"


class Page:
    """A page, read and put together once.

    Args:
        html: Name of its HTML file, with the marks `/*style*/` and `/*script*/`.
        styles: Names of its CSS files, in order.
        scripts: Names of its JavaScript files, in order; they share one scope.

    Attributes:
        body: The whole page.
        headers: Headers of its response.
    """

    def __init__(self, html: str, styles: Sequence[str], scripts: Sequence[str]) -> None:
        style = "".join(map(_read, styles))
        script = '"use strict";\n(() => {\n' + "".join(map(_read, scripts)) + "})();\n"
        filled = _read(html).replace("/*style*/", style).replace("/*script*/", script)
        self.body = filled.encode()
        self.headers = {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": _policy(style, script),
            "cache-control": "no-cache",
            "cross-origin-opener-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    async def show(self, request: Request) -> Response:
        """Return the page."""
        del request
        return Response(self.body, headers=self.headers)


def _read(name: str) -> str:
    return files(__package__).joinpath(_FOLDER, name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy of a page with this style and this script."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",  # the icon of the page
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
