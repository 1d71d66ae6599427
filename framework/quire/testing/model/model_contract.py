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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quire import LLM, LoRARequest, RequestOutput, SamplingParams
from quire.engine.kv_cache.kv_plan import blocks_held, fixed_plan
from quire.errors import QuireError
from quire.interfaces.model import Model, ModelDescription
from quire.layers import LayerContext, SingleDevice, TensorParallelGroup
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_tokenizer
from quire.testing.model.dense_attention import bind_dense_attention, difference, logits_of
from quire.testing.model.random_adapter import RANK, RandomAdapter
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks
from quire.testing.torch_imports import imports_torch
from quire.worker.loading.weight_loading import load_weights

NUM_TOKENS = 40
PROMPT_LENGTHS = (1, 5, 16, 17, 33)
MIN_DISTINCT = 8
BLOCK_SIZE = 16
MAX_MODEL_LEN = max(PROMPT_LENGTHS) + NUM_TOKENS
CHUNK = 7
TOLERANCE = 1e-3  # of a log probability in float32
LOGIT_TOLERANCE = 1e-4  # of the logits' spread
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
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the folder of the checkpoint."""
        contract = cls()
        return contract._write(tmp_path_factory.mktemp("model"), contract.weights(cls.config))

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, folder: Path) -> Iterator[LLM]:
        """Return an engine that computes every prompt from its first token."""
        with cls()._llm(folder, enable_prefix_caching=False) as llm:
            yield llm

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, llm: LLM) -> list[RequestOutput]:
        """Return the outputs of all prompts, each computed alone."""
        return [llm.generate([prompt], _greedy())[0] for prompt in cls()._prompts()]

    def test_describing_needs_no_torch(self) -> None:
        """`quire explain` and the planning of memory call `describe` in a process without torch."""
        reference = self._capabilities().describe
        code = (
            "import json; from pkgutil import resolve_name; "
            "resolve_name(sys.argv[1])(json.loads(sys.argv[2]))"
        )
        assert not imports_torch(code, reference, json.dumps(self._config())), (
            f"{reference} imports torch"
        )

    def test_the_description_counts_the_parameters(self) -> None:
        """`num_params` is the number of elements in the checkpoint: memory is planned with it."""
        expected = sum(tensor.numel() for tensor in self.weights(self.config).values())
        found = self._description().num_params
        assert found == expected, f"num_params is {found}; the checkpoint has {expected} elements"

    def test_a_wrong_config_is_refused_by_name(self) -> None:
        """A text in place of a count that `describe` reads gives an error that names the key."""
        describe, config = self._describe(), _WatchedConfig(self._config())
        describe(config)
        for key in sorted(config.read):
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                with pytest.raises(QuireError, match=key):
                    describe({**self._config(), key: "many"})

    def test_the_tokens_are_those_of_the_reference(self, alone: list[RequestOutput]) -> None:
        """Compare greedy tokens and their log probabilities with the reference."""
        for prompt, output in zip(self._prompts(), alone, strict=True):
            self._check_against_reference(prompt, output)

    def test_the_output_is_not_trivial(self, alone: list[RequestOutput]) -> None:
        """The output has many different tokens: one repeated token would pass every other test."""
        distinct = {token for output in alone for token in output.outputs[0].token_ids}
        assert len(distinct) >= MIN_DISTINCT, (
            f"all prompts together give {len(distinct)} distinct tokens; scale the random weights "
            f"so that there are at least {MIN_DISTINCT}"
        )

    def test_a_batch_changes_nothing(self, llm: LLM, alone: list[RequestOutput]) -> None:
        """Run prompts of all lengths in one batch, in both orders."""
        prompts = self._prompts()
        self._check_same(alone, llm.generate(prompts, _greedy()), "in one batch")
        reversed_outputs = llm.generate(prompts[::-1], _greedy())[::-1]
        self._check_same(alone, reversed_outputs, "in one batch, in the other order")

    def test_chunks_of_a_prompt_change_nothing(
        self, folder: Path, alone: list[RequestOutput]
    ) -> None:
        """Compute prompts in chunks."""
        with self._llm(folder, max_num_batched_tokens=CHUNK, max_num_seqs=4) as llm:
            self._check_same(alone, llm.generate(self._prompts(), _greedy()), "in chunks")

    def test_the_prefix_cache_changes_nothing(
        self, folder: Path, alone: list[RequestOutput]
    ) -> None:
        """Run the prompts twice; the second time they are prefix cache hits."""
        with self._llm(folder) as llm:
            llm.generate(self._prompts(), _greedy())
            outputs = llm.generate(self._prompts(), _greedy())
        assert any(output.num_cached_tokens for output in outputs), (
            "no prompt was a prefix cache hit, though all were computed before"
        )
        self._check_same(alone, outputs, "with prefix caching")

    def test_preemption_changes_nothing(self, folder: Path, alone: list[RequestOutput]) -> None:
        """Run with a KV cache that fits one request only, so that others are preempted."""
        options = {
            "num_kv_blocks": self._smallest_pool(),
            "max_num_batched_tokens": CHUNK,
            "enable_prefix_caching": False,
        }
        with self._llm(folder, **options) as llm:
            outputs = llm.generate(self._prompts(), _greedy())
            num_preemptions = llm.stats().num_preemptions
        assert num_preemptions > 0, (
            f"no request was preempted with {options['num_kv_blocks']} KV blocks, so this test "
            "shows nothing"
        )
        self._check_same(alone, outputs, "with preemption")

    def test_tensor_parallel_ranks_compute_the_logits_of_the_reference(
        self, folder: Path, tp_size: int
    ) -> None:
        """Divide the layers over the ranks of a group, which are threads of this process."""
        token_ids = torch.tensor(self._prompts()[-1])
        expected = self._reference_logits(token_ids)

        def logits_of_rank(group: ThreadedGroup) -> tuple[Tensor, int]:
            model = self._model(group)
            load_weights(model, folder)
            return logits_of(model, token_ids), group.num_sums

        for rank, (logits, num_sums) in enumerate(run_ranks(tp_size, logits_of_rank)):
            error = difference(logits, expected)
            assert error <= LOGIT_TOLERANCE, (
                f"rank {rank} of {tp_size}: the logits differ from the reference by {error:.5f} of "
                "their spread"
            )
            assert num_sums > 0, f"rank {rank} of {tp_size}: no layer is divided over the ranks"

    def test_an_adapter_equals_its_merged_weights(
        self, folder: Path, alone: list[RequestOutput], tmp_path: Path
    ) -> None:
        """Change every linear layer by an adapter, and by weights that it is merged into."""
        if not self.has_lora:
            pytest.skip("has_lora is False")
        weights = self.weights(self.config)
        adapter = RandomAdapter(self._model(), weights)
        request = LoRARequest("random", lora_path=str(adapter.write(tmp_path / "adapter")))
        merged = self._write(tmp_path / "merged", {**weights, **adapter.merged})
        with self._llm(merged) as llm:
            expected = llm.generate(self._prompts(), _greedy())
        with self._llm(folder, enable_lora=True, max_loras=1, max_lora_rank=RANK) as llm:
            found = llm.generate(self._prompts(), _greedy(), lora_request=request)
            without = llm.generate(self._prompts(), _greedy())
        self._check_same(expected, found, "with an adapter", "with merged weights")
        self._check_same(alone, without, "beside an adapter")

    def test_quantization_changes_the_output_a_little(self, folder: Path) -> None:
        """Compare the log probabilities of all prompts with those of the model as it is."""
        reason = self._unavailable_quantization()
        if reason is not None:
            pytest.skip(reason)
        expected = self._prompt_logprobs(folder)
        found = self._prompt_logprobs(folder, quantization=self.quantization)
        error = difference(found, expected)
        assert error > 0, f"{self.quantization} changes no log probability: no layer is quantized"
        assert error <= self.quantization_error, (
            f"{self.quantization} changes a prompt token's log probability by {error:.4f} of the "
            f"spread of all; quantization_error is {self.quantization_error}"
        )

    def test_every_tensor_of_the_checkpoint_matters(
        self, folder: Path, alone: list[RequestOutput], tmp_path: Path
    ) -> None:
        """A change of any tensor changes a log probability: no tensor is ignored."""
        del folder
        prompt, before = self._prompts()[-1], alone[-1]
        weights = dict(self.weights(self.config))
        ignored = []
        gc.freeze()  # each engine collects garbage, and there is none in what exists already
        for number, (name, tensor) in enumerate(weights.items()):
            changed = tensor * 1.5 + 0.25
            written = self._write(tmp_path / str(number), {**weights, name: changed})
            with self._llm(written) as llm:
                (after,) = llm.generate([prompt], _greedy(1))
            if _logprobs(after)[0] == _logprobs(before)[0]:
                ignored.append(name)
        assert not ignored, f"changing these tensors changes nothing: {', '.join(ignored)}"

    def test_a_missing_tensor_stops_the_start(self, tmp_path: Path) -> None:
        """The start raises an error that names the tensor."""
        weights = dict(self.weights(self.config))
        name = max(weights, key=len)
        del weights[name]
        with pytest.raises(QuireError, match=name.rpartition(".")[0]):
            self._llm(self._write(tmp_path, weights)).close()

    def test_a_tensor_of_another_shape_stops_the_start(self, tmp_path: Path) -> None:
        """The start raises an error that names the tensor."""
        weights = dict(self.weights(self.config))
        name = max(weights, key=len)
        weights[name] = torch.cat([weights[name], weights[name]])
        with pytest.raises(QuireError, match=name.rpartition(".")[0]):
            self._llm(self._write(tmp_path, weights)).close()

    def _config(self) -> dict[str, Any]:
        return {"architectures": [self.architecture], **self.config}

    def _capabilities(self) -> Any:
        return load_plugins().registries.models.entry(self.architecture).capabilities

    def _describe(self) -> Any:
        return resolve_name(self._capabilities().describe)

    def _description(self) -> ModelDescription:
        description = self._describe()(self._config())
        assert isinstance(description, ModelDescription)
        return description

    def _llm(self, folder: Path, **options: Any) -> LLM:
        sizes = {"dtype": "float32", "block_size": BLOCK_SIZE, "max_model_len": MAX_MODEL_LEN}
        return LLM(str(folder), **{**sizes, **self.options, **options})

    def _model(self, group: TensorParallelGroup | None = None) -> Model:
        """Return the model on one rank, without weights and without an engine."""
        context = LayerContext(
            dtype=torch.float32, device=torch.device("cpu"), tp=group or SingleDevice()
        )
        model_class = load_plugins().registries.models.get(self.architecture)
        model: Model = model_class(self._description(), context)  # type: ignore[call-arg]
        bind_dense_attention(model)
        return model

    def _smallest_pool(self) -> int:
        """Return the number of KV blocks that fit one request in chunks."""
        specs = load_plugins().registries.kv_cache_specs
        block_size = self.options.get("block_size", BLOCK_SIZE)
        made = [
            specs.get(layer.spec)(layer, block_size, "float32")
            for layer in self._description().kv_layers
        ]
        return 1 + blocks_held(fixed_plan(made, 2), MAX_MODEL_LEN, CHUNK)

    def _unavailable_quantization(self) -> str | None:
        """Return why the model is not quantized here; None if it can be."""
        if self.quantization is None:
            return "quantization is None"
        probe = load_plugins().registries.quantizations.entry(self.quantization).capabilities.probe
        reason: str | None = None if probe is None else resolve_name(probe)()
        return reason

    def _prompt_logprobs(self, folder: Path, **options: Any) -> Tensor:
        """Return the log probability of each token of all prompts but their first ones."""
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        with self._llm(folder, **options) as llm:
            outputs = llm.generate(self._prompts(), params)
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

    def _reference_logits(self, token_ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.reference(self.config, self.weights(self.config), token_ids).float()

    def _prompts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(11)
        vocab_size = self._description().vocab_size
        return [
            torch.randint(3, vocab_size, (length,), generator=generator).tolist()
            for length in PROMPT_LENGTHS
        ]

    def _write(self, folder: Path, weights: Mapping[str, Tensor]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self._config()), encoding="utf-8")
        whole = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(folder, self._description().vocab_size)
        return folder

    def _check_against_reference(self, prompt: Sequence[int], output: RequestOutput) -> None:
        token_ids = list(output.outputs[0].token_ids)
        known = torch.tensor([*prompt, *token_ids[:-1]])
        expected = self._reference_logits(known).log_softmax(-1)[
            len(prompt) - 1 :
        ]  # [NUM_TOKENS, V]
        for index, (token_id, logprob) in enumerate(zip(token_ids, _logprobs(output), strict=True)):
            best = int(expected[index].argmax())
            margin = float(expected[index, best] - expected[index, token_id])
            assert margin <= self.tolerance, (
                f"a prompt of {len(prompt)} tokens: token {index} is {token_id}; the reference "
                f"has {best}, more likely by {margin:.4f}"
            )
            difference = abs(float(expected[index, token_id]) - logprob)
            assert difference <= self.tolerance, (
                f"a prompt of {len(prompt)} tokens: the log probability of token {index} differs "
                f"from the reference by {difference:.5f}"
            )

    def _check_same(
        self,
        expected: Sequence[RequestOutput],
        outputs: Sequence[RequestOutput],
        how: str,
        expected_how: str = "alone",
    ) -> None:
        for before, after in zip(expected, outputs, strict=True):
            length = len(before.prompt_token_ids)
            tokens, found = before.outputs[0].token_ids, after.outputs[0].token_ids
            assert found == tokens, (
                f"a prompt of {length} tokens {how} gives {found}; {expected_how} it gives {tokens}"
            )
            for one, other in zip(_logprobs(before), _logprobs(after), strict=True):
                assert abs(one - other) <= self.tolerance, (
                    f"a prompt of {length} tokens {how}: a log probability is {other:.5f}, and "
                    f"{one:.5f} {expected_how}"
                )


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


def _greedy(num_tokens: int = NUM_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=1)


def _logprobs(output: RequestOutput) -> list[float]:
    """Return the log probability of each generated token."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return [candidates[token_id].logprob for token_id, candidates in pairs]
