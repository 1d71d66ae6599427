"""All generations of one request that has several, as metrics, traces and logs read them."""

from quire.messages import CompletedRequest
from quire.sampling_params import SamplingParams
from quire.server.routes.generation import Generation
from quire.server.wire.protocol import CachedTokens, Usage


class ObservedGenerations:
    """One `ObservedGeneration` of several.

    Args:
        first: The first of them, whose model and parameters are shown.
    """

    def __init__(self, first: Generation) -> None:
        self._all = [first]

    def add(self, generation: Generation) -> None:
        """Add a further one."""
        self._all.append(generation)

    def release(self) -> None:
        """Release the reservations of all. May be called twice."""
        for generation in self._all:
            generation.release()

    @property
    def model(self) -> str:
        """Name of the model or the adapter of the first."""
        return self._all[0].model

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters of the first."""
        return self._all[0].params

    @property
    def records(self) -> list[CompletedRequest]:
        """Records of the requests to the engine that have ended."""
        return [record for generation in self._all for record in generation.records]

    def usage(self) -> Usage:
        """Return the token counts of all."""
        usages = [generation.usage() for generation in self._all]
        return Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(usage.total_tokens for usage in usages),
            CachedTokens(sum(usage.prompt_tokens_details.cached_tokens for usage in usages)),
        )
