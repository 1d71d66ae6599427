"""Table of the families: each architecture, the reader of its config.json, and its models.

Imports nothing heavy: a reader is imported when a model of the family is described.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues
from quire_models.media_models.media_table import MEDIA_BY_ARCHITECTURE
from quire_models.media_models.text_config import read_text_decoder, text_config, text_type
from quire_models.readers.missing_values import with_missing_values

if TYPE_CHECKING:
    from quire_models.decoder.options.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table.

    Attributes:
        architecture: Name in `architectures` of config.json.
        reader: Import string of the reader, below `quire_models.readers`.
        models: Models of the family, for people.
        traits: How the family differs from Llama, for people.
    """

    architecture: str
    reader: str
    models: str
    traits: str


FAMILIES = (
    Family(
        "LlamaForCausalLM",
        "llama:read_llama",
        "Llama 1 to 3.3 and its many descendants",
        "optional biases",
    ),
    Family(
        "SeedOssForCausalLM",
        "llama:read_seed_oss",
        "Seed-OSS",
        "biases of q, k and v",
    ),
    Family(
        "InternLM2ForCausalLM",
        "llama:read_internlm2",
        "InternLM 2 and 2.5",
        "q, k and v fused by key/value head",
    ),
    Family(
        "InternLM3ForCausalLM",
        "llama:read_internlm3",
        "InternLM 3",
        "optional biases",
    ),
    Family(
        "CwmForCausalLM",
        "llama:read_cwm",
        "CWM",
        "windows in 3 of 4 layers",
    ),
    Family(
        "MistralForCausalLM",
        "mistral:read_mistral",
        "Mistral, Mistral NeMo, Codestral",
        "optional window",
    ),
    Family(
        "MinistralForCausalLM",
        "mistral:read_ministral",
        "Ministral 8B",
        "windows by layer",
    ),
    Family(
        "Ministral3ForCausalLM",
        "mistral:read_ministral3",
        "Ministral 3",
        "yarn, queries scaled by position",
    ),
    Family(
        "Qwen2ForCausalLM",
        "qwen:read_qwen2",
        "Qwen 1.5, 2 and 2.5",
        "biases of q, k and v, windows in later layers",
    ),
    Family(
        "Qwen3ForCausalLM",
        "qwen:read_qwen3",
        "Qwen 3",
        "norms of q and k, windows in later layers",
    ),
    Family(
        "GemmaForCausalLM",
        "gemma:read_gemma",
        "Gemma 1",
        "norms around one, scaled embeddings, GELU",
    ),
    Family(
        "Gemma2ForCausalLM",
        "gemma:read_gemma2",
        "Gemma 2",
        "as Gemma 1; norms on both sides, windows by layer, soft caps",
    ),
    Family(
        "VaultGemmaForCausalLM",
        "gemma:read_vault_gemma",
        "VaultGemma",
        "as Gemma 2, with norms of inputs only",
    ),
    Family(
        "Gemma3ForCausalLM",
        "gemma:read_gemma3",
        "Gemma 3, text",
        "as Gemma 2 without caps of scores; norms of q and k, two rotary embeddings",
    ),
    Family(
        "Gemma4ForCausalLM",
        "gemma4:read_gemma4",
        "Gemma 4, text",
        "as Gemma 3; larger heads in full layers, norms of v, experts beside MLPs; in E2B and E4B "
        "inputs of layers and shared keys and values",
    ),
    Family(
        "GraniteForCausalLM",
        "granite:read_granite",
        "Granite 3",
        "factors on embeddings, scores, blocks and logits",
    ),
    Family(
        "SmolLM3ForCausalLM",
        "smollm3:read_smollm3",
        "SmolLM 3",
        "no rotary embedding in every fourth layer",
    ),
    Family(
        "GlmForCausalLM",
        "glm:read_glm",
        "GLM-4-9B (2024)",
        "neighbouring elements rotated, half of a head; fused gate and up",
    ),
    Family(
        "Glm4ForCausalLM",
        "glm:read_glm4",
        "GLM-4-0414",
        "as GLM-4-9B; norms on both sides",
    ),
    Family(
        "Phi3ForCausalLM",
        "phi:read_phi3",
        "Phi-3, 3.5, 4 and 4-mini",
        "fused projections, longrope, partial rotation, optional window",
    ),
    Family(
        "Ernie4_5ForCausalLM",
        "ernie:read_ernie",
        "ERNIE 4.5, dense",
        "neighbouring elements rotated",
    ),
    Family(
        "HeliumForCausalLM",
        "helium:read_helium",
        "Helium",
        "neighbouring elements rotated",
    ),
    Family(
        "NemotronForCausalLM",
        "nemotron:read_nemotron",
        "Nemotron-4, Minitron",
        "LayerNorm around one, squared ReLU, half of a head rotated",
    ),
    Family(
        "ArceeForCausalLM",
        "nemotron:read_arcee",
        "Arcee AFM",
        "squared ReLU without a gate",
    ),
    Family(
        "Jais2ForCausalLM",
        "nemotron:read_jais2",
        "Jais 2",
        "LayerNorm, squared ReLU, biases",
    ),
    Family(
        "CohereForCausalLM",
        "cohere:read_cohere",
        "Command R, Aya 23",
        "attention beside MLP, LayerNorm, neighbouring elements rotated, scaled logits",
    ),
    Family(
        "Cohere2ForCausalLM",
        "cohere:read_cohere2",
        "Command R7B, Command A",
        "as Command R; windows, no rotary embedding in full layers",
    ),
    Family(
        "StableLmForCausalLM",
        "stablelm:read_stablelm",
        "StableLM 2",
        "LayerNorm, a quarter of a head rotated, optionally attention beside MLP",
    ),
    Family(
        "PhiForCausalLM",
        "phi:read_phi",
        "Phi-1, 1.5 and 2",
        "attention beside MLP, LayerNorm, biases everywhere, half of a head rotated",
    ),
    Family(
        "Starcoder2ForCausalLM",
        "starcoder2:read_starcoder2",
        "StarCoder 2",
        "LayerNorm, biases, GELU without a gate, optional window",
    ),
    Family(
        "GPTNeoXForCausalLM",
        "gpt_neox:read_gpt_neox",
        "GPT-NeoX, Pythia",
        "attention beside MLP with norms of their own, q, k and v fused by head",
    ),
    Family(
        "GPTJForCausalLM",
        "gpt2:read_gptj",
        "GPT-J",
        "attention beside MLP, neighbouring elements rotated, bias of the head",
    ),
    Family(
        "GPT2LMHeadModel",
        "gpt2:read_gpt2",
        "GPT-2",
        "learned positions, LayerNorm, fused and transposed projections",
    ),
    Family(
        "GPTBigCodeForCausalLM",
        "gpt2:read_gpt_bigcode",
        "StarCoder 1, SantaCoder",
        "learned positions, LayerNorm, one key head",
    ),
    Family(
        "OPTForCausalLM",
        "opt:read_opt",
        "OPT, Galactica",
        "learned positions, ReLU; 350m: norms after sums, projected embeddings",
    ),
    Family(
        "MixtralForCausalLM",
        "mixtral:read_mixtral",
        "Mixtral",
        "experts: softmax of all, divided by the sum",
    ),
    Family(
        "Qwen2MoeForCausalLM",
        "qwen_moe:read_qwen2_moe",
        "Qwen 1.5 and 2 with experts",
        "experts: softmax; a shared expert with a gate, dense layers, windows",
    ),
    Family(
        "Qwen3MoeForCausalLM",
        "qwen_moe:read_qwen3_moe",
        "Qwen 3 with experts",
        "experts: softmax; norms of q and k, dense layers",
    ),
    Family(
        "GraniteMoeForCausalLM",
        "granite:read_granite_moe",
        "Granite 3 with experts",
        "experts: softmax of the chosen; factors as Granite 3",
    ),
    Family(
        "GraniteMoeSharedForCausalLM",
        "granite:read_granite_moe",
        "PowerMoE, Granite 4 tiny",
        "as Granite with experts; a shared expert",
    ),
    Family(
        "MellumForCausalLM",
        "qwen_moe:read_mellum",
        "Mellum 2",
        "as Qwen 3 with experts; windows, a rotary embedding for each type of layer",
    ),
    Family(
        "GptOssForCausalLM",
        "gpt_oss:read_gpt_oss",
        "gpt-oss-20b and 120b",
        "experts: softmax of the chosen, clamped gates, biases; sinks, windows, yarn",
    ),
    Family(
        "Glm4MoeForCausalLM",
        "glm:read_glm4_moe",
        "GLM-4.5, 4.6 and 4.7",
        "experts: sigmoid, groups, a bias of the choice; shared experts, dense layers first",
    ),
    Family(
        "Dots1ForCausalLM",
        "dots:read_dots1",
        "dots.llm1",
        "experts as GLM-4.5; norms of q and k, optionally windows in later layers",
    ),
    Family(
        "DeepseekV3ForCausalLM",
        "deepseek:read_deepseek_v3",
        "DeepSeek-V3, V3.1 and R1, Kimi-K2",
        "latent attention; experts as GLM-4.5",
    ),
    Family(
        "DeepseekV2ForCausalLM",
        "deepseek:read_deepseek_v2",
        "DeepSeek-V2 and V2-Lite",
        "latent attention; experts: softmax, groups; shared experts, dense layers first",
    ),
    Family(
        "Glm4MoeLiteForCausalLM",
        "deepseek:read_glm4_moe_lite",
        "GLM-4.7-Flash",
        "latent attention; experts as GLM-4.5",
    ),
    Family(
        "MiniCPM3ForCausalLM",
        "minicpm:read_minicpm3",
        "MiniCPM 3",
        "latent attention; factors on embeddings, blocks and logits",
    ),
    Family(
        "PhimoeForCausalLM",
        "phimoe:read_phimoe",
        "Phi-3.5-MoE",
        "experts: sparse softmaxes; LayerNorm, longrope",
    ),
    Family(
        "PhiMoEForCausalLM",
        "phimoe:read_phimoe",
        "Phi-3.5-MoE, former name",
        "the same",
    ),
    Family(
        "Ernie4_5_MoeForCausalLM",
        "ernie:read_ernie_moe",
        "ERNIE 4.5 with experts",
        "experts: softmax, a bias of the choice; shared experts, dense layers",
    ),
    Family(
        "GraniteSWAForCausalLM",
        "granite:read_granite_swa",
        "Granite with windows",
        "factors; sinks, windows, a rotary embedding of each layer",
    ),
    Family(
        "GraniteMoeSWAForCausalLM",
        "granite:read_granite_moe_swa",
        "Granite with experts and windows",
        "as Granite with experts, with a shared expert, and as Granite with windows",
    ),
    Family(
        "HyperCLOVAXForCausalLM",
        "granite:read_hyperclovax",
        "HyperCLOVA X SEED",
        "factors; optionally norms on both sides",
    ),
    Family(
        "Exaone4ForCausalLM",
        "exaone:read_exaone4",
        "EXAONE 4",
        "norms of outputs, of q and k; windows, no rotary embedding in full layers",
    ),
    Family(
        "ExaoneMoeForCausalLM",
        "exaone:read_exaone_moe",
        "K-EXAONE",
        "experts as GLM-4.5; norms of q and k, windows, no rotary embedding in full layers",
    ),
    Family(
        "ApertusForCausalLM",
        "apertus:read_apertus",
        "Apertus",
        "xIELU with learned coefficients, norms of q and k",
    ),
    Family(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan:read_hunyuan",
        "Hunyuan 0.5B to 7B",
        "norms of q and k after the rotation",
    ),
    Family(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan:read_hunyuan_moe",
        "Hunyuan-A13B",
        "experts: softmax, divided by the sum; a shared expert, norms after the rotation",
    ),
    Family(
        "HYV3ForCausalLM",
        "hunyuan:read_hunyuan3",
        "Hunyuan 3",
        "experts as GLM-4.5; norms of q and k",
    ),
    Family(
        "FalconForCausalLM",
        "falcon:read_falcon",
        "Falcon 7B, 40B, 180B and RW",
        "fused projections in three layouts, attention beside MLP, GELU",
    ),
    Family(
        "Olmo2ForCausalLM",
        "olmo:read_olmo2",
        "OLMo 2",
        "norms of outputs, and of whole projections of q and k",
    ),
    Family(
        "Olmo3ForCausalLM",
        "olmo:read_olmo3",
        "OLMo 3",
        "as OLMo 2; windows, a rotary embedding for each type of layer",
    ),
    Family(
        "OlmoeForCausalLM",
        "olmo:read_olmoe",
        "OLMoE",
        "experts: softmax; norms of whole projections of q and k",
    ),
    Family(
        "FlexOlmoForCausalLM",
        "olmo:read_flex_olmo",
        "FlexOlmo",
        "as OLMo 2; experts: softmax",
    ),
    Family(
        "MiniMaxM2ForCausalLM",
        "mixtral:read_minimax_m2",
        "MiniMax-M2",
        "experts: sigmoid, a bias of the choice; norms of whole projections, partial rotation",
    ),
    Family(
        "BloomForCausalLM",
        "bloom:read_bloom",
        "BLOOM",
        "ALiBi, LayerNorm also of embeddings, biases, GELU",
    ),
    Family(
        "MptForCausalLM",
        "bloom:read_mpt",
        "MPT",
        "ALiBi, LayerNorm without bias, GELU",
    ),
    Family(
        "MPTForCausalLM",
        "bloom:read_mpt",
        "MPT, former name",
        "the same",
    ),
    Family(
        "Llama4ForCausalLM",
        "llama4:read_llama4",
        "Llama 4 Scout and Maverick, text",
        "experts: sigmoid of one, on its input; chunks, no rotary embedding in every fourth layer",
    ),
    Family(
        "OlmoForCausalLM",
        "olmo:read_olmo",
        "OLMo 1",
        "LayerNorm without parameters, optionally clipped q, k and v",
    ),
)
_BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES}


def describe(config: Mapping[str, Any]) -> ModelDescription:
    """Return the model description that the engine plans with.

    Raises:
        UnsupportedModelError: The config has a value that quire does not support.
    """
    from quire_models.decoder.options.decoder_config import describe_decoder

    architecture = config["architectures"][0]
    media = MEDIA_BY_ARCHITECTURE.get(architecture)
    if media is not None:
        config = text_config(media, config)
    description = describe_decoder(architecture, config, read_decoder_config(architecture, config))
    return description if media is None else replace(description, left_out="media towers")


def read_decoder_config(architecture: str, config: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder's options from the config of a description; raises as `describe` does."""
    media = MEDIA_BY_ARCHITECTURE.get(architecture)
    if media is not None:
        kind = text_type(media, config["model_type"])
        reader = kind.reader or _BY_ARCHITECTURE[kind.family].reader
        return read_text_decoder(media, config, _reader(reader))
    family = _BY_ARCHITECTURE.get(architecture)
    if family is None:
        raise UnsupportedModelError(f"{architecture} is not in the table of families")
    values = ConfigValues(with_missing_values(architecture, config), architecture)
    return _reader(family.reader)(values)


def _reader(name: str) -> Callable[[ConfigValues], DecoderConfig]:
    found: Callable[[ConfigValues], DecoderConfig]
    found = resolve_name(f"quire_models.readers.{name}")
    return found
