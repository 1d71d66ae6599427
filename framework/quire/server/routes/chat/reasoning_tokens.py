"""Number of tokens of the reasoning in a completion."""

from collections.abc import Sequence
from functools import partial

from quire.frontend.async_frontend import AsyncFrontend


async def num_reasoning_tokens(frontend: AsyncFrontend, texts: Sequence[str], most: int) -> int:
    """Return the number of tokens of the reasoning's text, without its marks.

    Args:
        frontend: Frontend that serves the model.
        texts: Text of each reasoning.
        most: Number of tokens of all completions.
    """
    num_tokens = 0
    for text in filter(None, texts):
        encode = partial(frontend.tokenizer.encode, text, add_special_tokens=False)
        num_tokens += len(await frontend.lanes.run(len(text), encode))
    return min(num_tokens, most)
