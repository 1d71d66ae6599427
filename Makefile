# Two commands: `make run` shows what quire does, `make test` proves it. Both set up `.venv` first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Processes that share the suite: as many as cores and free memory allow; `make test PROCESSES=1` has one.
# Each begins with a stretch of neighbouring tests, so that what a module or a folder builds for all
# its tests (checkpoints, servers, a wheel) is built once, and a process that has finished takes half
# of what another has left. By modules (loadscope, loadfile) the longest module would be one process's
# alone; test by test (load) every process would build everything.
PROCESSES ?= $(shell $(BIN)/python tests/processes.py)
SHARED = $(patsubst %,-n % --dist worksteal,$(filter-out 1,$(PROCESSES)))

.PHONY: run test test-slow test-optimized test-gpu mutants sanitize lint docs clean

run: $(READY)
	$(BIN)/python examples/tour.py

test: $(READY)
	$(BIN)/pytest -q $(SHARED) -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -q $(SHARED) -m "slow or not slow"

# Without `assert` and docstrings: what keeps clients out must not depend on them. Two minutes.
SERVER := tests/framework/server
OPTIMIZED_TESTS := \
	$(SERVER)/test_routes.py $(SERVER)/http/test_security.py $(SERVER)/http/test_guard.py $(SERVER)/keys \
	$(SERVER)/wire $(SERVER)/observe $(SERVER)/test_bad_numbers.py $(SERVER)/test_secrets.py \
	$(SERVER)/test_api_keys.py $(SERVER)/test_cache_isolation.py $(SERVER)/routes/test_api_description.py \
	tests/framework/worker/loading/test_checkpoint_files.py tests/framework/process/test_log_lines.py \
	tests/framework/process/test_ipc.py tests/framework/frontend/chat/templates/test_chat_template.py

test-optimized: $(READY)
	PYTHONOPTIMIZE=2 $(BIN)/pytest -q $(SHARED) -m "not slow" \
		-W ignore::pytest.PytestConfigWarning $(OPTIMIZED_TESTS)

# On a machine with a GPU: what only a GPU shows, and the kernels' own tests compiled. Processes share
# the GPU, for compiling takes longest; what measures its memory has it alone.
BACKENDS := tests/plugins/attention_backends
GPU_TESTS := \
	tests/gpu/test_decode.py tests/gpu/test_models.py tests/gpu/test_graphs.py \
	tests/gpu/test_no_waiting.py tests/gpu/test_poison.py tests/gpu/test_attention_backends.py \
	tests/gpu/test_mla.py tests/gpu/test_large_pool.py tests/gpu/test_sampling.py \
	tests/gpu/test_quantized_checkpoints.py tests/plugins/quantizations/triton \
	tests/plugins/samplers/gumbel/test_gumbel.py tests/framework/kernels \
	$(BACKENDS)/triton/test_triton_attention.py $(BACKENDS)/mla/test_triton_mla.py \
	$(BACKENDS)/shared/test_split_plan.py $(BACKENDS)/triton/test_kv_write.py $(BACKENDS)/shared/test_kv_codec.py \
	$(BACKENDS)/torch/test_varlen.py::test_torchs_kernel_is_right \
	$(BACKENDS)/cuda/test_cuda_compiler.py::test_nvrtc_compiles_the_decode_kernels_without_headers \
	$(BACKENDS)/cuda/test_cuda_compiler.py::test_a_wrong_source_is_refused_by_nvrtc_with_the_line \
	tests/plugins/kv_stores/test_host_memory_worker.py::test_blocks_survive_pinned_memory \
	tests/framework/testing/kv_backend/test_captured_step.py::test_a_real_graph_is_replayed
# tests/gpu has these kits whole.
GPU_LEFT_OUT := \
	--deselect=$(BACKENDS)/triton/test_triton_attention.py::TestTriton \
	--deselect=$(BACKENDS)/mla/test_triton_mla.py::TestTritonMLA

test-gpu: $(READY)
	QUIRE_TEST_DEVICE=cuda $(BIN)/pytest -q -m "not slow" tests/gpu/test_memory.py; memory=$$?; \
	QUIRE_TEST_DEVICE=cuda $(BIN)/pytest -q -m "not slow" -n 12 --maxschedchunk 4 \
		$(GPU_LEFT_OUT) $(GPU_TESTS) && exit $$memory

# Small wrong changes, each of which the tests must notice; survivors are printed. All of them take
# hours: `make mutants MUTANTS="engine worker"` tries packages, `MUTANTS="--sample 300"` so many of all.
mutants: $(READY)
	$(BIN)/python tests/mutants/run.py --jobs $(PROCESSES) $(MUTANTS)

# The C++ sources with the compiler's checks of addresses and of undefined behaviour, under the tests
# that call them: minutes. The compiler must be GCC, whose sanitizers can be loaded into any Python.
NATIVE_TESTS := \
	tests/framework/native/test_pool.py tests/framework/native/test_vec.py \
	tests/framework/native/test_stored_calls.py tests/framework/worker/batch/test_host_inputs.py \
	tests/framework/native/layer_kernels/test_cpu_steps.py tests/framework/worker/graphs/test_cpu_graphs.py \
	tests/framework/native/collectives tests/framework/worker/device/test_shared_memory_group.py \
	tests/framework/worker/device/test_shared_memory_link.py \
	tests/framework/native/layer_kernels/test_cpu_layers.py tests/framework/native/layer_kernels/test_cpu_lora.py \
	tests/framework/layers/linear/test_native_lora.py \
	tests/plugins/quantizations tests/plugins/samplers/gumbel/test_cpu_gumbel.py \
	tests/plugins/attention_backends/cpu/test_cpu_attention.py

sanitize: $(READY)
	QUIRE_CXXFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined" \
	QUIRE_CACHE_DIR=$$(mktemp -d) ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
		$(BIN)/pytest -q -s -p no:cacheprovider -m "not slow" $(NATIVE_TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cog --check docs/api.md docs/coming-from-vllm.md docs/fields.md docs/hooks.md docs/metrics.md docs/models.md docs/options.md docs/plugins.md docs/plugins/models.md

docs: $(READY)
	$(BIN)/cog -r docs/api.md docs/coming-from-vllm.md docs/fields.md docs/hooks.md docs/metrics.md docs/models.md docs/options.md docs/plugins.md docs/plugins/models.md

# pip, with a constraints file: elsewhere an unpinned torch pulls gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("quire needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
