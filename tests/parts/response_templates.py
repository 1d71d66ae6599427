"""Response templates of several shapes, each with completions."""

FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
START = "<|im_start|>assistant\n"

HERMES = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": START,
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>"},
    },
}
HEADER = {
    "start_anchor_pattern": r"<\|turn>(?:model|bot)\n",
    "fields": {
        "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "repeats": True,
            "transform": FUNCTION,
        },
        "content": {"close": ["<turn|>", "<|tool_response>"]},
    },
}
TAGS = {
    "start_anchor": START,
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
            "close_pattern": r"\s*</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": FUNCTION,
        },
        "content": {"close": "<|im_end|>"},
    },
}
LINES = {
    "start_anchor": "<bot>",
    "fields": {
        "thinking": {"open": ["[THINK]", "[THINKING]"], "close": "[/THINK]"},
        "content": {"open": "[SAY]", "close_pattern": r"\[/SAY\]|(?=\[CALL)"},
        "tool_calls": {
            "open_pattern": r"\[CALL (?P<name>[a-z]+)\]\n",
            "close": "[/CALL]",
            "content": "kv-lines",
            "content_args": {"kv_sep": "="},
            "repeats": True,
            "transform": FUNCTION,
        },
    },
}
LIST = {
    "start_anchor": START,
    "fields": {
        "content": {},
        "thinking": {"open": "<think>", "close": "</think>", "repeats": True, "join": "\n\n"},
        "tool_calls": {
            "open": "<calls>",
            "close": "</calls>",
            "content": "python-call-list",
            "transform_each": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
        },
    },
}

TOOLS = [
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "wet": {"type": "boolean"},
                "tags": {"type": "array"},
            },
        },
    }
]

# Template, prompt, completion.
CASES = {
    "json": (
        HERMES,
        START,
        "<think>\nHm, <tool_call> no.\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "find", "arguments": {"city": "Oslo", "days": "3"}}\n</tool_call>'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call><|im_end|>',
    ),
    "json behind thinking in the prompt": (
        HERMES,
        f"<|im_start|>user\nHi<|im_end|>{START}<think>\n",
        'So.\n</think>\n<tool_call>{"name": "now", "arguments": {"a": [1, {"b": null}]}}',
    ),
    "text only": (HERMES, START, "  2 < 3, and </think> is text. "),
    "header": (
        HEADER,
        "<|turn>model\n",
        "<|channel>thought\nHm<channel|>Now:"
        '<|tool_call>call:find{city:<|"|>Os"lo<|"|>,days:3,"tags":["a:b",{x:true}]}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|><|tool_response>",
    ),
    "tags": (
        TAGS,
        f"{START}<think>\n",
        "Hm\n</think>\n\n<tool_call>\n<function=find>\n"
        "<parameter=city>\nOslo <a>\nx\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=tags>\n[1, 2]\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call><function=now></function></tool_call><|im_end|>",
    ),
    "lines": (
        LINES,
        "<bot>",
        "[THINKING] Hm [/THINK]lost[SAY] Look: [CALL find]\ncity = Oslo\n\ndays= 4\nwet=TRUE\n"
        "[/CALL][CALL now]\n[/CALL]",
    ),
    "lines without an end": (LINES, "<bot>[SAY]", "Look: [x] [SA"),
    "list": (
        LIST,
        START,
        "<think>One</think><think>Two</think>"
        "<calls>[find(city='Os\\'lo', days=2, tags=[True, None]), now()]</calls>",
    ),
}
