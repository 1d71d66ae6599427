"""A stage passes on what it computed, and computes on what it received."""

import pytest
import torch
from model_parts import load_model, random_tokens
from torch import nn

from quire.errors import RequestFailedError
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.testing.model.threaded_ranks import ThreadedLink
from quire.worker.stage import WHOLE_MODEL, Stage
from quire.worker.stage_forward import StageForward
from quire_models.family_table import describe

BATCH = ForwardBatch(attention=[0])


@pytest.fixture
def written(tmp_path):
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path, "Qwen3ForCausalLM")


@torch.inference_mode()
def test_three_stages_compute_what_a_whole_model_does(written):
    links = [ThreadedLink(), ThreadedLink()]
    stages = [
        Stage(index=0, count=3, layers=range(1), next=links[0]),
        Stage(index=1, count=3, layers=range(1, 2), previous=links[0], next=links[1]),
        Stage(index=2, count=3, layers=range(2, 3), previous=links[1]),
    ]
    models = [load_model(written, layers=stage.layers) for stage in stages]
    token_ids, positions = random_tokens(9), torch.arange(9)
    described = describe(written.config)
    given = [token_ids, torch.zeros_like(token_ids), torch.full_like(token_ids, -1)]
    for stage, model, ids in zip(stages, models, given, strict=True):
        hidden_states = StageForward(model, stage, described, "x")(ids, positions, BATCH)
        assert hidden_states.shape == (9, 64)
    logits = models[2].compute_logits(hidden_states)
    torch.testing.assert_close(logits, logits_of(load_model(written), token_ids))


@torch.inference_mode()
def test_a_whole_model_receives_and_sends_nothing(written):
    model, token_ids, positions = load_model(written), random_tokens(9), torch.arange(9)
    forward = StageForward(model, WHOLE_MODEL, describe(written.config), "x")
    assert forward.receive(9) is forward.example is None
    logits = model.compute_logits(forward(token_ids, positions, BATCH))
    torch.testing.assert_close(logits, logits_of(load_model(written), token_ids))


@pytest.mark.parametrize(
    "result", [None, torch.zeros(2, 64), torch.zeros(3, 64, dtype=torch.int32)]
)
def test_a_whole_model_that_returns_something_else_is_blamed_by_name(written, result):
    forward = StageForward(Returns(result), WHOLE_MODEL, describe(written.config), "acme")
    with pytest.raises(RequestFailedError, match="forward pass of acme returned"):
        forward(torch.arange(3), torch.arange(3), BATCH)


def test_a_stage_knows_the_form_of_what_it_has_received(written):
    link = ThreadedLink()
    stage = Stage(index=1, count=2, layers=range(1, 2), previous=link)
    for residual in (None, torch.zeros(3, 64)):
        forward = StageForward(Returns(GOOD), stage, describe(written.config), "acme")
        assert forward.example is None
        link.send(StageTensors(torch.zeros(3, 64, dtype=torch.bfloat16), residual))
        forward(torch.arange(3), torch.arange(3), BATCH)
        example = forward.example
        assert example.hidden_states.shape == (0, 64)
        assert example.hidden_states.dtype == torch.bfloat16
        assert (example.residual is None) == (residual is None)


class Returns(nn.Module):
    """A model whose forward pass returns something given."""

    def __init__(self, result) -> None:
        super().__init__()
        self.result = result

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        return self.result


GOOD = torch.zeros(3, 64)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (GOOD, "of acme returned a Tensor on pipeline stage 0, but must return StageTensors"),
        (None, "of acme returned a NoneType on pipeline stage 0"),
        (StageTensors(GOOD[:2], None), r"returned a float32 tensor of shape \[2, 64\].*\[3, 64\]"),
        (StageTensors(GOOD, GOOD[:, :8]), r"returned a float32 tensor of shape \[3, 8\]"),
        (StageTensors(GOOD.int(), None), r"returned a int32 tensor"),
    ],
)
def test_a_model_that_returns_something_else_is_blamed_by_name(written, result, message):
    link = ThreadedLink()
    stage = Stage(index=0, count=2, layers=range(1), next=link)
    forward = StageForward(Returns(result), stage, describe(written.config), "acme")
    with pytest.raises(RequestFailedError, match=message):
        forward(torch.arange(3), torch.arange(3), BATCH)
    assert link._sent.empty(), "nothing wrong is sent"


def test_a_model_may_have_no_residual(written):
    link = ThreadedLink()
    stage = Stage(index=0, count=2, layers=range(1), next=link)
    model = Returns(StageTensors(GOOD, None))
    forward = StageForward(model, stage, describe(written.config), "acme")
    assert forward(torch.arange(3), torch.arange(3), BATCH) is GOOD
    assert link.receive(3).residual is None


class Notes(Returns):
    """Also records the token ids and the tensors of the previous stage that it gets."""

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        self.given = (input_ids, stage_input)
        return self.result


def test_the_first_stage_gets_token_ids_and_later_ones_get_tensors(written):
    link, token_ids, positions = ThreadedLink(), torch.arange(3), torch.arange(3)
    first, last = Notes(StageTensors(GOOD, GOOD)), Notes(GOOD)
    stages = [
        Stage(index=0, count=2, layers=range(1), next=link),
        Stage(index=1, count=2, layers=range(1, 2), previous=link),
    ]
    for model, stage in zip((first, last), stages, strict=True):
        forward = StageForward(model, stage, describe(written.config), "acme")
        assert torch.equal(forward(token_ids, positions, BATCH), GOOD)
    assert first.given == (token_ids, None)
    ids, received = last.given
    assert ids is None
    assert torch.equal(received.residual, GOOD)
