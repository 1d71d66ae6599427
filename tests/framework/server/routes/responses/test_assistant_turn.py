"""Turns of the assistant: what is one message, and what is left out of it."""

from quire.server.routes.responses.assistant_turn import AssistantTurn


def test_a_turn_has_only_what_was_added():
    turn = AssistantTurn()
    assert turn.message() == {"role": "assistant"}
    turn.add_reasoning("h")
    turn.add_reasoning("m")
    assert turn.message() == {"role": "assistant", "reasoning_content": "hm"}


def test_text_around_calls_is_one_text():
    turn = AssistantTurn()
    turn.add_text("a")
    assert not turn.takes_text
    turn.add_call("c", "f", "{}")
    assert (turn.takes_text, turn.takes_reasoning) == (True, False)
    turn.add_text("b")
    assert turn.message()["content"] == "ab"


def test_an_empty_text_is_a_text():
    turn = AssistantTurn()
    turn.add_text("")
    assert turn.message() == {"role": "assistant", "content": ""}
