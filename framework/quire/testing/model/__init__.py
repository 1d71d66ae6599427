"""Conformance kit of models."""

from quire.testing.model.model_contract import ModelContract
from quire.testing.model.transformers_contract import TINY_SIZES, TransformersContract

__all__ = ["TINY_SIZES", "ModelContract", "TransformersContract"]
