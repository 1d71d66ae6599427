"""Incremental detokenization of one request, with stop strings."""

from collections.abc import Sequence

from quire.frontend.text.stop_strings import StopStrings
from quire.frontend.text.tokenizer import Tokenizer
from quire.sampling_params import SamplingParams


class Detokenizer:
    """An incremental detokenizer, O(1) per token.

    The joined texts of all calls are the text of prompt and completion decoded together, without
    the prompt's own characters, up to the first stop string.

    Args:
        tokenizer: Tokenizer of the model.
        prompt_token_ids: Token ids of the prompt.
        params: Stop strings, min_tokens, and whether special tokens are skipped.

    Attributes:
        has_stops: Whether there are stop strings.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._stream = tokenizer.text_stream(prompt_token_ids, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._num_unchecked_tokens = max(0, params.min_tokens - 1)  # not searched for stop strings
        self.has_stops = bool(params.stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that is certain by now."""
        text = self._stream.feed(token_id)
        if self._num_unchecked_tokens:
            self._num_unchecked_tokens -= 1
            return text
        return self._stops.feed(text)

    def close(self) -> str:
        """Return the text held back; a stop string may still be found in it."""
        text = self._stops.feed(self._stream.close())
        return text + self._stops.close()
