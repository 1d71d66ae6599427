"""A step that requests name changes the rows of these requests alone."""

from dataclasses import replace

import pytest
import torch

from quire.errors import RequestFailedError
from quire.interfaces.sampling import LogitsProcessor, SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows
from quire.worker.sampling.opt_in_step import OptInStep

VOCAB_SIZE = 9
NAMES = ({"logits_processors": ()}, {"logits_processors": ("bump",)})
PLAIN = SamplerCapabilities(stage="bias")


class Bump(LogitsProcessor):
    """Adds the position of each row to its logits, and its slot to the first."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []

    def is_neutral(self, fields):
        return fields.get("is_off", False)

    def apply(self, logits, rows):
        self.seen.append((rows.slots.tolist(), list(rows.host_fields)))
        logits += rows.positions[:, None]
        logits[:, 0] += rows.slots
        return logits

    def initial_state(self, fields):
        return [1.5]

    def observe(self, logits, rows, token_ids):
        return token_ids[:, None].float()


@pytest.fixture
def bump():
    return Bump(VOCAB_SIZE, torch.device("cpu"))


def rows_of(host_fields):
    rows = sampled_rows(PLAIN, [{}] * len(host_fields), slots=range(3, 3 + len(host_fields)))
    return replace(rows, host_fields=host_fields)


def test_a_request_that_does_not_name_it_is_neutral(bump):
    step = OptInStep("bump", bump)
    assert [step.is_neutral(fields) for fields in NAMES] == [True, False]
    assert step.is_neutral({"logits_processors": ("bump",), "is_off": True})
    assert step.is_neutral({"logits_processors": ("bump2", "bum")})


def test_other_rows_do_not_reach_it(bump):
    fields = [NAMES[0], NAMES[1], NAMES[0], NAMES[1]]
    found = OptInStep("bump", bump).apply(torch.zeros(4, VOCAB_SIZE), rows_of(fields))
    assert found[:, 1].tolist() == [0.0, 7.0, 0.0, 7.0]
    assert found[:, 0].tolist() == [0.0, 7.0 + 4, 0.0, 7.0 + 6]
    assert bump.seen == [([4, 6], [NAMES[1]] * 2)]


def test_a_batch_of_its_requests_is_passed_whole(bump):
    rows = rows_of([NAMES[1]] * 2)
    logits = torch.zeros(2, VOCAB_SIZE)
    assert OptInStep("bump", bump).apply(logits, rows) is logits


def test_the_warm_up_runs_it_for_all_rows(bump):
    found = OptInStep("bump", bump).apply(torch.zeros(2, VOCAB_SIZE), rows_of([{}, {}]))
    assert found[:, 1].tolist() == [7.0, 7.0]


def test_its_state_is_that_of_the_step(bump):
    step, token_ids = OptInStep("bump", bump), torch.tensor([4, 5])
    assert step.initial_state(NAMES[1]) == [1.5]
    observed = step.observe(torch.zeros(2, VOCAB_SIZE), rows_of([NAMES[1]] * 2), token_ids)
    assert observed.tolist() == [[4.0], [5.0]]


class Returns(LogitsProcessor):
    """Returns what a function makes of its logits."""

    def __init__(self, function):
        super().__init__(VOCAB_SIZE, torch.device("cpu"))
        self.function = function

    def is_neutral(self, fields):
        return False

    def apply(self, logits, rows):
        return self.function(logits)


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (torch.Tensor.double, r"a float64 tensor of shape \[2, 9\]"),
        (torch.Tensor.half, r"a float16 tensor of shape \[2, 9\]"),
        (lambda logits: logits[:, :1], r"a float32 tensor of shape \[2, 1\]"),
        (lambda logits: logits[:1], r"a float32 tensor of shape \[1, 9\]"),
        (lambda logits: None, "None"),
        (torch.Tensor.tolist, "a list"),
    ],
)
def test_a_wrong_return_for_some_rows_is_named(function, returned):
    step = OptInStep("returns", Returns(function))
    fields = [{"logits_processors": names} for names in ((), ("returns",), ("returns",))]
    wanted = rf"it returned {returned}.*; it must return a float32 tensor of shape \[2, 9\] on cpu"
    with pytest.raises(RequestFailedError, match=wanted):
        step.apply(torch.zeros(3, VOCAB_SIZE), rows_of(fields))


def test_rows_that_the_host_does_not_know_are_refused(bump):
    rows = replace(rows_of([NAMES[0]] * 2), host_fields=())
    with pytest.raises(RuntimeError, match="2 rows have 0 host_fields"):
        OptInStep("bump", bump).apply(torch.zeros(2, VOCAB_SIZE), rows)
