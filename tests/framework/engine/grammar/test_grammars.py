from engine_parts import make_core, make_message

from quire.engine.core import EngineCore
from quire.engine.grammar.grammars import NoGrammars
from quire.sampling_params import StructuredOutputsParams

FORM = StructuredOutputsParams(choice=("yes", "no"))


def test_a_grammar_is_rejected_once_with_the_remedy():
    grammars = NoGrammars()
    grammars.submit("a", FORM)
    assert grammars.wait_for_compile(9.0), "there is something to say"
    ((request_id, error),) = grammars.poll()
    assert request_id == "a"
    assert error.code == "invalid_grammar"
    assert "start with --structured-output NAME" in str(error)
    assert grammars.poll() == []
    assert not grammars.wait_for_compile(9.0)


def test_a_finished_request_is_not_rejected():
    grammars = NoGrammars()
    grammars.submit("a", FORM)
    grammars.submit("b", FORM, is_active=False)
    grammars.release("a")
    assert [request_id for request_id, _ in grammars.poll()] == ["b"]


def test_an_engine_without_structured_output_rejects_a_grammar_and_serves_the_rest():
    parts, executor, _ = make_core()
    core = EngineCore(parts.scheduler, executor, executor, NoGrammars())
    core.add(make_message("bound", structured_outputs=FORM))
    core.add(make_message("free", max_tokens=1))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert outputs["bound"].error.code == "invalid_grammar"
    assert outputs["free"].finish_reason == "length"
    assert not core.has_work()
