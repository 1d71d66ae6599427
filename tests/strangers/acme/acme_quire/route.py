"""Route that continues a text once for each of several seeds, in full or as a stream."""

from typing import Annotated

import msgspec

from quire import SamplingParams
from quire.errors import InvalidRequestError
from quire.interfaces.http_route import HTTPRoute


class ContinueBody(msgspec.Struct, kw_only=True):
    """POST /acme/continue."""

    text: str
    seeds: Annotated[list[int], msgspec.Meta(min_length=1, max_length=8)]
    max_tokens: int = 16
    stream: bool = False


class Continued(msgspec.Struct):
    """A continuation, or a piece of one."""

    seed: int
    text: str


class Continuations(msgspec.Struct):
    """All continuations of a text."""

    continuations: list[Continued]
    num_tokens: int


class ContinueText(HTTPRoute):
    """Continue a text with each of several seeds."""

    body = ContinueBody
    response = Continuations
    event = Continued

    async def respond(self, request):
        """Return the continuations, or their pieces one after the other."""
        body = request.body
        if not body.text.strip():
            raise InvalidRequestError("text is empty; send some words", param="text")
        completions = [(seed, self._completion(request, seed)) for seed in body.seeds]
        if body.stream:
            return self._pieces(completions)
        texts = [Continued(seed, (await each.whole())[0].text) for seed, each in completions]
        counts = [each.token_counts.num_completion_tokens for _, each in completions]
        return Continuations(texts, sum(counts))

    def _completion(self, request, seed):
        params = SamplingParams(max_tokens=request.body.max_tokens, temperature=1.5, seed=seed)
        return request.generate(request.body.text, params)

    async def _pieces(self, completions):
        for seed, completion in completions:
            async for piece in completion:
                if piece.text:
                    yield Continued(seed, piece.text)
