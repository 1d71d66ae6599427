"""Copies of KV blocks within the cache of one device, for requests that continue another one."""

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from quire.interfaces.attention import KVBackend
from quire.messages import BlockCopy
from quire.worker.device.copies import upload


class BlockCopier:
    """Copies whole blocks, in every tensor of the cache.

    Args:
        tensors: KV cache of the layers, each `[num_blocks, page_bytes]`; layers may share one.
        backends: Attention backends, which forget what they derived from the cache.
    """

    def __init__(self, tensors: Iterable[Tensor], backends: Sequence[KVBackend]) -> None:
        self._tensors = list({tensor.data_ptr(): tensor for tensor in tensors}.values())
        self._backends = backends

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks before the step that computes with them; no block is a source and a target.

        Nothing here waits for the device.
        """
        if not self._tensors:
            return
        device = self._tensors[0].device
        sources = upload(np.array([each.source for each in copies]), device)
        targets = upload(np.array([each.target for each in copies]), device)
        for tensor in self._tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))
        for backend in self._backends:
            backend.forget_context()
