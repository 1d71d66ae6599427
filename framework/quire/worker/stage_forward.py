"""Forward pass of a pipeline stage: receives hidden states, computes its layers, and sends them.

The three are apart, because a graph replays the computation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.model import ForwardBatch, Model, ModelDescription, StageTensors
from quire.layers.returned import check_returned
from quire.worker.loading.weight_targets import as_module
from quire.worker.stage import Stage

Forward = Callable[[Tensor, Tensor, ForwardBatch], Tensor]
Computed = Tensor | StageTensors  # hidden states of the last stage; input of the next one


class StageForward:
    """Forward pass of one stage, or of a whole model, which receives and sends nothing.

    Args:
        model: Model with the layers of the stage.
        stage: Pipeline stage.
        description: Description of the model, against which its outputs are checked.
        computed_by: Name of the model, for error messages.

    Attributes:
        example: Tensors of the stage before without rows, like those that were received; None
            before the first step, and on the first stage.
    """

    def __init__(
        self, model: Model, stage: Stage, description: ModelDescription, computed_by: str
    ) -> None:
        self.example: StageTensors | None = None
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

        Raises:
            RequestFailedError: The model returned something other than the tensors of a stage.
        """
        received = self.receive(len(input_ids))
        return self.send(self.compute(input_ids, positions, batch, received))

    def receive(self, num_tokens: int) -> StageTensors | None:
        """Wait for the tensors of the stage before; None on the first stage."""
        link = self._stage.previous
        if link is None:
            return None
        received = link.receive(num_tokens)
        if self.example is None:
            self.example = _without_rows(received)
        return received

    def compute(
        self,
        input_ids: Tensor,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
        received: StageTensors | None,
    ) -> Computed:
        """Compute the layers, which may write to what was received.

        Only the first stage uses the token ids.

        Raises:
            RequestFailedError: The model returned something other than the tensors of a stage.
        """
        if received is None:
            computed: object = self._forward_pass(input_ids, positions, batch)
        else:
            computed = self._forward_pass(None, positions, batch, stage_input=received)
        return self._checked(computed, positions)

    def send(self, computed: Computed) -> Tensor:  # [T, hidden_size]
        """Send the tensors if a stage follows, and return the hidden states.

        They may be written to after the call.
        """
        if isinstance(computed, Tensor):
            return computed
        if self._stage.next is not None:
            self._stage.next.send(computed)
        return computed.hidden_states

    def _checked(self, computed: object, positions: Tensor) -> Computed:
        shape, device = (len(positions), self._hidden_size), positions.device
        if self._stage.is_last:
            check_returned(computed, shape, None, device, self._source)
        elif not isinstance(computed, StageTensors):
            raise RequestFailedError(
                f"{self._source} returned a {type(computed).__name__} on pipeline stage "
                f"{self._stage.index}, but must return StageTensors there"
            )
        else:
            for tensor in tensors_of(computed):
                check_returned(tensor, shape, None, device, self._source)
        return computed  # type: ignore[return-value] # checked above


def tensors_of(computed: Computed) -> list[Tensor]:
    """Return the tensors that a stage has computed, or has received."""
    if isinstance(computed, Tensor):
        return [computed]
    given = (computed.hidden_states, computed.residual)
    return [tensor for tensor in given if tensor is not None]


def first_rows(computed: Computed, num_rows: int) -> Computed:
    """Return the first rows of what a stage has computed."""
    if isinstance(computed, Tensor):
        return computed[:num_rows]
    return stage_tensors(each[:num_rows] for each in tensors_of(computed))


def stage_tensors(tensors: Iterable[Tensor]) -> StageTensors:
    """Return hidden states and, if there is a second tensor, the residual."""
    hidden_states, *residual = tensors
    return StageTensors(hidden_states, residual[0] if residual else None)


def _without_rows(tensors: StageTensors) -> StageTensors:
    return stage_tensors(each.new_empty(0, each.shape[1]) for each in tensors_of(tensors))
