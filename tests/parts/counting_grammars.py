"""Grammars that record submissions, accepted tokens and releases."""

from engine_parts import ScriptedGrammars

from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams


class CountingGrammars(ScriptedGrammars):
    """Grammars whose masks say how many tokens they have accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[str] = []  # submitted, and neither ready nor failed yet

    def submit(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        is_active: bool = True,
        client: str = "",
    ) -> None:
        super().submit(request_id, params, is_active=is_active, client=client)
        self.accepted.pop(request_id, None)
        self.due.append(request_id)

    def release(self, request_id: str) -> None:
        super().release(request_id)
        if self.released.count(request_id) > self.submitted.count(request_id):
            raise AssertionError(f"the grammar of {request_id} is released twice")
        self.due = [name for name in self.due if name != request_id]
        self.ready = [said for said in self.ready if said[0] != request_id]

    def collect_masks(self) -> list[RowBitmask]:
        counts = [(slot, len(self.accepted.get(name, []))) for slot, name in self._rows]
        return [RowBitmask(slot, 0, count.to_bytes(4, "little")) for slot, count in counts]
