"""Files with changed bytes are checkpoints, or errors that name them; nothing else, and soon."""

import json
import tracemalloc

import numpy as np
import pytest
from gguf_files import gguf_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from quire.compose.checkpoint import read_config
from quire.compose.gguf.small_files import NAMES, small_file
from quire.errors import CheckpointError
from quire.frontend.text.tokenizer import Tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 8,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.scaling.type": "linear",
    "llama.rope.scaling.factor": 2.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.eos_token_id": 257,
    "tokenizer.ggml.bos_token_id": 257,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.tokens": [*BYTES, "ab", "<|im_end|>"],
    "tokenizer.ggml.token_type": [*([1] * 257), 3],
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.chat_templates": ["x"],
    "tokenizer.chat_template.x": "{{ tools }}",
}
WHOLE = gguf_bytes(METADATA, {"token_embd.weight": np.zeros((258, 8))})
TOKENS = WHOLE.index(b"tokenizer.ggml.tokens")
NEW = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from([0, 1, 2**31, 2**40, 2**63, 2**64 - 1]).map(lambda n: n.to_bytes(8, "little")),
    st.sampled_from([b"\x00", b"\xff\xff", b"llama", b"gpt2", b" ", b"nan"]),
)


def test_the_whole_file_is_a_checkpoint(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(WHOLE)
    assert read_config(file)["architectures"] == ["LlamaForCausalLM"]
    assert Tokenizer.load(file).encode("ab") == [257, 256]


@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), NEW), min_size=1, max_size=3),
    length=st.sampled_from([len(WHOLE)] * 4 + [TOKENS, len(WHOLE) - 1, len(WHOLE) // 3]),
)
def test_changed_bytes_give_a_checkpoint_or_an_error_that_names_the_file(tmp_path, changes, length):
    file, content = tmp_path / "m.gguf", bytearray(WHOLE)
    for position, new in changes:
        content[position : position + len(new)] = new
    file.write_bytes(content[:length])
    messages = []
    tracemalloc.start()
    steps = [lambda: json.dumps(read_config(file)), lambda: Tokenizer.load(file)]
    for step in [*steps, *(lambda name=name: small_file(file, name) for name in NAMES)]:
        try:
            step()
        except CheckpointError as error:
            messages.append(str(error))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(str(file) in message for message in messages)
    assert peak < 2**22


@pytest.mark.parametrize("count", [2**20 + 1, 2**40])
def test_counts_are_refused_before_anything_of_their_size_exists(tmp_path, count):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + count.to_bytes(8, "little") * 2)
    with pytest.raises(CheckpointError, match=r"claims \d+ tensors, and the limit is"):
        read_config(file)
