"""A tool server made with the `mcp` package: on standard input and output, or on a port.

python mcp_tool_server.py [--name NAME] [--port PORT]
"""

import argparse
import asyncio
import os
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations


def make_server(name: str) -> MCPServer:
    server = MCPServer(name)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    def get_weather(city: Annotated[str, "Name of the city"]) -> str:
        """The weather of a city"""
        return f"It rains in {city}."

    @server.tool(structured_output=False)
    def add(a: int, b: int) -> str:
        """The sum of two numbers"""
        return str(a + b)

    @server.tool(structured_output=False)
    def fail() -> str:
        """Fails always"""
        raise ValueError("the cupboard is bare")

    @server.tool(structured_output=False)
    def repeat(text: str, times: int) -> str:
        """A text, repeated"""
        return text * times

    @server.tool(structured_output=False)
    async def wait(seconds: float) -> str:
        """Waits"""
        await asyncio.sleep(seconds)
        return "done"

    @server.tool(structured_output=False)
    def environment() -> str:
        """Names of the environment's variables"""
        return " ".join(sorted(os.environ))

    @server.tool(structured_output=False)
    def process_id() -> str:
        """Number of the process"""
        return str(os.getpid())

    @server.tool(structured_output=False)
    def leave() -> str:
        """Ends the server"""
        os._exit(3)

    @server.tool(structured_output=False)
    async def learn(name: str, context: Context) -> str:
        """Adds a tool"""

        def learnt() -> str:
            return f"I am {name}"

        server.add_tool(learnt, name=name, structured_output=False)
        await context.session.send_tool_list_changed()
        return "learnt"

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="parts")
    parser.add_argument("--port", type=int, default=None)
    arguments = parser.parse_args()
    server = make_server(arguments.name)
    if arguments.port is None:
        server.run()
    else:
        server.run("streamable-http", port=arguments.port)


if __name__ == "__main__":
    main()
