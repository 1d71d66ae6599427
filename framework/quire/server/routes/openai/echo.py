"""The option `echo`: the text of the prompt before the completion, and its log probabilities.

The text is sent at once; the log probabilities follow. A client finds a token in the text by its
offset, so offsets refer to the text that is shown: a special token that it lacks takes no room.
"""

from quire.frontend.intake.prompt import EncodedPrompt
from quire.outputs import PromptLogprobs
from quire.server.wire.openai_logprobs import (
    TokenSpelling,
    append_position,
    num_characters,
    position_of,
)
from quire.server.wire.protocol import CompletionLogprobs


class Echo:
    """Text and log probabilities of one echoed prompt.

    Args:
        prompt: Encoded prompt; the text of one given as token ids is decoded.
        spelling: How tokens are shown.
        num_top: Number of candidates to show per position, beside the prompt's own token.
    """

    def __init__(self, prompt: EncodedPrompt, spelling: TokenSpelling, num_top: int) -> None:
        tokenizer = spelling.tokenizer
        self.text = tokenizer.decode(prompt.token_ids) if prompt.text is None else prompt.text
        self._first_token_id = prompt.token_ids[0]
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._num_top = num_top
        self._octets = self.text.encode()
        self._end = 0  # of the tokens so far, in bytes of the text
        self._num_characters = 0

    def logprobs(self, rows: PromptLogprobs) -> CompletionLogprobs:
        """Return the log probabilities of the next prompt tokens."""
        shown = CompletionLogprobs([], [], [], [])
        for row in rows:
            offset = self._num_characters
            if row is None:  # the first token: nothing predicts it
                shown.tokens.append(self._spelling.name(self._first_token_id))
                shown.token_logprobs.append(None)
                shown.top_logprobs.append(None)
                shown.text_offset.append(offset)
                self._advance(self._first_token_id)
            else:
                position = position_of(row, self._num_top, self._spelling)
                append_position(shown, position, offset, self._spelling)
                self._advance(next(iter(row)))
        return shown

    def _advance(self, token_id: int) -> None:
        start, octets = self._end, self._tokenizer.token_bytes(token_id)
        if self._octets.startswith(octets, start):
            self._end += len(octets)
        elif token_id not in self._tokenizer.special_token_ids:  # its text was normalized
            self._end += len(octets.lstrip(b" ") if start == 0 else octets)
        self._num_characters += num_characters(self._octets[start : self._end])
