"""Forward pass of a pipeline stage: receives hidden states, computes its layers, and sends them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.model import ForwardBatch, Model, ModelDescription, StageTensors
from quire.layers.parallel import StageLink
from quire.layers.returned import check_returned
from quire.worker.loading.weight_loading import as_module
from quire.worker.stage import Stage

Forward = Callable[[Tensor, Tensor, ForwardBatch], Tensor]


class StageForward:
    """Forward pass of one stage of several.

    Args:
        model: Model with the layers of the stage.
        stage: Pipeline stage.
        description: Description of the model, against which its outputs are checked.
        computed_by: Name of the model, for error messages.
    """

    def __init__(
        self, model: Model, stage: Stage, description: ModelDescription, computed_by: str
    ) -> None:
        self._forward_pass = as_module(model)
        self._stage = stage
        self._hidden_size = description.hidden_size
        self._source = f"the forward pass of {computed_by}"

    def __call__(
        self,
        input_ids: Tensor,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
    ) -> Tensor:  # [T, hidden_size]
        """Return the hidden states after the stage; they have been sent if a stage follows.

        Only the first stage uses the token ids.

        Raises:
            RequestFailedError: The model returned something other than the tensors of a stage.
        """
        computed = self._compute(input_ids, positions, batch)
        link = self._stage.next
        return computed if link is None else self._send(link, computed, positions)

    def _compute(self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
        link = self._stage.previous
        if link is None:
            first: Tensor = self._forward_pass(input_ids, positions, batch)
            return first
        received = link.receive(len(input_ids))
        later: Tensor = self._forward_pass(None, positions, batch, stage_input=received)
        return later

    def _send(self, link: StageLink, computed: object, positions: Tensor) -> Tensor:
        if not isinstance(computed, StageTensors):
            raise RequestFailedError(
                f"{self._source} returned a {type(computed).__name__} on pipeline stage "
                f"{self._stage.index}, but must return StageTensors there"
            )
        shape, device = (len(positions), self._hidden_size), positions.device
        for tensor in (computed.hidden_states, computed.residual):
            if tensor is not None:
                check_returned(tensor, shape, None, device, self._source)
        link.send(computed)
        return computed.hidden_states


def stage_forward(
    model: Model, stage: Stage, description: ModelDescription, computed_by: str
) -> Forward:
    """Return the forward pass of a stage: for a whole model, that of the model itself."""
    if stage.count == 1:
        return as_module(model)
    return StageForward(model, stage, description, computed_by)
