"""Conformance kit of models: the tokens of a reference, however they are computed.

    from transformers import AutoConfig
    from quire.testing.model import TINY_SIZES, TransformersContract

    class TestAcme(TransformersContract):
        def transformers_config(self):
            return AutoConfig.for_model("acme", **TINY_SIZES)

pytest collects the inherited tests. The plugin that registers the model must be installed. A model
that transformers does not have brings its own checkpoint and reference:

    class TestAcme(ModelContract):
        architecture = "AcmeForCausalLM"
        config = {"vocab_size": 320, "width": 32, "depth": 2}

        def weights(self, config):
            return random_acme_weights(config)

        def reference(self, config, weights, token_ids):
            return logits_computed_without_quire(weights, token_ids)

Give every parameter random values, biases and norms too: a bias of zero or a norm weight of one
would hide that the model ignores it. The kit makes its mutants of the checkpoint: a change of any
tensor must change the result, so a model that leaves out a weight, a bias or a norm fails.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quire import LLM, LoRARequest, RequestOutput, SamplingParams
from quire.errors import QuireError
from quire.plugins.loading import load_plugins
from quire.testing.model.dense_attention import difference
from quire.testing.model.model_checks import (
    check_chunks,
    check_logits,
    check_preemption,
    check_prefix_hits,
    check_ranks,
    check_same,
    check_tokens,
    check_variety,
)
from quire.testing.model.model_scene import TOLERANCE, ModelScene, greedy
from quire.testing.model.random_adapter import RANK, RandomAdapter
from quire.testing.torch_imports import imports_torch

QUANTIZATION_ERROR = 0.1  # of the spread of the prompts' log probabilities


class ModelContract:
    """Tests that a model must pass.

    Attributes:
        architecture: Name that the model is registered under.
        config: Content of a small config.json; `vocab_size` must be at least 259 for the kit's
            tokenizer.
        options: Further options of the engines of these tests.
        tolerance: Largest difference of a log probability in float32.
        tensor_parallel_sizes: Numbers of devices to divide the layers over; empty: the model does
            not support tensor parallelism.
        has_lora: Whether adapters can change the model's linear layers.
        quantization: Name of a quantization method to run the model with; None: it supports none.
        quantization_error: Largest difference of a prompt token's log probability with
            quantization, in parts of the spread of all.
    """

    architecture: ClassVar[str]
    config: ClassVar[Mapping[str, Any]]
    options: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = TOLERANCE
    tensor_parallel_sizes: ClassVar[tuple[int, ...]] = (2,)
    has_lora: ClassVar[bool] = True
    quantization: ClassVar[str | None] = "int8"
    quantization_error: ClassVar[float] = QUANTIZATION_ERROR

    def weights(self, config: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return all tensors of a checkpoint by name, random and float32."""
        raise NotImplementedError("a test class of ModelContract defines `weights`")

    def reference(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        token_ids: Tensor,  # [T] int64
    ) -> Tensor:  # [T, V]
        """Return the logits of every position, computed without quire."""
        raise NotImplementedError("a test class of ModelContract defines `reference`")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests by the sizes of the tensor-parallel groups."""
        if "tp_size" in metafunc.fixturenames:
            metafunc.parametrize("tp_size", self.tensor_parallel_sizes)

    @pytest.fixture(scope="class")
    @classmethod
    def scene(cls, tmp_path_factory: pytest.TempPathFactory) -> ModelScene:
        """Return the checkpoint with its reference."""
        contract = cls()
        weights = contract.weights(cls.config)
        scene = ModelScene(
            contract._config(),
            tmp_path_factory.mktemp("model"),
            lambda token_ids: contract.reference(cls.config, weights, token_ids),
            options=cls.options,
            tolerance=cls.tolerance,
        )
        scene.write(scene.folder, weights)
        return scene

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, scene: ModelScene) -> Iterator[LLM]:
        """Return an engine that computes every prompt from its first token."""
        with scene.llm(enable_prefix_caching=False) as llm:
            yield llm

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, scene: ModelScene, llm: LLM) -> list[RequestOutput]:
        """Return the outputs of all prompts, each computed alone."""
        return [llm.generate([prompt], greedy())[0] for prompt in scene.prompts]

    def test_describing_needs_no_torch(self, scene: ModelScene) -> None:
        """`quire explain` and the planning of memory call `describe` in a process without torch."""
        reference = scene.capabilities.describe
        code = (
            "import json; from pkgutil import resolve_name; "
            "resolve_name(sys.argv[1])(json.loads(sys.argv[2]))"
        )
        assert not imports_torch(code, reference, json.dumps(self._config())), (
            f"{reference} imports torch"
        )

    def test_the_description_counts_the_parameters(self, scene: ModelScene) -> None:
        """`num_params` is the number of elements in the checkpoint: memory is planned with it."""
        expected = sum(tensor.numel() for tensor in self.weights(self.config).values())
        found = scene.description.num_params
        assert found == expected, f"num_params is {found}; the checkpoint has {expected} elements"

    def test_a_wrong_config_is_refused_by_name(self, scene: ModelScene) -> None:
        """A text in place of a count that `describe` reads gives an error that names the key."""
        describe = resolve_name(scene.capabilities.describe)
        config = _WatchedConfig(self._config())
        describe(config)
        for key in sorted(config.read):
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                with pytest.raises(QuireError, match=key):
                    describe({**self._config(), key: "many"})

    def test_the_logits_are_those_of_the_reference(self, scene: ModelScene) -> None:
        """Compare the logits of every position, without an engine."""
        check_logits(scene)

    def test_chunks_have_the_logits_of_the_reference(self, scene: ModelScene) -> None:
        """Compare the logits of every position in chunks, without an engine."""
        check_chunks(scene)

    def test_the_tokens_are_those_of_the_reference(
        self, scene: ModelScene, alone: list[RequestOutput]
    ) -> None:
        """Compare greedy tokens and their log probabilities with the reference."""
        check_tokens(scene, alone)

    def test_the_output_is_not_trivial(self, alone: list[RequestOutput]) -> None:
        """The output has many different tokens: one repeated token would pass every other test."""
        check_variety(alone)

    def test_a_batch_changes_nothing(
        self, scene: ModelScene, llm: LLM, alone: list[RequestOutput]
    ) -> None:
        """Run prompts of all lengths in one batch, in both orders."""
        check_same(scene, alone, llm.generate(scene.prompts, greedy()), "in one batch")
        reversed_outputs = llm.generate(scene.prompts[::-1], greedy())[::-1]
        check_same(scene, alone, reversed_outputs, "in one batch, in the other order")

    def test_chunks_of_a_prompt_change_nothing(
        self, scene: ModelScene, alone: list[RequestOutput]
    ) -> None:
        """Compute prompts in chunks."""
        with scene.llm(max_num_batched_tokens=scene.sizes.chunk, max_num_seqs=4) as llm:
            check_same(scene, alone, llm.generate(scene.prompts, greedy()), "in chunks")

    def test_the_prefix_cache_changes_nothing(self, scene: ModelScene) -> None:
        """Run the prompts twice; the second time they are prefix cache hits."""
        check_prefix_hits(scene)

    def test_preemption_changes_nothing(self, scene: ModelScene) -> None:
        """Run with a KV cache that fits one request only, so that others are preempted."""
        check_preemption(scene)

    def test_tensor_parallel_ranks_compute_the_logits_of_the_reference(
        self, scene: ModelScene, tp_size: int
    ) -> None:
        """Divide the layers over the ranks of a group, which are threads of this process."""
        check_ranks(scene, tp_size)

    def test_an_adapter_equals_its_merged_weights(
        self, scene: ModelScene, alone: list[RequestOutput], tmp_path: Path
    ) -> None:
        """Change every linear layer by an adapter, and by weights that it is merged into."""
        if not self.has_lora:
            pytest.skip("has_lora is False")
        weights = self.weights(self.config)
        adapter = RandomAdapter(scene.empty_model(), weights)
        request = LoRARequest("random", lora_path=str(adapter.write(tmp_path / "adapter")))
        merged = scene.write(tmp_path / "merged", {**weights, **adapter.merged})
        with scene.llm(merged) as llm:
            expected = llm.generate(scene.prompts, greedy())
        with scene.llm(enable_lora=True, max_loras=1, max_lora_rank=RANK) as llm:
            found = llm.generate(scene.prompts, greedy(), lora_request=request)
            without = llm.generate(scene.prompts, greedy())
        check_same(scene, expected, found, "with an adapter", "with merged weights")
        check_same(scene, alone, without, "beside an adapter")

    def test_quantization_changes_the_output_a_little(self, scene: ModelScene) -> None:
        """Compare the log probabilities of all prompts with those of the model as it is."""
        reason = self._unavailable_quantization()
        if reason is not None:
            pytest.skip(reason)
        expected = _prompt_logprobs(scene)
        found = _prompt_logprobs(scene, quantization=self.quantization)
        error = difference(found, expected)
        assert error > 0, f"{self.quantization} changes no log probability: no layer is quantized"
        assert error <= self.quantization_error, (
            f"{self.quantization} changes a prompt token's log probability by {error:.4f} of the "
            f"spread of all; quantization_error is {self.quantization_error}"
        )

    def test_every_tensor_of_the_checkpoint_matters(
        self, scene: ModelScene, tmp_path: Path
    ) -> None:
        """A change of any tensor changes a log probability: no tensor is ignored.

        All tokens of all prompts count, because each token uses a few experts only.
        """
        before = _prompt_logprobs(scene)
        weights = dict(self.weights(self.config))
        ignored = []
        gc.freeze()  # each engine collects garbage, and there is none in what exists already
        for number, (name, tensor) in enumerate(weights.items()):
            changed = tensor * 1.5 + 0.25
            written = scene.write(tmp_path / str(number), {**weights, name: changed})
            if torch.equal(_prompt_logprobs(scene, written), before):
                ignored.append(name)
        assert not ignored, f"changing these tensors changes nothing: {', '.join(ignored)}"

    def test_a_missing_tensor_stops_the_start(self, scene: ModelScene, tmp_path: Path) -> None:
        """The start raises an error that names the tensor."""
        weights = dict(self.weights(self.config))
        name = max(weights, key=len)
        del weights[name]
        with pytest.raises(QuireError, match=name.rpartition(".")[0]):
            scene.llm(scene.write(tmp_path, weights)).close()

    def test_a_tensor_of_another_shape_stops_the_start(
        self, scene: ModelScene, tmp_path: Path
    ) -> None:
        """The start raises an error that names the tensor."""
        weights = dict(self.weights(self.config))
        name = max(weights, key=len)
        weights[name] = torch.cat([weights[name], weights[name]])
        with pytest.raises(QuireError, match=name.rpartition(".")[0]):
            scene.llm(scene.write(tmp_path, weights)).close()

    def _config(self) -> dict[str, Any]:
        return {"architectures": [self.architecture], **self.config}

    def _unavailable_quantization(self) -> str | None:
        """Return why the model is not quantized here; None if it can be."""
        if self.quantization is None:
            return "quantization is None"
        probe = load_plugins().registries.quantizations.entry(self.quantization).capabilities.probe
        reason: str | None = None if probe is None else resolve_name(probe)()
        return reason


class _WatchedConfig(dict[str, Any]):
    """A config.json that records the keys that are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        self.read.add(key)
        return super().get(key, default)


def _prompt_logprobs(scene: ModelScene, folder: Path | None = None, **options: Any) -> Tensor:
    """Return the log probability of each token of all prompts but their first ones."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with scene.llm(folder, **options) as llm:
        outputs = llm.generate(scene.prompts, params)
    return torch.tensor(
        [
            candidates[token_id].logprob
            for output in outputs
            for token_id, candidates in zip(
                output.prompt_token_ids, output.prompt_logprobs or (), strict=True
            )
            if candidates is not None
        ]
    )
