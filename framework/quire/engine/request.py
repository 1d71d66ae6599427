"""One request, as the engine sees it: its tokens, and how many of them are computed."""

from enum import Enum

from quire.messages import EngineRequest, FinishReason, SlotAssignment


class Status(Enum):
    """Where a request stands."""

    PREPARING = "preparing"  # its grammar is being compiled
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """A request in the engine.

    Invariant: `num_computed_tokens <= len(token_ids)`; while it runs, its block tables cover the
    computed tokens and those of the step in flight.
    """

    def __init__(self, message: EngineRequest, num_groups: int) -> None:
        self.message = message
        self.request_id = message.request_id
        self.token_ids = list(message.token_ids)
        self.num_prompt_tokens = len(message.token_ids)
        self.num_computed_tokens = 0
        self.block_ids: list[list[int]] = [[] for _ in range(num_groups)]
        self.slot: int | None = None
        self.status = Status.WAITING
        self.num_preemptions = 0
        self.is_thinking = message.thinking_end_token_id is not None  # its form has not begun

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens whose KV is not computed yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_total_tokens(self) -> int:
        """Prompt and answer together, at most."""
        return self.num_prompt_tokens + self.message.max_tokens

    @property
    def has_grammar(self) -> bool:
        """Whether its answer must follow a form."""
        return self.message.params.structured_outputs is not None

    def assignment(self) -> SlotAssignment:
        """Return the whole state of the request's slot, for the worker."""
        message, params = self.message, self.message.params
        if self.slot is None:
            raise RuntimeError(f"request {self.request_id} has no slot")
        return SlotAssignment(
            slot=self.slot,
            token_ids=list(self.token_ids),
            num_computed_tokens=self.num_computed_tokens,
            block_ids=[list(ids) for ids in self.block_ids],
            num_prompt_tokens=self.num_prompt_tokens,
            fields=message.fields,
            seed=message.seed,
            child=message.child,
            num_logprobs=params.logprobs,
            min_tokens=params.min_tokens,
            stop_token_ids=message.stop_token_ids,
            adapter=message.adapter,
        )

    def append(self, token_ids: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Take in drawn tokens, up to the one that ends the answer.

        Returns:
            The tokens taken, why the answer is over (None: it is not), and the stop token if one
            that the caller named ended it.
        """
        taken: list[int] = []
        for token_id in token_ids:
            self.token_ids.append(token_id)
            taken.append(token_id)
            if self._stops_at(token_id):
                named = token_id in self.message.params.stop_token_ids
                return taken, "stop", token_id if named else None
            if self.num_generated_tokens >= self.message.max_tokens:
                return taken, "length", None
        return taken, None, None

    def _stops_at(self, token_id: int) -> bool:
        is_long_enough = self.num_generated_tokens > self.message.params.min_tokens
        return is_long_enough and token_id in self.message.stop_token_ids
