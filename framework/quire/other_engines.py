"""Options that users know from vLLM and that have another name here, or none: what to do instead.

They are in the error that such an option gets, and in docs/coming-from-vllm.md.
"""

_TEXT_ONLY = "models read text only"
_PROXY = "let a proxy in front do it"
_NO_DRAFTS = "nothing drafts tokens yet; leave it out"
_ONE_DEVICE_GRID = "use --tensor-parallel-size and --pipeline-parallel-size"
_NO_POOLING = "models generate text only; there are no embeddings, scores or classes"
_MACHINES = "use --executor joined, and `quire worker` on the other machines"
_PLUGIN = "it comes with an installed plugin, or is named as a file: ./FILE.py"
_REPLICAS = (
    "replicas of one machine: --data-parallel-size; of several: Ray Serve, docs/distributed.md"
)

OTHER_NAMES: dict[str, str] = {
    "allowed_origins": f"no page of another origin is let in; {_PROXY}",
    "cudagraph_capture_sizes": "use --max-cuda-graph-size",
    "disable_custom_all_reduce": "use --no-symmetric-memory",
    "disable_fastapi_docs": "use --no-ui, and --api-key-file to ask for a key for the description",
    "disable_log_stats": "use --log-level warning",
    "disable_uvicorn_access_log": "there is no access log without --access-log",
    "distributed_executor_backend": "use --executor",
    "distributed_timeout_seconds": "use --worker-start-timeout-s and --step-timeout-s",
    "enable_log_requests": "use --access-log -",
    "headless": _MACHINES,
    "kv_cache_memory": "use --kv-cache-memory-bytes",
    "kv_events_config": "use --kv-events",
    "kv_offloading_backend": "use --kv-store host_memory",
    "kv_offloading_size": "use --kv-store host_memory --kv-store-options max_bytes=8GiB",
    "kv_transfer_config": "use --kv-store, with --kv-store-options",
    "logits_processors": "a logits processor comes with a plugin, and its name goes into the "
    "option samplers, after `default`",
    "log_config_file": "use --log-level and --log-format",
    "master_addr": _MACHINES,
    "master_port": _MACHINES,
    "max_cudagraph_capture_size": "use --max-cuda-graph-size",
    "max_num_queued_reqs": "use --max-num-queued",
    "max_num_queued_tokens": "use --max-queue-wait-s, which counts seconds",
    "nnodes": _MACHINES,
    "node_rank": "use `quire worker --rank`",
    "num_gpu_blocks_override": "use --num-kv-blocks",
    "quantization_config": "use --quantization",
    "scheduler_cls": "use --scheduling-policy, of which a plugin may offer its own",
    "shutdown_timeout": "use --shutdown-timeout-s",
    "structured_outputs_config": "use --structured-output",
    "tool_parser_plugin": f"use --tool-call-parser; {_PLUGIN}",
    "reasoning_parser_plugin": f"use --reasoning-parser; {_PLUGIN}",
    "uvicorn_log_level": "use --log-level",
}

NO_COUNTERPART: dict[str, str] = {
    "additional_config": "parts of plugins have options of their own; leave it out",
    "chat_template_content_format": "it is found out from the template; leave it out",
    "code_revision": "download that revision, and name the folder",
    "collect_detailed_traces": "--otlp-traces-endpoint has all there is",
    "compilation_config": "graphs need no settings; --enforce-eager turns them off",
    "config_format": "it is found out from the files; leave it out",
    "convert": _NO_POOLING,
    "cpu_offload_gb": "use --quantization, or several devices",
    "data_parallel_address": _REPLICAS,
    "data_parallel_backend": _REPLICAS,
    "data_parallel_rank": _REPLICAS,
    "data_parallel_size_local": _REPLICAS,
    "decode_context_parallel_size": _ONE_DEVICE_GRID,
    "default_chat_template_kwargs": "send chat_template_kwargs with each request",
    "disable_sliding_window": "windows of a model are always honoured; leave it out",
    "download_dir": "set HF_HOME, the folder of the hub's cache",
    "enable_auto_tool_choice": "tool calls need no flag; --tool-call-parser names a parser, if the "
    "one of the chat template is not meant",
    "enable_dbo": "leave it out",
    "enable_eplb": "experts are divided evenly; leave it out",
    "enable_force_include_usage": "send stream_options.include_usage with each request",
    "enable_prompt_embeds": "send prompts as text or token ids",
    "enable_prompt_tokens_details": "they are in every answer; leave it out",
    "enable_request_id_headers": "every answer has x-request-id; leave it out",
    "enable_server_load_tracking": "/load has the load without a flag; leave it out",
    "enable_sleep_mode": "end the server, and start it again",
    "fully_sharded_loras": "leave it out",
    "generation_config": "requests have the sampling parameters that they send, else OpenAI's; of "
    "generation_config.json only the end-of-text tokens are read",
    "grpc_port": "there is HTTP only",
    "hf_config_path": "put config.json into the model's folder",
    "hf_overrides": "change config.json in a folder of your own",
    "hf_token": "set HF_TOKEN",
    "limit_mm_per_prompt": _TEXT_ONLY,
    "max_cpu_loras": "adapters are loaded when they are used: --max-loras",
    "max_log_len": "no prompts are logged; leave it out",
    "max_parallel_loading_workers": "leave it out",
    "middleware": f"a plugin's hooks see requests, docs/hooks.md; else {_PROXY}",
    "mm_processor_kwargs": _TEXT_ONLY,
    "model_loader_extra_config": "leave it out",
    "optimization_level": "graphs need no settings; --enforce-eager turns them off",
    "override_generation_config": "send the parameters with each request",
    "pooler_config": _NO_POOLING,
    "prefill_context_parallel_size": _ONE_DEVICE_GRID,
    "prefix_caching_hash_algo": "leave it out",
    "profiler_config": "see docs/debugging.md",
    "response_role": "it is always assistant; leave it out",
    "return_tokens_as_token_ids": "send it with each request",
    "root_path": _PROXY,
    "runner": _NO_POOLING,
    "seed": "send seed with each request; without one, a request has a random one",
    "skip_tokenizer_init": "send token ids as prompts; the tokenizer is needed all the same",
    "spec_method": _NO_DRAFTS,
    "spec_model": _NO_DRAFTS,
    "spec_tokens": _NO_DRAFTS,
    "speculative_config": _NO_DRAFTS,
    "sse_keep_alive_interval": "silences of a stream are 15 seconds at most; leave it out",
    "ssl_certfile": _PROXY,
    "ssl_keyfile": _PROXY,
    "stream_interval": "send it with each request",
    "swap_space": "preempted requests are computed again; leave it out",
    "tokenizer_mode": "it is found out from the files; leave it out",
    "tokenizer_revision": "download that revision, and name the folder as --tokenizer",
    "uds": "it listens on TCP: --host 127.0.0.1",
    "watermark": "send watermark, with its fields, with each request",
    "worker_cls": "workers are quire's own; plugins offer their parts",
    "worker_extension_cls": "workers are quire's own; plugins offer their parts",
}

OPTIONS_ELSEWHERE = {**OTHER_NAMES, **NO_COUNTERPART}
