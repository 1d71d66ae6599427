"""Models with media towers for tests: tiny texts and towers of each architecture."""

from dataclasses import dataclass, field
from typing import Any

from family_cases import GEMMA4_SMALL, LLAMA3, SIGMOID_EXPERTS, YARN

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "depth": 1,
    "image_size": 28,
    "patch_size": 14,
    "head_dim": 16,
    "out_hidden_size": 64,
    "num_position_embeddings": 4,
    "deepstack_visual_indexes": [0],
}
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 24,
    "sliding_window": 9,
    "hidden_size_per_layer_input": 0,
    "num_hidden_layers": 6,
}


@dataclass(frozen=True, slots=True)
class MediaCase:
    """A model of the table of media models.

    Attributes:
        model_type: Name of the outer config in transformers.
        text_type: Name of the text config in transformers.
        text: Values of the text config beside the sizes.
        vision: Values of the vision config beside the sizes.
        outer: Values of the outer config.
        logit_factor: Factor of the text model's own class that transformers' outer class lacks.
    """

    model_type: str
    text_type: str
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    outer: dict[str, Any] = field(default_factory=dict)
    logit_factor: float = 1.0


MEDIA_CASES: dict[str, dict[str, MediaCase]] = {
    "Gemma3ForConditionalGeneration": {
        "windows": MediaCase(
            "gemma3", "gemma3_text", {"head_dim": 24, "sliding_window": 9, "num_hidden_layers": 6}
        ),
        "untied": MediaCase(
            "gemma3",
            "gemma3_text",
            {"head_dim": 16, "sliding_window": 9},
            outer={"tie_word_embeddings": False},
        ),
    },
    "Gemma4ForConditionalGeneration": {
        "dense": MediaCase("gemma4", "gemma4_text", GEMMA4),
        "shared": MediaCase("gemma4", "gemma4_text", GEMMA4_SMALL),
        "experts": MediaCase(
            "gemma4",
            "gemma4_text",
            {
                **GEMMA4,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 48,
            },
        ),
    },
    "Llama4ForConditionalGeneration": {
        "chunks": MediaCase(
            "llama4",
            "llama4_text",
            {
                "num_local_experts": 4,
                "head_dim": 24,
                "intermediate_size_mlp": 80,
                "interleave_moe_layer_step": 2,
                "attention_chunk_size": 16,
                "no_rope_layer_interval": 2,
                "floor_scale": 8,
            },
        ),
    },
    "Mistral3ForConditionalGeneration": {
        "mistral": MediaCase(
            "mistral3",
            "mistral",
            {"head_dim": 24, "sliding_window": None},
            outer={"tie_word_embeddings": False},
        ),
        "tied outside": MediaCase("mistral3", "mistral", {"sliding_window": 11}),
        "ministral": MediaCase(
            "mistral3", "ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}
        ),
    },
    "LlavaForConditionalGeneration": {
        "llama": MediaCase("llava", "llama", {"rope_parameters": LLAMA3}),
        "tied inside": MediaCase("llava", "qwen2", {"tie_word_embeddings": True}),
    },
    "LlavaNextForConditionalGeneration": {
        "mistral": MediaCase("llava_next", "mistral", {"sliding_window": 13}),
        "granite": MediaCase(
            "llava_next",
            "granite",
            {"embedding_multiplier": 2.0, "logits_scaling": 4.0},
            logit_factor=1 / 4,
        ),
    },
    "LlavaOnevisionForConditionalGeneration": {"qwen": MediaCase("llava_onevision", "qwen2")},
    "AyaVisionForConditionalGeneration": {
        "cohere": MediaCase("aya_vision", "cohere2", {"sliding_window": 9}, logit_factor=1 / 16),
    },
    "Cohere2VisionForConditionalGeneration": {
        "cohere": MediaCase(
            "cohere2_vision", "cohere2", {"sliding_window": 9}, logit_factor=1 / 16
        ),
    },
    "InternVLForConditionalGeneration": {
        "qwen": MediaCase(
            "internvl", "qwen3", {"head_dim": 24}, outer={"tie_word_embeddings": False}
        ),
        "tied": MediaCase("internvl", "qwen2"),
    },
    "Idefics2ForConditionalGeneration": {
        "mistral": MediaCase(
            "idefics2",
            "mistral",
            {"sliding_window": 13},
            outer={"perceiver_config": {"hidden_size": 64, "resampler_depth": 1}},
        )
    },
    "Idefics3ForConditionalGeneration": {"llama": MediaCase("idefics3", "llama")},
    "SmolVLMForConditionalGeneration": {"llama": MediaCase("smolvlm", "llama")},
    "LightOnOcrForConditionalGeneration": {
        "qwen": MediaCase("lighton_ocr", "qwen3", {"head_dim": 16}),
    },
    "Exaone4_5_ForConditionalGeneration": {
        "windows": MediaCase("exaone4_5", "exaone4", {"sliding_window": 9}),
    },
    "Qwen2VLForConditionalGeneration": {
        "mrope": MediaCase(
            "qwen2_vl", "qwen2_vl_text", {"rope_parameters": MROPE}, vision={"embed_dim": 32}
        ),
    },
    "Qwen2_5_VLForConditionalGeneration": {
        "mrope": MediaCase(
            "qwen2_5_vl",
            "qwen2_5_vl_text",
            {"rope_parameters": MROPE},
            outer={"tie_word_embeddings": True},
        ),
    },
    "Qwen3VLForConditionalGeneration": {
        "mrope": MediaCase("qwen3_vl", "qwen3_vl_text", {"head_dim": 16, "rope_parameters": MROPE}),
    },
    "Qwen3VLMoeForConditionalGeneration": {
        "mrope": MediaCase(
            "qwen3_vl_moe",
            "qwen3_vl_moe_text",
            {
                "head_dim": 16,
                "rope_parameters": MROPE,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "tie_word_embeddings": True,  # the outer config decides
            },
        ),
    },
    "Glm4vForConditionalGeneration": {
        "mrope": MediaCase("glm4v", "glm4v_text", {"rope_parameters": MROPE}),
        "half": MediaCase(
            "glm4v",
            "glm4v_text",
            {
                "rope_parameters": {
                    **MROPE,
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [1, 1, 2],
                }
            },
        ),
    },
    "Glm46VForConditionalGeneration": {
        "mrope": MediaCase("glm46v", "glm4v_text", {"rope_parameters": MROPE}),
    },
    "Glm4vMoeForConditionalGeneration": {
        "mrope": MediaCase(
            "glm4v_moe",
            "glm4v_moe_text",
            {
                **SIGMOID_EXPERTS,
                "rope_parameters": {
                    **MROPE,
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [1, 1, 2],
                },
            },
        ),
    },
}
