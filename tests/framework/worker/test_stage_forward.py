"""A stage passes on what it computed, and computes on what it received."""

import pytest
import torch
from model_parts import load_model, logits_of, make_model, random_tokens
from threaded_ranks import ThreadedLink
from torch import nn

from quire.errors import RequestFailedError
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.testing.checkpoints import write_checkpoint
from quire.worker.stage import WHOLE_MODEL, Stage
from quire.worker.stage_forward import stage_forward
from quire_models.qwen3_config import describe_qwen3

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
    described = describe_qwen3(written.config)
    given = [token_ids, torch.zeros_like(token_ids), torch.full_like(token_ids, -1)]
    for stage, model, ids in zip(stages, models, given, strict=True):
        hidden_states = stage_forward(model, stage, described, "x")(ids, positions, BATCH)
        assert hidden_states.shape == (9, 64)
    logits = models[2].compute_logits(hidden_states)
    torch.testing.assert_close(logits, logits_of(load_model(written), token_ids))


def test_a_whole_model_is_called_itself(written):
    model = make_model(written.config)
    assert stage_forward(model, WHOLE_MODEL, describe_qwen3(written.config), "x") is model


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
    forward = stage_forward(Returns(result), stage, describe_qwen3(written.config), "acme")
    with pytest.raises(RequestFailedError, match=message):
        forward(torch.arange(3), torch.arange(3), BATCH)
    assert link._sent.empty(), "nothing wrong is sent"


def test_a_model_may_have_no_residual(written):
    link = ThreadedLink()
    stage = Stage(index=0, count=2, layers=range(1), next=link)
    model = Returns(StageTensors(GOOD, None))
    forward = stage_forward(model, stage, describe_qwen3(written.config), "acme")
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
        forward = stage_forward(model, stage, describe_qwen3(written.config), "acme")
        assert torch.equal(forward(token_ids, positions, BATCH), GOOD)
    assert first.given == (token_ids, None)
    ids, received = last.given
    assert ids is None
    assert torch.equal(received.residual, GOOD)
