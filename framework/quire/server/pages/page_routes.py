"""GET /ui and /docs: pages for a browser."""

from quire.server.pages.page import Page
from quire.server.routes.operation import Operation

_SHARED = ("dom.js", "server.js", "curl.js")


def page_operations() -> list[Operation]:
    """Return the operations of the pages."""
    ui = Page(
        "ui.html",
        ("base.css", "ui.css"),
        (
            *_SHARED,
            "markdown.js",
            "events.js",
            "settings.js",
            "completion.js",
            "chat.js",
            "runs.js",
            "block_map.js",
            "engine.js",
            "ui.js",
        ),
    )
    docs = Page("docs.html", ("base.css", "docs.css"), (*_SHARED, "schema.js", "docs.js"))
    return [Operation("/ui", ui.show), Operation("/docs", docs.show)]
