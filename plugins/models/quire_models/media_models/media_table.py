"""Table of models with media towers: where their text model is, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaModel:
    """A row of the table.

    Attributes:
        architecture: Name in `architectures` of config.json.
        models: Models of the architecture, for people.
        text_type: `model_type` of a `text_config` that has none.
        prefixes: Prefixes of names in the checkpoint -> those of the decoder, for every layout that
            checkpoints have.
        left_out: Prefixes of the tensors of all other parts, which are not read.
        ties_by_either: Whether `tie_word_embeddings` is true if it is in one of the two configs;
            otherwise the outer one decides, if it has the value.
        is_flat: Whether values of the text model may stand in the outer config, without a
            `text_config`.
    """

    architecture: str
    models: str
    text_type: str
    prefixes: Mapping[str, str]
    left_out: tuple[str, ...]
    ties_by_either: bool = False
    is_flat: bool = False


LLAVA = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
NESTED = {"model.language_model.": "model."}
IDEFICS = {"model.text_model.": "model."}
TOWER = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)
NEWLINE = ("image_newline", "model.image_newline")
VISION_MODEL = ("vision_model.", "multi_modal_projector.", "model.vision_model.", TOWER[3])
VISUAL = ("visual.", "model.visual.")
CONNECTED = ("model.vision_model.", "model.connector.")

MEDIA_MODELS = (
    MediaModel(
        "Gemma3ForConditionalGeneration", "Gemma 3 4B and larger", "gemma3_text", LLAVA, TOWER
    ),
    MediaModel(
        "Gemma4ForConditionalGeneration",
        "Gemma 4",
        "gemma4_text",
        LLAVA,
        (
            *TOWER[:1],
            *TOWER[2:3],
            *(
                f"{model}{part}"
                for model in ("", "model.")
                for part in ("embed_vision.", "audio_tower.", "embed_audio.")
            ),
        ),
    ),
    MediaModel(
        "Llama4ForConditionalGeneration",
        "Llama 4 Scout and Maverick",
        "llama4_text",
        LLAVA,
        VISION_MODEL,
    ),
    MediaModel(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.1 and 3.2, Ministral 3",
        "mistral",
        LLAVA,
        TOWER,
    ),
    MediaModel(
        "LlavaForConditionalGeneration",
        "LLaVA 1.5, Pixtral",
        "llama",
        LLAVA,
        TOWER,
        ties_by_either=True,
    ),
    MediaModel(
        "LlavaNextForConditionalGeneration",
        "LLaVA 1.6, Granite Vision",
        "llama",
        LLAVA,
        (*TOWER, *NEWLINE),
    ),
    MediaModel(
        "LlavaOnevisionForConditionalGeneration",
        "LLaVA-OneVision",
        "qwen2",
        LLAVA,
        (*TOWER, *NEWLINE),
        ties_by_either=True,
    ),
    MediaModel("AyaVisionForConditionalGeneration", "Aya Vision", "cohere2", LLAVA, TOWER),
    MediaModel(
        "Cohere2VisionForConditionalGeneration", "Command A Vision", "cohere2", LLAVA, TOWER
    ),
    MediaModel("InternVLForConditionalGeneration", "InternVL 2.5 to 3.5", "qwen2", LLAVA, TOWER),
    MediaModel("Idefics2ForConditionalGeneration", "Idefics 2", "mistral", IDEFICS, CONNECTED),
    MediaModel("Idefics3ForConditionalGeneration", "Idefics 3", "llama", IDEFICS, CONNECTED),
    MediaModel("SmolVLMForConditionalGeneration", "SmolVLM", "llama", IDEFICS, CONNECTED),
    MediaModel(
        "LightOnOcrForConditionalGeneration",
        "LightOnOCR",
        "qwen3",
        NESTED,
        ("model.vision_encoder.", "model.vision_projection."),
    ),
    MediaModel("Exaone4_5_ForConditionalGeneration", "EXAONE 4.5", "exaone4", NESTED, VISUAL),
    MediaModel(
        "Qwen2VLForConditionalGeneration",
        "Qwen 2 VL",
        "qwen2_vl_text",
        NESTED,
        VISUAL,
        ties_by_either=True,
        is_flat=True,
    ),
    MediaModel(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen 2.5 VL",
        "qwen2_5_vl_text",
        NESTED,
        VISUAL,
        ties_by_either=True,
        is_flat=True,
    ),
    MediaModel("Qwen3VLForConditionalGeneration", "Qwen 3 VL", "qwen3_vl_text", NESTED, VISUAL),
    MediaModel(
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen 3 VL with experts",
        "qwen3_vl_moe_text",
        NESTED,
        VISUAL,
    ),
    MediaModel(
        "Glm4vForConditionalGeneration",
        "GLM-4.1V",
        "glm4v_text",
        NESTED,
        VISUAL,
        ties_by_either=True,
    ),
    MediaModel("Glm46VForConditionalGeneration", "GLM-4.6V-Flash", "glm4v_text", NESTED, VISUAL),
    MediaModel(
        "Glm4vMoeForConditionalGeneration",
        "GLM-4.5V and 4.6V",
        "glm4v_moe_text",
        NESTED,
        VISUAL,
        ties_by_either=True,
    ),
)
MEDIA_BY_ARCHITECTURE: Mapping[str, MediaModel] = {
    model.architecture: model for model in MEDIA_MODELS
}
