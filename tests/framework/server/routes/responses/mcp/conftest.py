"""A server with tool servers, in front of a model that plays a script."""

import pytest
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend, start_server, stop_servers
from tool_server_commands import raw_server

from quire.config import ServerSettings
from quire.server.tool_servers.tool_servers import started_tool_servers

pytest.importorskip("mcp", reason="tool servers need quire[mcp]")


@pytest.fixture(scope="module")
def access_log(tmp_path_factory):
    """The access log of the server."""
    return tmp_path_factory.mktemp("logs") / "access.log"


@pytest.fixture(scope="module")
def module_server(tokenizer, access_log):
    """A server whose tool servers have tools of the same names."""
    limits = {"tool_server_max_rounds": 3, "tool_server_max_bytes": 300}
    settings = ServerSettings(
        tool_server=(f"raw={raw_server('raw')}", raw_server("other"), f"shy={raw_server('shy')}"),
        **limits,
    )
    core = ScriptedCore(Texts(tokenizer))
    with started_tool_servers(settings) as tool_servers:
        options = limits | {"access_log": str(access_log)}
        served = start_server(core, make_frontend(tokenizer, core), tool_servers, **options)
        yield served
        stop_servers([served])
