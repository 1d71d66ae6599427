"""How each family of models writes calls, by hand from its published format: an independent writer.

`tool_formats` of the families name their sources. A family that is registered and is not here fails
the tests, so that none is forgotten.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Call = tuple[str, dict[str, Any]]

TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "ratio": {"type": "number"},
                "detailed": {"type": "boolean"},
                "place": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    },
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        },
    },
    {"name": "ping", "parameters": {"type": "object", "properties": {}}},
]


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """Spelling of the calls of a family.

    Attributes:
        call: Function that writes a call.
        open: Text before the first call.
        between: Text between two calls.
        close: Text after the last call.
        is_bare: Whether calls stand alone at the front of a completion.
        is_single: Whether a completion has one call.
        keeps_blanks: Whether blanks between text and a call belong to the text.
        forbidden: Texts that no string of an argument may have, as nothing escapes them.
    """

    call: Callable[[str, dict[str, Any]], str]
    open: str = ""
    between: str = ""
    close: str = ""
    is_bare: bool = False
    is_single: bool = False
    keeps_blanks: bool = False
    forbidden: tuple[str, ...] = ()

    def content(self, text: str) -> str:
        """Return what remains of a text in front of calls."""
        return text if self.keeps_blanks else text.rstrip(" \n")

    def write(self, calls: Sequence[Call]) -> str:
        """Return the text of calls."""
        return self.open + self.between.join(self.call(*call) for call in calls) + self.close


def written(value: Any) -> str:
    """Return JSON as models write it."""
    return json.dumps(value, ensure_ascii=False)


def _wide(marker: str) -> str:
    """Return a marker with the bars of DeepSeek and Step3, which are wide."""
    return marker.replace("|", "\uff5c")


def _json_call(key: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: written({"name": name, key: arguments})


def _around(before: str, after: str, call: Callable[..., str]) -> Callable[..., str]:
    return lambda name, arguments: before + call(name, arguments) + after


def _plain(value: Any) -> str:
    """Return a value between tags: a string as it is, all else as JSON."""
    return value if isinstance(value, str) else written(value)


def _tagged(head: str, member: str, tail: str) -> Callable[[str, dict[str, Any]], str]:
    """Return a writer of tags; NAME, KEY and VALUE stand for what is written."""

    def write(name: str, arguments: dict[str, Any]) -> str:
        members = [
            member.replace("KEY", key)
            .replace("STRING", "true" if isinstance(value, str) else "false")
            .replace("VALUE", _plain(value))
            for key, value in arguments.items()
        ]
        return head.replace("NAME", name) + "".join(members) + tail

    return write


def _python_value(value: Any) -> str:
    """Return a Python literal; JSON's strings are ones."""
    if isinstance(value, dict):
        members = (f"{written(key)}: {_python_value(each)}" for key, each in value.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python_value, value)) + "]"
    return repr(value)


def _python_call(name: str, arguments: dict[str, Any]) -> str:
    members = (f"{key}={_python_value(value)}" for key, value in arguments.items())
    return f"{name}({', '.join(members)})"


def _brace_value(quote: str) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{write(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(write, value)) + "]"
        return written(value)

    return write


def _brace_call(quote: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: f"call:{name}{_brace_value(quote)(arguments)}"


def _with_arguments(head: str, tail: str = "") -> Callable[[str, dict[str, Any]], str]:
    """Return a writer of a header and JSON; NAME stands for the name."""
    return lambda name, arguments: head.replace("NAME", name) + written(arguments) + tail


def _qwen_tags(open_tag: str, close_tag: str) -> Spelling:
    member = "<parameter=KEY>\nVALUE\n</parameter>\n"
    call = _tagged(f"{open_tag}\n<function=NAME>\n", member, f"</function>\n{close_tag}")
    return Spelling(call, between="\n", forbidden=("</parameter>", "</function>", close_tag))


def _glm(head: str, between: str) -> Spelling:
    member = f"<arg_key>KEY</arg_key>{between}<arg_value>VALUE</arg_value>{between}"
    return Spelling(
        _tagged(f"<tool_call>NAME{head}", member, "</tool_call>"),
        between="\n",
        forbidden=("</arg_value>", "</tool_call>"),
    )


def _hunyuan(head: str) -> Spelling:
    return replace(_glm(head, "\n"), open="<tool_calls>\n", close="\n</tool_calls>")


HERMES = Spelling(_around("<tool_call>\n", "\n</tool_call>", _json_call("arguments")), between="\n")
QWEN = _qwen_tags("<tool_call>", "</tool_call>")
DSML = "\uff5cDSML\uff5c"
_DSML_MEMBER = f'<{DSML}parameter name="KEY" string="STRING">VALUE</{DSML}parameter>\n'


def _dsml(section: str) -> Spelling:
    return Spelling(
        _tagged(f'<{DSML}invoke name="NAME">\n', _DSML_MEMBER, f"</{DSML}invoke>"),
        open=f"<{DSML}{section}>\n",
        between="\n",
        close=f"\n</{DSML}{section}>",
        forbidden=(DSML,),
    )


SPELLINGS: dict[str, Spelling] = {
    "hermes": HERMES,
    "granite4": HERMES,
    "ernie45": HERMES,
    "longcat": Spelling(
        _around("<longcat_tool_call>", "</longcat_tool_call>", _json_call("arguments")),
        between="\n",
    ),
    "xlam": Spelling(_json_call("arguments"), "[", ", ", "]", is_bare=True),
    "internlm": Spelling(
        _json_call("parameters"),
        "<|action_start|><|plugin|>\n",
        close="<|action_end|>",
        is_single=True,
    ),
    "llama3_json": Spelling(_json_call("parameters"), between="; ", is_bare=True),
    "phi4_mini_json": Spelling(_json_call("arguments"), "functools[", ", ", "]"),
    "granite": Spelling(_json_call("arguments"), "<|tool_call|>[", ", ", "]"),
    "jamba": Spelling(_json_call("arguments"), "<tool_calls>[", ", ", "]</tool_calls>"),
    "apriel": Spelling(_json_call("arguments"), "<tool_calls>[", ", ", "]</tool_calls>"),
    "minimax": Spelling(_json_call("arguments"), "<tool_calls>\n", "\n", "\n</tool_calls>"),
    "nemotron_json": Spelling(_json_call("arguments"), "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "apertus": Spelling(
        lambda name, arguments: written({name: arguments}),
        "<|tools_prefix|>[", ", ", "]<|tools_suffix|>",
    ),
    "granite_20b_fc": Spelling(
        _around("<function_call> ", "", _json_call("arguments")), between="\n"
    ),
    "hunyuan_a13b": Spelling(_json_call("arguments"), "<tool_calls>[", ", ", "]</tool_calls>"),
    "gigachat3": Spelling(
        _json_call("arguments"), "<|message_sep|>\n\nfunction call<|role_sep|>\n", is_single=True
    ),
    "mistral": Spelling(_with_arguments("[TOOL_CALLS]NAME[ARGS]")),
    "deepseek_v3": Spelling(
        _with_arguments(
            _wide("<|tool▁call▁begin|>function<|tool▁sep|>NAME\n```json\n"),
            _wide("\n```<|tool▁call▁end|>"),
        ),
        open=_wide("<|tool▁calls▁begin|>"),
        between="\n",
        close=_wide("<|tool▁calls▁end|>"),
    ),
    "deepseek_v31": Spelling(
        _with_arguments(_wide("<|tool▁call▁begin|>NAME<|tool▁sep|>"), _wide("<|tool▁call▁end|>")),
        open=_wide("<|tool▁calls▁begin|>"),
        close=_wide("<|tool▁calls▁end|>"),
    ),
    "kimi_k2": Spelling(
        _with_arguments(
            "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
        ),
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
    ),
    "qwen3_coder": QWEN,
    "qwen3_xml": QWEN,
    "mimo": Spelling(
        _tagged(
            "<tool_call><function=NAME>", "<parameter=KEY>VALUE</parameter>",
            "</function></tool_call>",
        ),
        forbidden=("</parameter>", "</function>", "</tool_call>"),
    ),
    "seed_oss": _qwen_tags("<seed:tool_call>", "</seed:tool_call>"),
    "minimax_m2": Spelling(
        _tagged(
            '<invoke name="NAME">\n', '<parameter name="KEY">VALUE</parameter>\n', "</invoke>"
        ),
        open="<minimax:tool_call>\n",
        between="\n",
        close="\n</minimax:tool_call>",
        forbidden=("</parameter>", "</invoke>", "</minimax:tool_call>"),
    ),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "step3": Spelling(
        _tagged(
            _wide("<|tool_call_begin|>function<|tool_sep|><steptml:invoke name=\"NAME\">"),
            '<steptml:parameter name="KEY">VALUE</steptml:parameter>',
            _wide("</steptml:invoke><|tool_call_end|>"),
        ),
        open=_wide("<|tool_calls_begin|>"),
        between="\n",
        close=_wide("<|tool_calls_end|>"),
        forbidden=("</steptml:", _wide("<|")),
    ),
    "glm45": _glm("\n", "\n"),
    "glm47": _glm("", ""),
    "hy_v3": _hunyuan("<tool_sep>\n"),
    "hy_v4": _hunyuan("\n"),
    "pythonic": Spelling(_python_call, "[", ", ", "]", is_bare=True),
    "llama4_pythonic": Spelling(
        _python_call, "<|python_start|>[", ", ", "]<|python_end|>", is_bare=True
    ),
    "olmo3": Spelling(_python_call, "<function_calls>", "\n", "</function_calls>"),
    "lfm2": Spelling(_python_call, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "functiongemma": Spelling(
        _around("<start_function_call>", "<end_function_call>", _brace_call("<escape>")),
        forbidden=("<escape>",),
    ),
    "gemma4": Spelling(
        _around("<|tool_call>", "<tool_call|>", _brace_call('<|"|>')), forbidden=('<|"|>',)
    ),
    "openai": Spelling(
        _with_arguments(
            "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "<|call|>"
        ),
        between="<|start|>assistant",
        keeps_blanks=True,
    ),
}  # fmt: skip
