"""Temperature divides the logits, and leaves greedy rows unchanged."""

import pytest
import torch
from transformers import TemperatureLogitsWarper

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.plugin import TEMPERATURE
from quire_samplers.temperatures.temperature import Temperature

CAPABILITIES = SamplerCapabilities(
    stage="temperature", fields=(TEMPERATURE,), is_vocab_parallel=True
)


class TestTemperature(LogitsProcessorContract):
    step_class = Temperature
    capabilities = CAPABILITIES
    active = ({"temperature": 0.3}, {"temperature": 1.7}, {"temperature": 1e-9})


def apply(logits, *temperatures):
    rows = sampled_rows(CAPABILITIES, [{"temperature": t} for t in temperatures])
    return Temperature(logits.shape[1], logits.device).apply(logits.clone(), rows)


def test_greedy_rows_are_left_for_the_sampler():
    logits = torch.randn(2, 9)
    assert torch.equal(apply(logits, 0.0, 0.0), logits)


def test_it_equals_transformers():
    logits = torch.randn(3, 40)
    expected = TemperatureLogitsWarper(0.6)(None, logits)
    torch.testing.assert_close(apply(logits, 0.6, 0.6, 0.6), expected)


def test_a_vanishing_temperature_leaves_numbers():
    probs = apply(torch.tensor([[3e4, 2.9e4, -3e4]]), 1e-44).softmax(-1)
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [1e-4, 0.05, 0.3, 2.0, 100.0])
def test_it_divides_by_every_temperature_that_is_not_tiny(temperature):
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    torch.testing.assert_close(apply(logits.clone(), temperature), logits / temperature)


@pytest.mark.parametrize(
    ("temperature", "is_neutral"), [(0.0, True), (1.0, True), (0.99, False), (2.0, False)]
)
def test_greedy_requests_and_a_temperature_of_one_need_no_step(temperature, is_neutral):
    step = Temperature(3, torch.device("cpu"))
    assert step.is_neutral({"temperature": temperature}) is is_neutral
