"""Servers of the Model Context Protocol that the operator has listed, and calls of their tools.

tool_server_address  what `--tool-server` names
tool_limits          limits of time and bytes
remote_tool          a tool that a server offers
tool_outcome         what a call gave
message_lines        lines of messages, in bounds
incoming_messages    messages before the `mcp` package sees them
stdio_transport      a server that is a child process
http_transport       a server that has a URL
tool_server          one server: its connection, its tools, and calls of them
tool_servers         all of them, in a thread of their own
"""
