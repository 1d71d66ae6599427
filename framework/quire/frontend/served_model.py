"""Facts about the model that is served, for clients that list models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is known of the model and never changes.

    Attributes:
        family: Family, the checkpoint's `model_type`.
        weights: Type in which weights are kept: a dtype, or a quantization method.
        num_bytes: Size of the files of weights.
        digest: Digest of the checkpoint.
        is_on_gpu: Whether it runs on a GPU.
    """

    family: str = ""
    weights: str = ""
    num_bytes: int = 0
    digest: str = ""
    is_on_gpu: bool = False
