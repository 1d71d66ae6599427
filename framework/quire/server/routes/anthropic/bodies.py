"""Bodies of Anthropic's API, with quire's own fields, and the fields that are refused by name."""

from typing import Annotated, Any

import msgspec

from quire.server.wire.common_fields import SampledFields, about, no_effect
from quire.server.wire.fields import REFUSED, Refusal


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    """How the model may call the tools."""

    type: Annotated[str, about("auto, any, tool or none.")]
    name: Annotated[str | None, about("The tool that is called, with the type tool.")] = None
    disable_parallel_tool_use: Annotated[
        bool | None, about("Whether the answer has one call at most.")
    ] = None


class ThinkingConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the model reasons, for how many tokens, and whether that is shown."""

    type: Annotated[str, about("enabled, disabled or adaptive.")]
    budget_tokens: Annotated[int | None, about("Largest number of tokens of thinking.")] = None
    display: Annotated[
        str | None, about("Whether the answer has the thinking: summarized or omitted.")
    ] = None
    block_binding: Annotated[
        Any, no_effect("thinking blocks that are sent back are taken as they are.")
    ] = None


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The effort, and the schema that the text follows."""

    effort: Annotated[str | None, about("Variable of the chat template.")] = None
    format: Annotated[dict[str, Any] | None, about("The JSON schema that the text follows.")] = None
    task_budget: Annotated[Any, about("Not supported: send max_tokens.")] = None


CacheControl = Annotated[Any, no_effect("equal prefixes are shared; cache_salt separates them.")]
Client = Annotated[Any, no_effect("clients are known by their key.")]
Speed = Annotated[Any, no_effect("there is one speed.")]
Billing = Annotated[Any, no_effect("nothing is billed.")]


class MessagesBody(SampledFields, kw_only=True):
    """POST /v1/messages."""

    messages: list[dict[str, Any]]
    max_tokens: int
    system: Annotated[str | list[dict[str, Any]] | None, about("The system prompt.")] = None
    stop_sequences: Annotated[list[str] | None, about("Strings that end a message.")] = None
    tools: Annotated[list[dict[str, Any]] | None, about("Tools that the model may call.")] = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    metadata: Client = None
    user_profile_id: Client = None
    workspace_id: Client = None
    billing_policy: Billing = None
    cache_control: CacheControl = None
    service_tier: Annotated[Any, no_effect("there is one tier; priority orders requests.")] = None
    speed: Speed = None
    inference_geo: Annotated[Any, no_effect("this server is where it is.")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool | None, about("Default: true after a text of the assistant.")
    ] = None

    @property
    def completion_limit(self) -> int:
        """Maximum number of tokens of a completion."""
        return self.max_tokens


class CountTokensBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens: the fields of /v1/messages that the prompt depends on."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: Annotated[str | list[dict[str, Any]] | None, about("The system prompt.")] = None
    tools: Annotated[list[dict[str, Any]] | None, about("Tools that the model may call.")] = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    user_profile_id: Client = None
    workspace_id: Client = None
    billing_policy: Billing = None
    cache_control: CacheControl = None
    speed: Speed = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


AnyBody = MessagesBody | CountTokensBody

ACCEPTED = frozenset(
    {
        "metadata", "user_profile_id", "workspace_id", "billing_policy", "cache_control",
        "service_tier", "speed", "inference_geo",
    }
)  # fmt: skip

_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_ONE = "send several requests; a message has one completion"
_LOGPROBS = "messages have no log probabilities; /v1/chat/completions has them"
_FALLBACK = "this server has the model that it has; leave it out"
_BEAMS = "/v1/chat/completions has beam searches"

REFUSED_OF_MESSAGES: dict[str, Refusal] = REFUSED | {
    # Anthropic's
    "container": Refusal("this server runs no code; offer a tool that does"),
    "mcp_servers": Refusal("send their tools as tools, and call them from the client", ([],)),
    "context_management": Refusal(
        "remove from messages what the model shall not see", ({}, {"edits": []}, _KEEPS_ALL)
    ),
    "compaction": Refusal("shorten messages in the client"),
    "diagnostics": Refusal("usage has cache_read_input_tokens", ({},)),
    "fallbacks": Refusal(_FALLBACK, ([],)),
    "fallback_credit_token": Refusal(_FALLBACK),
    "thread": Refusal("send all messages of the conversation"),
    "output_format": Refusal('send output_config: {"format": {"type": "json_schema", ...}}'),
    "betas": Refusal("send them in the header anthropic-beta", ([],)),
    "max_tokens_to_sample": Refusal("send max_tokens"),
    # of a chat
    "stop": Refusal("send stop_sequences", ([], "")),
    "max_completion_tokens": Refusal("send max_tokens"),
    "response_format": Refusal("send output_config", ({"type": "text"},)),
    "reasoning_effort": Refusal("send output_config.effort"),
    "include_reasoning": Refusal('send thinking with display: "omitted"', (True,)),
    "parallel_tool_calls": Refusal(
        "send tool_choice with disable_parallel_tool_use: true", (True,)
    ),
    "stream_options": Refusal("the last events of a stream have the token counts", ({},)),
    "n": Refusal(_ONE, (1,)),
    "best_of": Refusal(_ONE, (1,)),
    "logprobs": Refusal(_LOGPROBS, (False,)),
    "top_logprobs": Refusal(_LOGPROBS, (0,)),
    "prompt_logprobs": Refusal(_LOGPROBS),
    "logprob_token_ids": Refusal(_LOGPROBS, ([],)),
    "return_token_ids": Refusal("/v1/chat/completions has it", (False,)),
    "return_tokens_as_token_ids": Refusal("/v1/chat/completions has it", (False,)),
    "use_beam_search": Refusal(_BEAMS, (False,)),
    "length_penalty": Refusal(_BEAMS, (1,)),
    "early_stopping": Refusal(_BEAMS, (False,)),
    "request_id": Refusal("send the header X-Request-Id"),
}
