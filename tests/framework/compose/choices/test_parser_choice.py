"""`auto` takes the parser of the family that the chat template and the architecture tell."""

from dataclasses import replace

import pytest

from quire.compose.choices.parser_choice import ParsedModel, choose_parser
from quire.plugins.loading import Registries

BAR = "\uff5c"
DEEPSEEK = f"<{BAR}Assistant{BAR}><think></think>"
DEEPSEEK_SPLIT = f"content.split('</think>')[-1] <{BAR}Assistant{BAR}>"


@pytest.mark.parametrize(
    ("architecture", "template", "name"),
    [
        ("Qwen3ForCausalLM", "<think>", "qwen3"),
        ("Qwen2ForCausalLM", DEEPSEEK, "deepseek_r1"),
        ("DeepseekV3ForCausalLM", DEEPSEEK, "deepseek_r1"),
        ("DeepseekV3ForCausalLM", DEEPSEEK_SPLIT, "deepseek_r1"),
        ("Qwen3ForCausalLM", DEEPSEEK_SPLIT, "deepseek_r1"),
        ("DeepseekV3ForCausalLM", f"{DEEPSEEK_SPLIT}{{% if thinking %}}", "deepseek_v3"),
        ("DeepseekV3ForCausalLM", f"{DEEPSEEK}{{% if thinking %}}", "deepseek_v3"),
        ("DeepseekV3ForCausalLM", "<|im_middle|><think>", "kimi_k2"),
        ("Glm4MoeForCausalLM", "<think>", "glm45"),
        ("MiniMaxM2ForCausalLM", "<think>", "minimax_m2"),
        ("HunYuanMoEV1ForCausalLM", "<think>", "hunyuan_a13b"),
        ("Ernie4_5_MoeForCausalLM", "<think>", "ernie45"),
        ("Olmo3ForCausalLM", "<think>", "olmo3"),
        ("SeedOssForCausalLM", "<seed:think>", "seed_oss"),
        ("Gemma4ForCausalLM", "<|channel>thought", "gemma4"),
        ("MistralForCausalLM", "[THINK]", "mistral"),
        ("GraniteForCausalLM", "Here is my thought process:", "granite"),
        ("GptOssForCausalLM", "<|channel|>analysis<|message|>", "openai_gptoss"),
        ("AcmeForCausalLM", "<think>", "think_tags"),
        ("LlamaForCausalLM", "Hello", None),
    ],
)
def test_auto_takes_the_familys_reasoning_parser(quire_registries, architecture, template, name):
    model = ParsedModel(architecture, template)
    choice = choose_parser(quire_registries.reasoning_parsers, "auto", model)
    assert (None if choice is None else choice.name) == name


LLAMA3 = """ipython {"name": ' + name + '", "parameters": ' + arguments <|python_tag|>"""
LLAMA4 = f"<|python_start|><|python_end|>{LLAMA3}"
GLM = "<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("architecture", "template", "name"),
    [
        ("LlamaForCausalLM", LLAMA3, "llama3_json"),
        ("Llama4ForConditionalGeneration", LLAMA4, "llama4_pythonic"),
        ("Qwen2ForCausalLM", "<tool_call>", "hermes"),
        ("GraniteMoeHybridForCausalLM", "<tool_call>", "granite4"),
        ("GraniteForCausalLM", "<|tool_call|>", "granite"),
        ("Phi3ForCausalLM", "<|tool|> <|/tool|>", "phi4_mini_json"),
        ("Phi3ForCausalLM", "functools[{", "phi4_mini_json"),
        ("MistralForCausalLM", "in <tool_call></tool_call> tags: <tool_calls>[{", "apriel"),
        ("JambaForCausalLM", "<tool_calls>[{", "jamba"),
        ("HunYuanMoEV1ForCausalLM", "<tool_calls>[{", "hunyuan_a13b"),
        ("MiniMaxM1ForCausalLM", "<tool_calls>\n", "minimax"),
        ("Glm4MoeForCausalLM", GLM, "glm45"),
        ("Glm4MoeForCausalLM", GLM.replace("\n", ""), "glm47"),
        ("HunYuanV3ForCausalLM", f"<tool_calls>{GLM}<tool_sep>", "hy_v3"),
        ("HunYuanV4ForCausalLM", f"<tool_calls>{GLM}", "hy_v4"),
        ("DeepseekV32ForCausalLM", f"<{BAR}DSML{BAR}function_calls>", "deepseek_v32"),
        ("DeepseekV4ForCausalLM", f"<{BAR}DSML{BAR}tool_calls>", "deepseek_v4"),
        ("DeepseekV4ForCausalLM", f"d = '{BAR}DSML{BAR}' '<' + d + 'tool_calls>'", "deepseek_v4"),
        ("Qwen3MoeForCausalLM", "<tool_call><function=f><parameter=k>", "qwen3_coder"),
        ("MiMoV2FlashForCausalLM", "<tool_call><function=f><parameter=k>", "mimo"),
        ("Lfm2ForCausalLM", "<|tool_list_start|>", "lfm2"),
        ("GPTBigCodeForCausalLM", "<function_call>", "granite_20b_fc"),
        ("NemotronHForCausalLM", "<TOOLCALL>[", "nemotron_json"),
        ("ApertusForCausalLM", "<|tools_prefix|>[", "apertus"),
    ],
)  # fmt: skip
def test_auto_takes_the_familys_tool_parser(quire_registries, architecture, template, name):
    model = ParsedModel(architecture, template)
    choice = choose_parser(quire_registries.tool_parsers, "auto", model)
    assert (None if choice is None else choice.name) == name


def with_capabilities(registries, **changes):
    """Return the tool parsers with other capabilities of some."""
    parsers = Registries().tool_parsers
    for entry in registries.tool_parsers.offers():
        capabilities = replace(entry.capabilities, **changes.get(entry.name, {}))
        parsers.accept([replace(entry, capabilities=capabilities)])
    return parsers


def test_of_one_priority_the_parser_with_more_markers_is_taken(quire_registries):
    parsers = with_capabilities(
        quire_registries,
        kimi_k2={"template_markers": ("<a>",)},
        step3={"template_markers": ("<a>", "<b>")},
    )
    choice = choose_parser(parsers, "auto", ParsedModel("X", "<a><b>"))
    assert choice.name == "step3"
    reasons = {each.name: each.reason for each in choice.rejected}
    assert reasons["kimi_k2"].startswith("step3 is more specific")


def test_makers_of_files_and_second_names_are_no_alternatives(quire_registries):
    parsers = quire_registries.tool_parsers
    choice = choose_parser(parsers, "auto", ParsedModel("X", "<tool_call>"))
    rejected = {each.name for each in choice.rejected}
    aliases = {"qwen", "deepseekv3", "gpt-oss", "granite-20b-fc"}
    assert aliases <= {*parsers}
    assert rejected >= {"openai", "deepseek_v3", "granite_20b_fc", "response_template"}
    assert not rejected & {".toml", *aliases}
    by_name = choose_parser(parsers, "hermes", ParsedModel("X", ""))
    assert ".toml" not in {each.name for each in by_name.rejected}


def test_a_parser_of_its_own_that_auto_cannot_choose_is_named(quire_registries):
    parsers = with_capabilities(quire_registries, step3={"template_markers": ()})
    choice = choose_parser(parsers, "auto", ParsedModel("X", "<tool_call>"))
    reasons = {each.name: each.reason for each in choice.rejected}
    assert reasons["step3"] == "it declares no markers for auto"


def test_a_choice_by_the_alphabet_says_so(quire_registries):
    equal = {"template_markers": ("<a>",)}
    parsers = with_capabilities(quire_registries, kimi_k2=equal, step3=equal)
    choice = choose_parser(parsers, "auto", ParsedModel("X", "<a>"))
    assert choice.name == "kimi_k2"
    assert "step3 would do as well" in choice.reason
    reasons = {each.name: each.reason for each in choice.rejected}
    assert reasons["step3"] == "kimi_k2 ranks the same, and its name is first"


def test_one_of_several_sets_of_markers_is_enough_and_an_excluded_one_too_much(quire_registries):
    declared = {"alternative_markers": (("<a>", "<b>"), ("<c>",)), "excluded_markers": ("<no>",)}
    parsers = with_capabilities(quire_registries, kimi_k2=declared)

    def chosen(template):
        choice = choose_parser(parsers, "auto", ParsedModel("X", template))
        return None if choice is None else choice.name

    assert [chosen(text) for text in ("<a><b>", "<c>", "<a>", "<c><no>", "")] == [
        "kimi_k2", "kimi_k2", None, None, None,
    ]  # fmt: skip
