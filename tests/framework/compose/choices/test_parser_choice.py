"""`auto` takes the parser of the family that the chat template and the architecture tell."""

import pytest

from quire.compose.choices.parser_choice import ParsedModel, choose_parser

BAR = "\uff5c"
DEEPSEEK = f"<{BAR}Assistant{BAR}><think></think>"


@pytest.mark.parametrize(
    ("architecture", "template", "name"),
    [
        ("Qwen3ForCausalLM", "<think>", "qwen3"),
        ("Qwen2ForCausalLM", DEEPSEEK, "deepseek_r1"),
        ("DeepseekV3ForCausalLM", DEEPSEEK, "deepseek_r1"),
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
