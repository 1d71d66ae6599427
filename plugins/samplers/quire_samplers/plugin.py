"""Registration of the sampler steps of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.field_types import TokenMap, TokenSet, TokenTexts
from quire.interfaces.sampling import RequestField, SamplerCapabilities, SamplerStep
from quire.sampling_params import LIMITS, MAX_BAD_WORDS, MAX_LOGIT_BIASES

TEMPERATURE = RequestField(
    "temperature", float, 1.0, *LIMITS["temperature"], "0 takes the most likely token."
)
TOP_K = RequestField("top_k", int, 0, *LIMITS["top_k"], "The k most likely tokens; 0 or -1 is off.")
TOP_P = RequestField(
    "top_p", float, 1.0, *LIMITS["top_p"], "The most likely tokens that add up to p."
)
MIN_P = RequestField("min_p", float, 0.0, *LIMITS["min_p"], "Fraction of the largest probability.")

REPETITION_PENALTY = RequestField(
    "repetition_penalty", float, 1.0, *LIMITS["repetition_penalty"],
    "Divisor of the logits of tokens in prompt or completion; 1 is off.",
)  # fmt: skip
PRESENCE_PENALTY = RequestField(
    "presence_penalty", float, 0.0, *LIMITS["presence_penalty"],
    "Subtracted from the logits of tokens in the completion.",
)  # fmt: skip
FREQUENCY_PENALTY = RequestField(
    "frequency_penalty", float, 0.0, *LIMITS["frequency_penalty"],
    "Subtracted from a token's logit for each time that it is in the completion.",
)  # fmt: skip
LOGIT_BIAS = RequestField(
    "logit_bias", TokenMap(MAX_LOGIT_BIASES, *LIMITS["logit_bias"]), {},
    help="Token id -> number that is added to its logit.",
)  # fmt: skip
ALLOWED_TOKEN_IDS = RequestField(
    "allowed_token_ids", TokenSet(), [], help="The only tokens to sample; empty: all."
)
BAD_WORDS = RequestField(
    "bad_words", TokenTexts(MAX_BAD_WORDS, rule="word"), [], help="Texts that are not generated."
)

MAX_CONTEXT_WIDTH = 8
WATERMARK_KEY = RequestField(
    "watermark_key", int, 15_485_863, 0, 2**63 - 1,
    "Secret that the green lists depend on; detection needs it.",
)  # fmt: skip
WATERMARK_GREENLIST_RATIO = RequestField(
    "watermark_greenlist_ratio", float, 0.25, 0.01, 0.99, "Fraction of tokens that are green."
)
WATERMARK_CONTEXT_WIDTH = RequestField(
    "watermark_context_width", int, 1, 1, MAX_CONTEXT_WIDTH,
    "Number of previous tokens that decide which tokens are green.",
)  # fmt: skip
WATERMARK_FIELDS = (
    RequestField("watermark", bool, default=False, help="True to watermark the completion."),
    RequestField(
        "watermark_bias", float, 2.0, 0.0, 100.0, "Added to the logits of green tokens; 0 is off."
    ),
    WATERMARK_GREENLIST_RATIO,
    WATERMARK_CONTEXT_WIDTH,
    WATERMARK_KEY,
)

TYPICAL_P = RequestField(
    "typical_p", float, 1.0, 0.0, 1.0, "The most typical tokens that add up to p; 1 is off."
)
EPSILON_CUTOFF = RequestField(
    "epsilon_cutoff", float, 0.0, 0.0, 1.0, "Smallest probability of a token; 0 is off."
)
ETA_CUTOFF = RequestField(
    "eta_cutoff", float, 0.0, 0.0, 1.0,
    "Smallest probability of a token, less where the entropy is high; 0 is off.",
)  # fmt: skip
TOP_A = RequestField(
    "top_a", float, 0.0, 0.0, 1.0, "Fraction of the square of the largest probability; 0 is off."
)
TOP_N_SIGMA = RequestField(
    "top_n_sigma", float, 0.0, 0.0, 100.0,
    "Standard deviations below the largest logit within which tokens are kept; 0 is off.",
)  # fmt: skip
XTC_PROBABILITY = RequestField(
    "xtc_probability", float, 0.0, 0.0, 1.0,
    "Probability with which the top choices are excluded; 0 is off.",
)  # fmt: skip
XTC_THRESHOLD = RequestField(
    "xtc_threshold", float, 0.1, 0.0, 1.0, "Probability from which a token is a top choice."
)
SMOOTHING_FACTOR = RequestField(
    "smoothing_factor", float, 0.0, 0.0, 100.0, "Factor of quadratic smoothing; 0 is off."
)
SMOOTHING_CURVE = RequestField(
    "smoothing_curve", float, 1.0, 1.0, 3.0, "Curve of quadratic smoothing, from 1 to 3."
)
DYNATEMP_LOW = RequestField(
    "dynatemp_low", float, 0.0, 0.0, 100.0, "Temperature of certain positions."
)
DYNATEMP_HIGH = RequestField(
    "dynatemp_high", float, 0.0, 0.0, 100.0, "Temperature of uncertain positions; 0 is off."
)
DYNATEMP_EXPONENT = RequestField(
    "dynatemp_exponent", float, 1.0, 0.0, 10.0, "Exponent of the entropy between the two."
)

MAX_REPETITION = 50  # tokens of a repetition that DRY compares
DRY = SamplerCapabilities(
    stage="penalty",
    fields=(
        RequestField(
            "dry_multiplier", float, 0.0, 0.0, 100.0, "Factor of the DRY penalty; 0 is off."
        ),
        RequestField("dry_base", float, 1.75, 1.0, 10.0, "Base of the DRY penalty."),
        RequestField(
            "dry_allowed_length", int, 2, 1, MAX_REPETITION,
            "Length of a repetition that is not penalized.",
        ),
        RequestField(
            "dry_range", int, 0, 0, 2**31 - 1, "Number of last tokens to search; 0: all."
        ),
        RequestField(
            "dry_sequence_breakers", TokenTexts(32, max_tokens=1, rule="last"),
            ["\n", ":", '"', "*"], help="Texts at which a repetition ends.",
        ),
    ),
)  # fmt: skip

MIROSTAT = SamplerCapabilities(
    stage="filter",
    fields=(
        RequestField("mirostat_mode", int, 0, 0, 2, "Version of mirostat, 1 or 2; 0 is off."),
        RequestField(
            "mirostat_tau", float, 5.0, 0.0, 100.0, "Target of the mean surprise, in bits."
        ),
        RequestField(
            "mirostat_eta", float, 0.1, 0.0, 10.0, "Part of the error that corrects the next token."
        ),
    ),
    states=("mirostat_mu",),
)  # fmt: skip

GUIDANCE = SamplerCapabilities(
    stage="penalty",
    fields=(
        RequestField(
            "guidance_scale", float, 1.0, 0.0, 100.0,
            "Factor of what the prompt changes beside the negative prompt; 1 is off.",
        ),
        RequestField(
            "negative_prompt", CompanionPrompt("guidance_scale"), "",
            help="Prompt to move away from; empty: the last token of the prompt.",
        ),
    ),
)  # fmt: skip

PENALTIES = SamplerCapabilities(
    stage="penalty", fields=(REPETITION_PENALTY,), is_vocab_parallel=True
)
SAMPLED_PENALTIES = SamplerCapabilities(
    stage="penalty",
    fields=(PRESENCE_PENALTY, FREQUENCY_PENALTY),
    is_vocab_parallel=True,
    reads_counts=True,
)
BIAS = SamplerCapabilities(stage="bias", fields=(LOGIT_BIAS,), is_vocab_parallel=True)
ALLOWED = SamplerCapabilities(stage="bias", fields=(ALLOWED_TOKEN_IDS,))
BAD = SamplerCapabilities(stage="bias", fields=(BAD_WORDS,))
WATERMARK = SamplerCapabilities(stage="bias", fields=WATERMARK_FIELDS, is_vocab_parallel=True)

FUSED_STEPS = ("temperature", "min_p", "top_k_top_p")  # run in one kernel with the sampler

STEPS: dict[str, tuple[str, SamplerCapabilities]] = {  # name -> class in this package
    "classifier_free_guidance": ("guidance:ClassifierFreeGuidance", GUIDANCE),
    "dry": ("penalties.dry:DRY", DRY),
    "repetition_penalty": ("penalties.penalties:RepetitionPenalty", PENALTIES),
    "sampled_token_penalties": (
        "penalties.penalties:SampledTokenPenalties",
        SAMPLED_PENALTIES,
    ),
    "allowed_token_ids": ("penalties.token_control:AllowedTokenIds", ALLOWED),
    "bad_words": ("penalties.token_control:BadWords", BAD),
    "logit_bias": ("penalties.token_control:LogitBias", BIAS),
    "watermark": ("watermark.watermark:Watermark", WATERMARK),
    "dynamic_temperature": (
        "temperatures.dynamic_temperature:DynamicTemperature",
        SamplerCapabilities(
            stage="temperature",
            fields=(DYNATEMP_LOW, DYNATEMP_HIGH, DYNATEMP_EXPONENT),
            is_fusible=True,
        ),
    ),
    "quadratic_smoothing": (
        "temperatures.quadratic_smoothing:QuadraticSmoothing",
        SamplerCapabilities(
            stage="temperature", fields=(SMOOTHING_FACTOR, SMOOTHING_CURVE), is_fusible=True
        ),
    ),
    "temperature": (
        "temperatures.temperature:Temperature",
        SamplerCapabilities(
            stage="temperature", fields=(TEMPERATURE,), is_vocab_parallel=True, is_fusible=True
        ),
    ),
    "epsilon_cutoff": (
        "filters.cutoffs:EpsilonCutoff",
        SamplerCapabilities(stage="filter", fields=(EPSILON_CUTOFF,), is_fusible=True),
    ),
    "eta_cutoff": (
        "filters.cutoffs:EtaCutoff",
        SamplerCapabilities(stage="filter", fields=(ETA_CUTOFF,), is_fusible=True),
    ),
    "min_p": (
        "filters.min_p:MinP",
        SamplerCapabilities(stage="filter", fields=(MIN_P,), is_fusible=True),
    ),
    "mirostat": ("filters.mirostat:Mirostat", MIROSTAT),
    "top_a": (
        "filters.cutoffs:TopA",
        SamplerCapabilities(stage="filter", fields=(TOP_A,), is_fusible=True),
    ),
    "top_k_top_p": (
        "filters.top_k_top_p:TopKTopP",
        SamplerCapabilities(stage="filter", fields=(TOP_K, TOP_P), is_fusible=True),
    ),
    "top_n_sigma": (
        "filters.top_n_sigma:TopNSigma",
        SamplerCapabilities(stage="filter", fields=(TOP_N_SIGMA,), is_fusible=True),
    ),
    "typical_p": (
        "filters.typical_p:TypicalP",
        SamplerCapabilities(stage="filter", fields=(TYPICAL_P,), is_fusible=True),
    ),
    "xtc": (
        "filters.xtc:XTC",
        SamplerCapabilities(
            stage="filter", fields=(XTC_PROBABILITY, XTC_THRESHOLD), is_fusible=True
        ),
    ),
    "torch_gumbel": (
        "gumbel.torch_gumbel:TorchGumbel",
        SamplerCapabilities(stage="sample", fields=(TEMPERATURE,), is_vocab_parallel=True),
    ),
    "gumbel": (
        "gumbel.gumbel:Gumbel",
        SamplerCapabilities(
            stage="sample",
            fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P),
            needs_kernels="triton",
            fuses=FUSED_STEPS,
            is_vocab_parallel=True,
        ),
    ),
    "cpu_gumbel": (
        "gumbel.cpu_gumbel:CpuGumbel",
        SamplerCapabilities(
            stage="sample",
            fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P),
            needs_kernels="native",
            fuses=FUSED_STEPS,
            probe="quire_samplers.gumbel.cpu_gumbel_library:LIBRARY.unavailable_reason",
            is_vocab_parallel=True,
        ),
    ),
}


@hookimpl
def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
    """Register the sampler steps."""
    for name, (reference, capabilities) in STEPS.items():
        registry.add(name, f"quire_samplers.{reference}", capabilities=capabilities)
