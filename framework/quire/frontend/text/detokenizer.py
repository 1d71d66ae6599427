"""One request's tokens become text here: characters are whole, and stop strings end it."""

from collections.abc import Sequence

from quire.frontend.text.stop_strings import StopStrings
from quire.frontend.text.tokenizer import Tokenizer
from quire.sampling_params import SamplingParams


class Detokenizer:
    """Incremental, and O(1) a token.

    The texts of all calls joined are the text of prompt and answer decoded together, without the
    prompt's own characters, up to the first stop string.

    Args:
        tokenizer: The model's.
        prompt_token_ids: What stands before the answer.
        params: Stop strings, min_tokens, and whether special tokens are shown.

    Attributes:
        has_stops: Whether text may end the answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._stream = tokenizer.text_stream(prompt_token_ids, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._num_free_tokens = max(0, params.min_tokens - 1)  # they cannot end the answer
        self.has_stops = bool(params.stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    def feed(self, token_id: int) -> str:
        """Take one token; return the text that is certain by now."""
        text = self._stream.feed(token_id)
        if self._num_free_tokens:
            self._num_free_tokens -= 1
            return text
        return self._stops.feed(text)

    def close(self) -> str:
        """Return what was held back; a stop string may still be found in it."""
        text = self._stops.feed(self._stream.close())
        return text + self._stops.close()
