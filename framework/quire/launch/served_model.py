"""Facts about the model that is served, from the checkpoint and the composition."""

from quire.compose.checkpoint import weight_paths
from quire.compose.composition import Composition
from quire.frontend.served_model import ServedModel
from quire.launch.agreement import checkpoint_digest


def served_model(composition: Composition) -> ServedModel:
    """Return the facts; only headers and sizes of files of weights are read."""
    checkpoint, method = composition.checkpoint, composition.quantization.value
    return ServedModel(
        family=str(checkpoint.config.get("model_type") or checkpoint.architecture),
        weights=composition.hidden_dtype if method is None else method.name,
        num_bytes=sum(path.stat().st_size for path in weight_paths(checkpoint.folder)),
        digest=checkpoint_digest(checkpoint.folder),
        is_on_gpu=composition.device == "cuda",
    )
