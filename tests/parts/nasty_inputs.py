"""Completions that broke parsers of others, for each family that they apply to.

The numbers are those of the list in `tool_formats`, part 6; most have issues of other engines as
their source. Truncated completions (15) and markers spelled by ordinary tokens (22) are splits of
all of these. Reasoning and calls in one text (5, 6) have their own tests, for every family.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from written_calls import DSML, SPELLINGS, Call, written

from quire.testing.tool_parsing import ToolSample

JSON_FAMILIES = (
    "hermes", "granite4", "ernie45", "longcat", "xlam", "internlm", "llama3_json", "phi4_mini_json",
    "granite", "jamba", "hunyuan_a13b", "gigachat3", "apriel", "minimax", "nemotron_json",
    "granite_20b_fc",
)  # fmt: skip
PYTHON_FAMILIES = ("pythonic", "llama4_pythonic", "olmo3", "lfm2")
QWEN_TAGS = {"qwen3_coder": "tool_call", "qwen3_xml": "tool_call", "seed_oss": "seed:tool_call"}
GLM_FAMILIES = ("glm45", "glm47", "hy_v4")
DSML_SECTIONS = {"deepseek_v32": "function_calls", "deepseek_v4": "tool_calls"}


@dataclass(frozen=True, slots=True, eq=False)
class NastyInput:
    """A completion, and what it gives.

    Attributes:
        number: Number in the list.
        family: Name of the family.
        text: Text that the model generated.
        content: Expected content.
        calls: Expected calls.
    """

    number: int
    family: str
    text: str
    content: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def sample(self) -> ToolSample:
        """The same for the kit."""
        calls = tuple((name, written(arguments)) for name, arguments in self.calls)
        return ToolSample(self.text, self.content, calls)


def nasty_inputs(family: str) -> list[NastyInput]:
    """Return all inputs for a family."""
    own = (each for each in _SPECIFIC if each.family == family)
    return [*_of_every_family(family), *own]


def _of_every_family(family: str) -> Iterator[NastyInput]:
    spelling = SPELLINGS[family]

    def said(number: int, *calls: Call, lead: str = "") -> NastyInput:
        return NastyInput(
            number, family, lead + spelling.write(calls), spelling.content(lead), calls
        )

    yield said(1, ("ping", {}))
    if not spelling.is_single:
        yield said(1, ("ping", {}), ("find", {"query": "Oslo"}))
        yield said(3, ("find", {"query": "a"}), ("find", {"query": "b", "limit": 2}), ("ping", {}))
    if not spelling.is_bare:
        yield said(4, ("find", {"query": "Oslo"}), lead="Let me look.\n")
        quoted = f"The marker {_opener(family)} begins a call.\nThen it ends. "
        yield NastyInput(7, family, quoted, quoted)
    for value in ("a ] b", "}} {", ") (", '"]', "'})", "<b>&amp;", "a, b=c", "x: {y}"):
        if not any(each in value for each in spelling.forbidden):
            yield said(9, ("find", {"query": value}))
    yield said(9, ("get_weather", {"city": "}])", "tags": ["]", "}", ")", '"', "'", ","]}))
    yield said(11, ("get_weather", {"city": "x", "place": {"a": {"b": {"c": [1, {"d": {}}]}}}}))
    yield said(
        12, ("get_weather", {"city": "true", "days": 1080, "ratio": 108.2, "detailed": True})
    )
    yield said(12, ("get_weather", {"detailed": False, "ratio": -0.5, "days": -12}))
    yield said(17, ("get_weather", {"city": "123", "note": None}))
    yield said(17, ("get_weather", {"city": "null", "note": "null and void"}))
    yield said(17, ("get_weather", {"city": "[1]", "note": "1"}))


def _opener(family: str) -> str:
    """Return the text of a family before the name of a call."""
    return SPELLINGS[family].write([("NAME", {})]).partition("NAME")[0].strip("{ \n")


def _objects() -> Iterator[NastyInput]:
    """Yield inputs of formats in which a call is one JSON object."""
    for family in JSON_FAMILIES:
        spelling = SPELLINGS[family]
        key = "parameters" if "parameters" in spelling.call("f", {}) else "arguments"
        before, after = spelling.open, spelling.close
        head, tail = spelling.call("f", {}).split(written({"name": "f", key: {}}))

        def said(
            number: int,
            inside: str,
            *calls: Call,
            before: str = before + head,
            after: str = tail + after,
            family: str = family,
        ) -> NastyInput:
            text = before + inside + after
            return NastyInput(number, family, text, "" if calls else text, calls)

        arguments = {"query": 'a "b" \\ c'}
        inside = written({"name": "find", key: written(arguments)})
        yield said(16, inside, ("find", arguments))
        yield said(18, f'{{"name": "find", "{key}": {{"limit": NaN}}}}')
        yield said(18, f'{{"name": "find", "{key}": {{"limit": Infinity}}}}')
        yield said(
            25, written({"name": "unknown", key: {"a": 1}}), *_unless_bare(family, "unknown")
        )


def _unless_bare(family: str, name: str) -> tuple[Call, ...]:
    """Return a call of a tool that is not there: without a marker it is no call."""
    return () if SPELLINGS[family].is_bare else ((name, {"a": 1}),)


def _prose() -> Iterator[NastyInput]:
    """Yield JSON and lists that are no calls, of formats without markers."""
    for family in ("llama3_json", "xlam"):
        for text in (
            '{"name": "Oslo", "population": 700000}',
            '{"name": "find"}',
            '{"name": "find", "about": {"query": "x"}}',
            '[{"name": "Oslo", "arguments": {"a": 1}}]',
            '{"type": "object", "properties": {"name": {"type": "string"}}}',
            "{}",
            "[]",
        ):
            yield NastyInput(25, family, text, text)
    for family in ("pythonic", "llama4_pythonic"):
        for text in (
            "[see below] for more",
            "[1, 2, 3]",
            "[Oslo](https://oslo.no)",
            "[]",
            "[x()",
            '"Oslo", he said.',
            "'t is x",
            "_x_",
        ):
            yield NastyInput(25, family, text, text)


def _python() -> Iterator[NastyInput]:
    """Yield calls in Python's notation."""
    values: list[tuple[str, dict[str, Any]]] = [
        ('query="a\nb"', {"query": "a\nb"}),
        ('query="C:\\\\dir\\\\"', {"query": "C:\\dir\\"}),
        ("query='it\\'s'", {"query": "it's"}),
        ("ratio=-74.0", {"ratio": -74.0}),
        ("point=(1, 2)", {"point": [1, 2]}),
        ("point=(1,)", {"point": [1]}),
        ('from="x", class="y"', {"from": "x", "class": "y"}),
        ("query=None, detailed=True", {"query": None, "detailed": True}),
        ("query=null, detailed=true", {"query": None, "detailed": True}),
        ('query="\\u00e9\\x41"', {"query": "\u00e9A"}),
        ('query="a" , limit = 3 ', {"query": "a", "limit": 3}),
        ("place={'a': [1, {'b': 2}]}", {"place": {"a": [1, {"b": 2}]}}),
    ]
    for family in PYTHON_FAMILIES:
        spelling = SPELLINGS[family]
        for arguments, value in values:
            text = spelling.open + f"find({arguments})" + spelling.close
            yield NastyInput(10, family, text, "", (("find", value),))
        for word in ("-nan", "-inf", "1e999"):
            text = spelling.open + f"find(ratio={word})" + spelling.close
            yield NastyInput(18, family, text, "", (("find", {"ratio": word}),))
        for arguments in (
            "query=__import__('os')",
            "query=a.b",
            "1",
            "**x",
        ):
            text = spelling.open + f"find({arguments})" + spelling.close
            yield NastyInput(10, family, text, text)


def _qwen_tags() -> Iterator[NastyInput]:
    for family, tag in QWEN_TAGS.items():
        begin, end = f"<{tag}>\n<function=find>\n", f"\n</function>\n</{tag}>"

        def said(
            number: int,
            inside: str,
            family: str = family,
            begin: str = begin,
            end: str = end,
            **arguments: Any,
        ) -> NastyInput:
            return NastyInput(number, family, begin + inside + end, "", (("find", arguments),))

        open_query, close = "<parameter=query>\n", "\n</parameter>"
        yield said(8, f"{open_query}a </parameter> b{close}", query="a </parameter> b")
        yield said(
            8,
            f"{open_query}<parameter=x>y</parameter> z{close}",
            query="<parameter=x>y</parameter> z",
        )
        yield said(13, f"{open_query}Oslo", query="Oslo")
        yield said(13, f"{open_query}Oslo{close}\n<parameter=limit>\n3", query="Oslo", limit=3)
        yield said(17, f"<parameter=limit>\nmany{close}", limit="many")
        yield said(18, f"<parameter=limit>\n1e999{close}", limit="1e999")
        yield said(18, f"<parameter=limit>\nNaN{close}", limit="NaN")
        yield said(9, f"{open_query}\n  two lines\n\n{close}", query="\n  two lines\n\n")
        bare = f"{begin}{open_query}Oslo{close}\n</function>".removeprefix(f"<{tag}>\n")
        yield NastyInput(19, family, bare, "", (("find", {"query": "Oslo"}),))


def _glm() -> Iterator[NastyInput]:
    for family in GLM_FAMILIES:

        def said(number: int, inside: str, family: str = family, **arguments: Any) -> NastyInput:
            text = f"<tool_call>find\n{inside}\n</tool_call>"
            return NastyInput(number, family, text, "", (("find", arguments),))

        yield NastyInput(2, family, "<tool_call>ping</tool_call>", "", (("ping", {}),))
        inline = "Pong: <tool_call>ping</tool_call> and on."
        yield NastyInput(2, family, inline, "Pong: and on.", (("ping", {}),))
        key = "<arg_key>query</arg_key>"
        yield said(8, f"{key}\n<arg_value>a </tool_call> b</arg_value>", query="a </tool_call> b")
        yield said(8, f"{key}\n<arg_value>a <arg_key>b</arg_value>", query="a <arg_key>b")
        yield said(14, f"{key}</arg_key>\n<arg_value>Oslo</arg_value>", query="Oslo")
        yield said(14, f"{key}Oslo</arg_value>", query="Oslo")
        yield said(9, f"{key}\n<arg_value>\n a \n</arg_value>", query="\n a \n")
        limit = "<arg_key>limit</arg_key>\n<arg_value>{}</arg_value>"
        for value in ("1e999", "NaN", "inf", "many"):
            yield said(18, limit.format(value), limit=value)


def _dsml() -> Iterator[NastyInput]:
    member = f'<{DSML}parameter name="query" string="true">Oslo</{DSML}parameter>'
    invoke = f'<{DSML}invoke name="find">\n{member}\n</{DSML}invoke>'
    calls = (("find", {"query": "Oslo"}),)
    for family, section in DSML_SECTIONS.items():
        begin, end = f"<{DSML}{section}>\n", f"\n</{DSML}{section}>"
        yield NastyInput(19, family, f"Hm.\n{invoke}", "Hm.", calls)
        yield NastyInput(19, family, f"Hm.\n{begin}{invoke}", "Hm.", calls)
        yield NastyInput(19, family, f"{begin}{invoke}{end}", "", calls)
        odd = f'<{DSML}parameter name="limit" string="false">3</{DSML}parameter>'
        both = f'{begin}<{DSML}invoke name="find">\n{member}\n{odd}\n</{DSML}invoke>{end}'
        yield NastyInput(19, family, both, "", (("find", {"query": "Oslo", "limit": 3}),))
        no_json = f'<{DSML}parameter name="limit" string="false">many</{DSML}parameter>'
        text = f'{begin}<{DSML}invoke name="find">\n{no_json}\n</{DSML}invoke>{end}'
        yield NastyInput(19, family, text, "", (("find", {"limit": "many"}),))


def _kimi() -> Iterator[NastyInput]:
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    argument = "<|tool_call_argument_begin|>"

    def said(header: str, name: str, between: str = "", **arguments: Any) -> NastyInput:
        call = (
            f"<|tool_call_begin|>{header}{argument}{between}{written(arguments)}<|tool_call_end|>"
        )
        return NastyInput(20, "kimi_k2", begin + call + end, "", ((name, arguments),))

    yield said("functions.get-weather:0", "get-weather", city="Oslo")
    yield said("functions.a.b-c:12", "a.b-c")
    yield said("\nfunctions.find:3\n", "find", query="x")
    yield said(" functions.find:3 ", "find", " ", query="x")
    yield said("find:0", "find", query="x")
    yield said("functions.find:0", "find", query="x" * 9_000)


def _mistral() -> Iterator[NastyInput]:
    calls = (("find", {"query": "x"}), ("ping", {}))
    lists = written([{"name": name, "arguments": arguments} for name, arguments in calls])
    yield NastyInput(16, "mistral", f"[TOOL_CALLS] {lists}", "", calls)
    yield NastyInput(16, "mistral", f"[TOOL_CALLS]{lists}", "", calls)
    named = (("find", {"name": "other", "arguments": {"a": 1}}),)
    yield NastyInput(16, "mistral", f"[TOOL_CALLS]find[ARGS]{written(named[0][1])}", "", named)
    yield NastyInput(23, "mistral", '[TOOL_CALLS] find [ARGS] {"query": "x"}', "", calls[:1])
    yield NastyInput(16, "mistral", '[TOOL_CALLS]find{"query": "x"}[TOOL_CALLS]ping{}', "", calls)


def _gemma() -> Iterator[NastyInput]:
    quote = '<|"|>'

    def said(inside: str, **arguments: Any) -> NastyInput:
        text = f"<|tool_call>call:find{{{inside}}}<tool_call|>"
        return NastyInput(24, "gemma4", text, "", (("find", arguments),))

    yield said(f"query:{quote}a, b: {{c}}{quote},limit:3", query="a, b: {c}", limit=3)
    yield said('tags:["a","b ]"]', tags=["a", "b ]"])
    yield said(f'"query":{quote}x{quote}', query="x")
    yield said(f"query:Oslo{quote}", query="Oslo")
    yield said("query:Oslo,limit:3", query="Oslo", limit=3)
    loop = "]" * 200
    yield NastyInput(24, "gemma4", loop, loop)


def _llama4() -> Iterator[NastyInput]:
    """Yield calls in JSON as the chat template of Llama 4 writes them, behind its markers."""
    call, calls = '{"name": "find", "parameters": {"query": "x"}}', (("find", {"query": "x"}),)
    empty = "<|python_start|><|python_end|>"
    said = "<|python_start|>I look it up.<|python_end|>"
    family = "llama4_pythonic"
    yield NastyInput(25, family, f"{empty}{call}", empty, calls)
    yield NastyInput(25, family, f"{said}{call}", said, calls)
    yield NastyInput(25, family, f"<|python_start|>{call}<|python_end|>", "", calls)
    yield NastyInput(25, family, call, "", calls)
    yield NastyInput(25, family, '{"name": "Oslo"} or {x}', '{"name": "Oslo"} or {x}')


def _harmony() -> Iterator[NastyInput]:
    body = '{"query": "x"}'
    calls = (("find", {"query": "x"}),)
    for header in (
        "<|channel|>commentary to=functions.find <|constrain|>json",
        "<|channel|>commentary to=functions.find",
        "<|channel|>commentary to=functions.find json",
        "<|channel|>commentary? to=functions.find <|constrain|>json",
        "<|channel|>analysis to=functions.find <|constrain|>json",
        "<|channel|>commentary<|channel|>commentary to=functions.find <|constrain|>json",
        "<|start|>assistant to=functions.find<|channel|>commentary <|constrain|>json",
        "<|start|>assistant<|channel|>commentary to=functions.find<|constrain|>json",
    ):
        for end in ("<|call|>", "<|end|>", ""):
            yield NastyInput(21, "openai", f"{header}<|message|>{body}{end}", "", calls)
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    call = f"<|start|>assistant<|channel|>commentary to=functions.find<|message|>{body}<|call|>"
    yield NastyInput(21, "openai", preamble + call, preamble, calls)
    for text in (
        "<|channel|>commentary to=functions.find <|constrain|>json",
        f"<|channel|>commentary to=functions.find<|message|>{body[:-1]}",
        "<|channel|>final<|message|>No call to=functions.find here.<|return|>",
        "<|channel|>final<|message|>Write <|channel|> then to=functions.find <|message|>{} ok",
        "<|channel|>final<|message|>A <|channel|>commentary to=functions.find<|message|>{}<|call|>",
    ):
        yield NastyInput(21, "openai", text, text)


_SPECIFIC = [
    *_objects(), *_prose(), *_python(), *_qwen_tags(), *_glm(), *_dsml(), *_kimi(), *_mistral(),
    *_gemma(), *_llama4(), *_harmony(),
]  # fmt: skip
