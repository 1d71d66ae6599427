"""Drawn tokens are read from the host's copy."""

import torch

from quire.worker.drawn import Drawn
from quire.worker.host_copy import HostCopier
from quire.worker.logprobs import row_logprobs

LOGITS = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.0, -1.0]])


def test_the_first_rows_are_kept_when_the_buffers_are_written_again():
    buffers = Drawn(torch.tensor([4, 5, 6]), torch.tensor([1.0, torch.nan, 2.0]))
    kept = buffers.first(2)
    buffers.token_ids.fill_(0)
    buffers.best.fill_(torch.inf)
    assert [tuple(each) for each in kept.read()] == [(4, True, None), (5, False, None)]


def test_reading_is_the_same_with_and_without_a_copy():
    token_ids = torch.tensor([2, 0])
    logprobs = row_logprobs(LOGITS, token_ids, [1, None])
    drawn = Drawn(token_ids, torch.tensor([2.0, -torch.inf]), logprobs)
    directly = drawn.read()
    drawn.start_copy(HostCopier(torch.device("cpu")))
    assert drawn.copy is not None
    assert logprobs.copy is not None
    assert drawn.read() == directly
    assert [each.is_sound for each in directly] == [True, False]
    assert directly[0].logprobs.token_ids == [2, 1]
    assert directly[0].logprobs.rank == 2
    assert directly[1].logprobs is None
