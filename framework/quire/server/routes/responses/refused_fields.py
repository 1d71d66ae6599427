"""Fields that /v1/responses knows and does not support, with the way out."""

from quire.server.wire.fields import REFUSED, Refusal

_STORED = "they are stored by OpenAI; "
_MAX_TOKENS = Refusal("send max_output_tokens")
_TEXT_FORMAT = Refusal('send text: {"format": {"type": "json_schema", ...}}')

REFUSED_OF_RESPONSES: dict[str, Refusal] = REFUSED | {
    # OpenAI's
    "prompt": Refusal(f"{_STORED}write the prompt into instructions and input"),
    "conversation": Refusal(f"{_STORED}send previous_response_id, or all items as input"),
    "context_management": Refusal("nothing is compacted; send truncation, or fewer items", ([],)),
    "image": Refusal("this server reads and writes text only; leave it out"),
    "access_programs": Refusal("leave it out"),
    "background_options": Refusal("send background: true alone", ({},)),
    # of chats and completions
    "messages": Refusal("send input"),
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
    "max_new_tokens": _MAX_TOKENS,
    "response_format": _TEXT_FORMAT,
    "guided_json": _TEXT_FORMAT,
    "guided_json_object": Refusal('send text: {"format": {"type": "json_object"}}', (False,)),
    "json_schema": _TEXT_FORMAT,
    "reasoning_effort": Refusal('send reasoning: {"effort": ...}'),
    "verbosity": Refusal("leave it out: templates get variables by chat_template_kwargs"),
    "logprobs": Refusal('send include: ["message.output_text.logprobs"]', (False,)),
    "n": Refusal("a response has one completion; send several requests", (1,)),
    "prompt_logprobs": Refusal("/v1/chat/completions and /v1/completions have them"),
    "logprob_token_ids": Refusal("/v1/chat/completions and /v1/completions have them", ([],)),
    "use_beam_search": Refusal("/v1/chat/completions and /v1/completions have it", (False,)),
    # vLLM's
    "include_reasoning": Refusal("reasoning is an item of its own in output", (True,)),
    "previous_input_messages": Refusal("send all items as input", ([],)),
    "enable_response_messages": Refusal("/tokenize shows how messages are rendered", (False,)),
}
