"""Calls that the client was asked to approve: those that it has approved, and have not run."""

import hashlib
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
        where: Path of the answer in the request.
        is_stored: Whether a response that the request continues has asked for it.
    """

    request_id: str
    label: str
    name: str
    arguments: str
    where: str
    is_stored: bool


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
    requests, places = dict[str, Item](), dict[str, int]()
    for i, item in enumerate(items):
        if item.get("type") == "mcp_approval_request":
            requests[item["id"]], places[item["id"]] = item, i
    done = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    found: list[ApprovedCall] = []
    for i, item in enumerate(items):
        is_ours = i >= num_before and item.get("type") == "mcp_approval_response"
        if not is_ours or not item["approve"]:
            continue
        request = requests[item["approval_request_id"]]
        if request["id"] in done:
            continue
        label, name, where = request["server_label"], request["name"], f"input[{i - num_before}]"
        if not offered.allows(label, name):
            raise InvalidRequestError(
                f"{where} approves a call of the tool {name!r:.80} of the tool "
                f"server {label!r:.80}, which the tools of this request do not allow",
                param=where,
            )
        done.add(request["id"])
        is_stored = places[request["id"]] < num_before
        arguments = request["arguments"]
        found.append(ApprovedCall(request["id"], label, name, arguments, where, is_stored))
    return found


class RunApprovals:
    """Calls of stored responses that were approved and run: those of responses with one beginning.

    A request that is sent twice runs its calls once, whether or not the first one came to an end.
    """

    def __init__(self) -> None:
        self._ids: set[bytes] = set()  # digests, as clients choose the lengths of ids

    def claim(self, calls: Sequence[ApprovedCall]) -> None:
        """Note that calls are run.

        Raises:
            InvalidRequestError: One of them was run already.
        """
        ids = {_digest(call.request_id): call for call in calls if call.is_stored}
        for digest, call in ids.items():
            if digest in self._ids:
                raise InvalidRequestError(
                    f"{call.where} approves a call that was run already, in another response to "
                    "this conversation; continue that one, or ask the model again",
                    param=call.where,
                )
        self._ids |= ids.keys()


def _digest(request_id: str) -> bytes:
    return hashlib.sha256(request_id.encode("utf-8", "replace")).digest()
