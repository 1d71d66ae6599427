"""Every field that OpenAI and vLLM document is in the table of its route, once."""

import pytest
from anthropic.types import message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.field_tables import FIELD_TABLES

TABLES = {table.operation: table for table in FIELD_TABLES}
CHAT, COMPLETIONS = "POST /v1/chat/completions", "POST /v1/completions"
RESPONSES, MESSAGES = "POST /v1/responses", "POST /v1/messages"

VLLM_SAMPLING = [
    "use_beam_search",
    "top_k",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "repetition_detection",
    "watermarking",
    "thinking_token_budget",
    "mm_payload",
    "return_mm_kwargs",
    "add_special_tokens",
    "structured_outputs",
    "response_format",
    "priority",
    "request_id",
    "session_id",
    "cache_salt",
    "stream_interval",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "return_token_offsets",
    "return_prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "logits_processors",
    "routed_experts_prompt_start",
]
VLLM_CHAT = [
    "reasoning_effort",
    "include_reasoning",
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "return_mm_kwargs",
]
VLLM_MESSAGES = [
    "mm_payload",
    "return_mm_kwargs",
    "cache_salt",
    "watermarking",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
]
VLLM_RESPONSES = [
    "include_reasoning",
    "mm_payload",
    "logit_bias",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "request_id",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "chat_template",
    "chat_template_kwargs",
    "priority",
    "cache_salt",
    "enable_response_messages",
    "previous_input_messages",
    "structured_outputs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "ignore_eos",
    "kv_transfer_params",
    "vllm_xargs",
]
VLLM_TEMPLATE = [
    "model",
    "messages",
    "add_generation_prompt",
    "return_token_strs",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "tools",
]


def published(module):
    """Return the fields of the parameters that openai's client takes."""
    kinds = (
        module.CompletionCreateParamsNonStreaming,
        module.CompletionCreateParamsStreaming,
    )
    return sorted(
        {name for kind in kinds for name in kind.__required_keys__ | kind.__optional_keys__}
    )


def published_of_messages():
    """Return the fields of the parameters that anthropic's client takes."""
    params = message_create_params.MessageCreateParamsStreaming
    return sorted(params.__required_keys__ | params.__optional_keys__)


def published_of_responses():
    """Return the same of /v1/responses."""
    return sorted(
        response_create_params.ResponseCreateParamsNonStreaming.__annotations__
        | response_create_params.ResponseCreateParamsBase.__annotations__
    )


DOCUMENTED = {
    CHAT: [*published(chat_create_params), *VLLM_SAMPLING, *VLLM_CHAT],
    COMPLETIONS: [
        *published(completion_create_params), *VLLM_SAMPLING, "echo", "prompt_embeds",
    ],
    RESPONSES: [*published_of_responses(), *VLLM_RESPONSES],
    MESSAGES: [*published_of_messages(), *VLLM_MESSAGES],
    "POST /tokenize": [*VLLM_TEMPLATE, "prompt"],
    "POST /detokenize": ["model", "tokens"],
}  # fmt: skip


@pytest.mark.parametrize("operation", DOCUMENTED)
def test_each_documented_field_is_honoured_without_effect_or_refused(operation):
    names = [row.name for row in TABLES[operation].rows()]
    top = {name.partition(".")[0] for name in names}
    assert sorted(set(DOCUMENTED[operation]) - top) == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("table", FIELD_TABLES, ids=lambda table: table.operation)
def test_each_field_says_what_it_means_or_the_way_out(table):
    assert [row.name for row in table.rows() if not row.text] == []


def test_each_operation_with_a_body_has_a_table(frontend):
    app = create_app(frontend, ServerSettings(admin_key=("k" * 32,)), list)
    bodies = {f"{o.method} {o.path}": o.body for o in app.operations if o.body is not None}
    assert {table.operation: table.body for table in FIELD_TABLES} == bodies
