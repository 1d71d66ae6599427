"""What is compiled at start disturbs nobody."""

from recorded_engine import AS_ON_A_GPU, runner_of

from quire import LLM
from quire.layers.caching_layer import CachingLayer
from quire.testing.checkpoints import write_checkpoint
from quire.worker.assembling import warm_up


def test_warming_up_writes_to_the_null_block_alone(tmp_path):
    checkpoint = write_checkpoint(tmp_path, "Qwen3ForCausalLM", seed=1, head_dim=32)
    options = AS_ON_A_GPU | {"enforce_eager": True, "max_num_seqs": 3, "max_model_len": 64}
    with LLM(str(checkpoint.folder), **options) as llm:
        runner = runner_of(llm)
        layers = [each for each in runner.model.modules() if isinstance(each, CachingLayer)]
        assert len(layers) > 1
        warm_up(runner, 60)
        for layer in layers:
            assert layer._kv_cache[0].any(), "the step was computed"
            assert not layer._kv_cache[1:].any()


def test_warming_up_keeps_to_small_limits(tmp_path):
    checkpoint = write_checkpoint(tmp_path, "Qwen3ForCausalLM", seed=1, head_dim=32)
    options = {"enforce_eager": True, "max_num_seqs": 1, "max_model_len": 16}
    with LLM(str(checkpoint.folder), **AS_ON_A_GPU, **options) as llm:
        warm_up(runner_of(llm), 1)
