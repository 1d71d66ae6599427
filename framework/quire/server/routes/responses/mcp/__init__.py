"""Tools of tool servers in responses: `{"type": "mcp", ...}` of OpenAI's API.

requested_server  a tool server as a request names it
offered_tools     what the model is offered of all that a request names
approvals         calls that the client has approved
tool_calls        runs calls
tool_rounds       the calls of one response
mcp_changes       what calls change in the output, and the events of that
"""
