"""The watermark of a logits processor, and its detection in sampled tokens."""

import torch

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import History, sampled_rows
from quire_samplers.plugin import MAX_CONTEXT_WIDTH, WATERMARK
from quire_samplers.watermark import watermark
from quire_samplers.watermark.green_list import context_seeds, is_green
from quire_samplers.watermark.watermark import Watermark, previous_tokens

ON = {"watermark": True}
HISTORIES = (History((1, 2, 3, 1, 2), num_prompt_tokens=3), History((7, 9), num_prompt_tokens=1))


class TestWatermark(LogitsProcessorContract):
    step_class = Watermark
    capabilities = WATERMARK
    active = (
        ON,
        {"watermark": True, "watermark_bias": 0.5, "watermark_greenlist_ratio": 0.5},
        {"watermark": True, "watermark_key": 2**63 - 1, "watermark_context_width": 2},
    )
    histories = HISTORIES


def applied(requests, histories=HISTORIES, vocab_size=50):
    rows = sampled_rows(WATERMARK, requests, histories=histories)
    logits = torch.zeros(len(requests), vocab_size)
    return Watermark(vocab_size, logits.device).apply(logits, rows)


def test_green_tokens_gain_the_bias_and_others_nothing():
    found = applied([ON, {"watermark": True, "watermark_bias": 0.75}])
    contexts = torch.zeros(2, MAX_CONTEXT_WIDTH, dtype=torch.int64)
    contexts[:, -1] = torch.tensor([2, 9])
    seeds = context_seeds(torch.tensor([15_485_863] * 2), contexts, torch.tensor([1, 1]))
    expected = is_green(seeds.unsqueeze(1), torch.arange(50), torch.full((2, 1), 0.25))
    assert torch.equal(found, expected * torch.tensor([[2.0], [0.75]]))


def test_a_row_without_a_whole_context_is_left_as_it_is():
    request = {"watermark": True, "watermark_context_width": 3}
    found = applied([request, request])
    assert found[0].any()
    assert not found[1].any()


def test_a_watermark_without_bias_is_neutral():
    defaults = {field.name: field.default for field in WATERMARK.fields}
    step = Watermark(50, torch.device("cpu"))
    assert step.is_neutral(defaults)
    assert step.is_neutral(defaults | {"watermark": True, "watermark_bias": 0.0})
    assert not step.is_neutral(defaults | {"watermark": True})


def test_a_vocabulary_of_several_chunks_gets_the_same_logits(monkeypatch):
    whole = applied([ON, ON])
    monkeypatch.setattr(watermark, "CHUNK", 7)
    assert torch.equal(applied([ON, ON]), whole)


def test_the_previous_tokens_end_before_the_position():
    rows = sampled_rows(WATERMARK, [ON, ON], histories=HISTORIES, stale_token=49)
    assert previous_tokens(rows)[:, -2:].tolist() == [[1, 2], [7, 9]]
