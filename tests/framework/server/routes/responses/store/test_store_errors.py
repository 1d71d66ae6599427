"""Errors of stored responses: the status says whether to try again."""

from quire.server.keys.account import Account
from quire.server.routes.responses.store.store_errors import id_is_taken, no_response, store_is_full
from quire.server.routes.responses.store.stored_response import StoredResponse


def test_a_full_store_is_tried_again_later():
    error = store_is_full(3, 900)
    assert (error.status, error.headers["retry-after"]) == (429, "1")
    assert "3 responses of 900 bytes" in str(error)


def test_an_id_that_is_taken_says_by_what():
    response = StoredResponse("resp_x", Account("one"), b"", None, b"")
    assert (id_is_taken(response).status, id_is_taken(response).name) == (409, "response_exists")
    response.is_running = True
    assert id_is_taken(response).name == "response_in_progress"


def test_a_response_that_a_field_names_is_a_wrong_request():
    assert (no_response("x").status, no_response("x", "previous_response_id").status) == (404, 400)
