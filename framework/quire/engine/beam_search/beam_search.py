"""A beam search in the scheduler: one request computes each beam.

The member of a beam that continues its own tokens gets the selected token, and goes on. If several
beams continue the same one, the others are forked: a member whose beam has no continuation takes
the tokens of the parent, shares its full blocks and copies the last one. New members are started
while there are fewer than beams.

    beam 0   the cat        -> sat   member 0 appends a token
    beam 1   the dog        -> (none)
    beam 0   the cat        -> ran   member 1 is forked from member 0

The members keep in step: a selection needs the next tokens of all of them, so a member whose row
has come waits for the others. The slots for all beams are reserved when the first member starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.engine.beam_search.beam_selection import BeamSelection, Continuation
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request
from quire.engine.request_group import RequestGroup
from quire.messages import EngineOutput, TokenLogprobs


class BeamSearch(RequestGroup):
    """The members of one beam search.

    Args:
        root: Its first member, which computes the prompt.

    Attributes:
        selection: The selection of the beams.
    """

    def __init__(self, root: Request) -> None:
        params = root.message.beam_search
        super().__init__(root, width=1 if params is None else params.beam_width)
        self.selection = BeamSelection(root.message)
        self._beams = [root]  # the member of each beam
        self._rows: dict[Request, TokenLogprobs] = {}  # of the members that wait for others
        self._num_started = 1

    def awaits_row(self, member: Request) -> bool:
        """Whether a member has a beam whose next tokens are not known yet."""
        return member in self._beams and member not in self._rows

    def note(self, member: Request, row: TokenLogprobs) -> bool:
        """Record the next tokens of a member; return whether those of all beams are known."""
        self._rows[member] = row
        return len(self._rows) == len(self._beams)

    def forget(self, member: Request) -> bool:
        """Forget the next tokens of a member, which is computed again; return whether it leaves.

        That is so if it has no beam.
        """
        self._rows.pop(member, None)
        leaves = member not in self._beams
        if leaves:
            self.members.remove(member)
        return leaves

    def select(self) -> list[Continuation]:
        """Select the beams of the next step; none if the search is over."""
        rows = [self._rows[member] for member in self._beams]
        self._rows = {}
        return self.selection.select(rows)

    def advance(
        self,
        continuations: Sequence[Continuation],
        kv: KVCacheManager,
        start: Callable[[Request], None],
    ) -> None:
        """Give each selected beam to a member. No step in flight may compute a member.

        Args:
            continuations: Beams and next tokens, as `select` returned them.
            kv: Block tables of the members.
            start: Function that gives a new member a slot.
        """
        sources = [self._beams[each.beam] for each in continuations]
        free = [member for member in self.members if member not in sources]
        beams: list[Request] = []
        for source, continuation in zip(sources, continuations, strict=True):
            member = source
            if source in beams:
                member = free.pop(0) if free else self._new_member(start)
                self._fork(source, member, kv)
            member.token_ids.append(continuation.token_id)
            beams.append(member)
        if self.root in free:  # it stays as long as the search
            self._fork(beams[0], self.root, kv)
            self.root.token_ids.append(continuations[0].token_id)
            free[free.index(self.root)], beams[0] = beams[0], self.root
        for member in free:
            kv.free(kv.detach_tables(member))
            member.token_ids, member.num_computed_tokens = [], 0
        self._beams = beams

    def output(self) -> EngineOutput:
        """Return the last output: the best hypotheses."""
        root, count = self.root, self.root.message.params.n
        hypotheses = self.selection.hypotheses(count)
        return EngineOutput(
            request_id=root.request_id,
            token_ids=[],
            finish_reason=hypotheses[0].finish_reason,
            num_cached_tokens=root.num_cached_tokens,
            hypotheses=hypotheses,
            started_s=root.started_s,
        )

    def _new_member(self, start: Callable[[Request], None]) -> Request:
        member = self.root.sibling(self._num_started)
        self._num_started += 1
        self.members.append(member)
        start(member)
        return member

    def _fork(self, source: Request, member: Request, kv: KVCacheManager) -> None:
        """Make a member continue the tokens before the last one of another."""
        num_computed = source.num_computed_tokens
        member.token_ids = source.token_ids[:num_computed]
        kv.fork(source, member)
        member.needs_assignment = True
