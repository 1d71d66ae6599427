"""Calls that the client was asked to approve: those that it has approved, and have not run."""

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.server.routes.responses.mcp.offered_tools import OfferedTools

Item = dict[str, Any]


class ApprovedCall(msgspec.Struct, frozen=True):
    """A call that the client has approved.

    Attributes:
        request_id: Id of the item that asked for it.
        label: Name of the server.
        name: Name of the tool.
        arguments: JSON of its arguments.
    """

    request_id: str
    label: str
    name: str
    arguments: str


def approved_calls(
    items: Sequence[Item], num_before: int, offered: OfferedTools
) -> list[ApprovedCall]:
    """Return the calls that a request approves; the items are checked already.

    Args:
        items: Items of previous responses, and those of the request.
        num_before: Number of items that are not the request's; errors count from there.
        offered: What the request allows.

    Raises:
        InvalidRequestError: The request does not allow one of them.
    """
    requests = {item["id"]: item for item in items if item.get("type") == "mcp_approval_request"}
    done = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    found: list[ApprovedCall] = []
    for i, item in enumerate(items):
        is_ours = i >= num_before and item.get("type") == "mcp_approval_response"
        if not is_ours or not item["approve"]:
            continue
        request = requests[item["approval_request_id"]]
        if request["id"] in done:
            continue
        label, name = request["server_label"], request["name"]
        if not offered.allows(label, name):
            raise InvalidRequestError(
                f"input[{i - num_before}] approves a call of the tool {name!r:.80} of the tool "
                f"server {label!r:.80}, which the tools of this request do not allow",
                param=f"input[{i - num_before}]",
            )
        done.add(request["id"])
        found.append(ApprovedCall(request["id"], label, name, request["arguments"]))
    return found
