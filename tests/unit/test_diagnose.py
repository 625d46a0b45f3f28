"""What single messages mean: the field's cases, each with the figures its advice must hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.logs import LOGS, VARIATIONS, log

from roost.diagnose import diagnose, fingerprints


@dataclass
class Case:
    """A text and what must be made of it."""

    id: str
    text: str
    fix: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


CASES = [
    # The GPU and its driver
    Case("nvidia-smi-field", 'Field "cuda_version" is not a valid field to query.'),
    Case("nvidia-smi-field", "Format modifier is not recognized."),
    Case("no-gpu-found", "No devices were found", ["nvidia-smi -L"]),
    Case("no-gpu-found", "RuntimeError: No CUDA GPUs are available"),
    Case(
        "gpu-taken-from-container",
        "Failed to initialize NVML: Unknown Error",
        ["docker restart", "native.cgroupdriver=cgroupfs"],
    ),
    Case("gpu-taken-from-container", "pynvml.NVMLError_Unknown: Unknown Error"),
    Case(
        "gpu-lost",
        "Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error",
        ["reboot"],
        {"gpu": "0000:4F:00.0"},
    ),
    Case(
        "gpu-lost",
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the "
        "system to recover this GPU",
        ["reboot"],
        {"gpu": "0000:02:00.0"},
    ),
    Case(
        "gpu-lost",
        "Unable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error",
        values={"gpu": "0000:41:00.0"},
    ),
    Case("gpu-lost", "pynvml.NVMLError_GpuIsLost: GPU is lost"),
    # CUDA in a container, in libcuda's words and in PyTorch's
    Case(
        "cuda-library-missing",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory",
        ["nvidia-ctk runtime configure"],
    ),
    Case(
        "cuda-library-missing",
        "ImportError: libcuda.so: cannot open shared object file: No such file or directory",
    ),
    Case(
        "cuda-driver-insufficient",
        "CUDA driver version is insufficient for CUDA runtime version",
        ["upgrade the driver"],
    ),
    Case(
        "cuda-forward-compatibility",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
        "before calling NumCudaDevices() that might have already set an error? Error 804: forward "
        "compatibility was attempted on non supported HW",
        ["upgrade the driver"],
    ),
    Case(
        "cuda-driver-mismatch",
        "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
        "functions before calling NumCudaDevices() that might have already set an error? Error "
        "803: system has unsupported display driver / cuda driver combination",
        ["nvidia-ctk cdi generate"],
    ),
    Case(
        "cuda-driver-mismatch",
        "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported display driver / "
        "cuda driver combination",
    ),
    Case(
        "cuda-not-initialised",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
        "initialized",
        ["nvidia-fabricmanager"],
    ),
    Case(
        "cuda-unknown-error",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, "
        "e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
        ["nvidia_uvm"],
    ),
    Case("cuda-unknown-error", "cuInit: CUDA_ERROR_UNKNOWN (999): unknown error"),
    Case(
        "cuda-unknown-error",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
        "before calling NumCudaDevices() that might have already set an error? Error 999: unknown "
        "error",
    ),
    Case(
        "cuda-devices-unavailable",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ["nvidia-smi -c DEFAULT"],
    ),
    Case(
        "driver-not-loaded",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.",
        ["dkms status"],
    ),
    Case(
        "driver-not-loaded",
        "NVIDIA-SMI has failed because it couldn\u2019t communicate with the NVIDIA driver.",
    ),
    Case(
        "driver-library-mismatch",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 565.57",
        ["sudo reboot"],
        {"library": "565.57"},
    ),
    Case(
        "gpu-xid",
        "[  123.456789] NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', GPU has fallen off.",
        values={"xid": "79"},
    ),
    Case(
        "killed-for-memory",
        "[12345.678901] Out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:223344556kB, "
        "anon-rss:98304000kB, file-rss:0kB",
        values={"process": "VLLM::EngineCor", "rss": "98304000"},
    ),
    Case(
        "killed-for-memory",
        "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB, anon-rss:1048576kB",
        values={"process": "python3", "rss": "1048576"},
    ),
    # Docker
    Case(
        "gpu-runtime-missing",
        "docker: Error response from daemon: could not select device driver "
        '"" with capabilities: [[gpu]].',
        ["nvidia-ctk runtime configure --runtime=docker", "restart docker"],
    ),
    Case(
        "gpu-runtime-missing",
        'could not select device driver "nvidia" with capabilities: [[gpu]]',
    ),
    Case("cdi-disabled", 'could not select device driver "cdi" with capabilities: [].'),
    Case(
        "cdi-spec-stale",
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown.",
        ["nvidia-ctk cdi generate"],
        {"device": "nvidia.com/gpu=all"},
    ),
    Case(
        "driver-below-image",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update "
        "your driver to a newer version, or use an earlier cuda container: unknown",
        values={"cuda": "13.0"},
    ),
    Case(
        "toolkit-finds-no-driver",
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.",
    ),
    Case(
        "wrong-architecture",
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        values={"platform": "linux/arm64/v8"},
    ),
    Case(
        "wrong-architecture",
        "no matching manifest for linux/arm64 in the manifest list entries.",
        values={"platform": "linux/arm64"},
    ),
    Case("wrong-architecture", "exec /usr/local/bin/vllm: exec format error"),
    Case(
        "pull-rate-limit",
        "toomanyrequests: You have reached your unauthenticated pull rate limit. "
        "https://www.docker.com/increase-rate-limit",
    ),
    Case("pull-rate-limit", "TOOMANYREQUESTS: You have reached your pull rate limit."),
    Case("pull-rate-limit", "You have reached your pull rate limit."),
    Case("pull-rate-limit", "ratelimit-limit: 100;w=21600\nratelimit-remaining: 0;w=21600"),
    Case("image-not-found", "manifest for vllm/vllm-openai:no not found: manifest unknown"),
    Case(
        "docker-permission",
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/"
        "docker.sock",
        ["usermod -aG docker", "log in anew"],
    ),
    Case(
        "docker-not-running", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    ),
    Case(
        "container-name-taken",
        'Conflict. The container name "/roost-engine" is already in use by container "3f".',
        ["docker rm -f roost-engine"],
    ),
    Case(
        "command-not-in-image",
        'exec: "vllm": executable file not found in $PATH: unknown',
        values={"command": "vllm"},
    ),
    Case(
        "port-in-use",
        "driver failed programming external connectivity on endpoint vllm (3f): Bind for "
        "127.0.0.1:8000 failed: port is already allocated.",
        ["sport = :8000"],
    ),
    Case(
        "port-in-use",
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already "
        "in use",
        ["sport = :8000"],
    ),
    # The hub and its files
    Case(
        "not-safetensors",
        "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
    ),
    Case(
        "not-safetensors",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 4976698672",
    ),
    Case("empty-weight-file", "Error while deserializing header: header too small"),
    Case(
        "truncated-weight-file",
        "Error while deserializing header: incomplete metadata, file not fully covered",
    ),
    Case(
        "shard-missing",
        "ValueError: Weight files referenced in index but missing: "
        "{'model-00002-of-00003.safetensors'}",
        values={"files": "{'model-00002-of-00003.safetensors'}"},
    ),
    Case("stale-partial-download", "416 Client Error: Range Not Satisfiable for url: https://x/y"),
    Case(
        "model-not-found",
        "401 Client Error. (Request ID: Root=1-6)\n\nRepository Not Found for url: https://hf.co/a."
        "\nIf you are trying to access a private or gated repo, make sure you are authenticated.",
    ),
    Case(
        "gated-model",
        "Cannot access gated repo for url https://hf.co/a/b/resolve/main/config.json.\n"
        "Access to model a/b is restricted. You must be authenticated to access it.",
        ["HF_TOKEN"],
    ),
    Case(
        "revision-not-found", "404 Client Error.\n\nRevision Not Found for url: https://hf.co/a/b"
    ),
    Case(
        "disk-too-small",
        "UserWarning: Not enough free disk space to download the file. The expected file size is: "
        "4965.80 MB. The target location /models only has 12.30 MB free disk space.",
        values={"size": "4965.80", "free": "12.30"},
    ),
    Case("disk-full", "OSError: [Errno 28] No space left on device"),
    Case(
        "no-mtp-weights",
        "ValueError: MTP speculative decoding layer 78 weights missing from checkpoint.",
    ),
    Case(
        "no-vision-weights",
        "ValueError: Following weights were not initialized from checkpoint: "
        "{'visual.blocks.0.attn.proj.weight', 'visual.merger.norm.weight'}",
        ["language_model_only: true"],
    ),
    Case(
        "weights-not-initialized",
        "ValueError: Following weights were not initialized from checkpoint: "
        "{'model.layers.7.mlp.gate.weight'}",
    ),
    Case(
        "drafter-does-not-fit",
        "ValueError: DFlash drafter expects 10240 concatenated aux hidden features but received "
        "8192. This usually means the draft model's target_layer_ids reference missing layers.",
        values={"expected": "10240", "given": "8192"},
    ),
    # vLLM: memory
    Case(
        "kv-page-mismatch",
        '  File "/x/vllm/v1/core/kv_cache_utils.py", line 1042, in unify_kv_cache_spec_page_size\n'
        "    assert new_spec.page_size_bytes == max_page_size\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nAssertionError",
        ["0.26", "31977fbe13a8"],
    ),
    Case(
        "kv-page-mismatch",
        "vllm/v1/core/kv_cache_utils.py:1064:  assert new_spec.page_size_bytes == max_page_size\n"
        "  AssertionError  \u2192  EngineCore init failed (exit 1)",
    ),
    Case(
        "kv-page-ratio",
        "NotImplementedError: The page size of the layer is not divisible by the maximum page size."
        " Cannot unify by adjusting block_size.",
    ),
    Case(
        "kv-page-ratio",
        "NotImplementedError: Layer model.layers.3: page size is not divisible by the maximum page "
        "size and cannot be padded. Padding is only supported for non-MLA attention layers.",
    ),
    Case(
        "window-left",
        "AssertionError: Window left is not the same for all layers. One potential fix is to set "
        "disable_sliding_window=True",
        ["TRITON_ATTN"],
    ),
    Case(
        "not-enough-free-memory",
        "Free memory on device cuda:0 (74.9/142.5 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 128.25 GiB).",
        ["gpu_memory_utilization: 0.52"],
        {"free": "74.9", "total": "142.5", "asked": "0.9", "wanted": "128.25"},
    ),
    Case(
        "kv-pool-too-small",
        "max seq len (262144), (5.1 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (4.0 GiB). Based on the available memory, the estimated maximum model length "
        "is 205920.",
        ["kv_cache_bytes: 5530189824", "max_model_len: 205920"],
        {"length": "262144", "needed": "5.1", "available": "4.0", "longest": "205920"},
    ),
    Case(
        "kv-pool-too-small",
        "max seq len (262144), (5.08 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (4.0 GiB). ",
        ["kv_cache_bytes: 5460983808"],
    ),
    Case("no-kv-memory", "ValueError: No available memory for the cache blocks. Try increasing"),
    Case(
        "sampler-out-of-memory",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs`",
        values={"seqs": "1024"},
    ),
    Case(
        "gpu-out-of-memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.47 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this",
        values={"asked": "2.00", "unit": "GiB", "free": "1.12", "free_unit": "GiB"},
    ),
    Case("gpu-out-of-memory", "RuntimeError: CUDA out of memory."),
    Case("gpu-out-of-memory", "torch.AcceleratorError: CUDA error: out of memory", ["drop_caches"]),
    Case("gpu-out-of-memory", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"),
    Case(
        "drafter-needs-new-runner",
        "NotImplementedError: DFlash drafters with mixed sliding/full attention require the V2 "
        "model runner; relaunch with VLLM_USE_V2_MODEL_RUNNER=1.",
    ),
    # vLLM: arguments
    Case("double-serve", "vllm: error: unrecognized arguments: serve /models/X", ["--entrypoint"]),
    Case(
        "unknown-flag",
        "launch_server.py: error: unrecognized arguments: --mamba-scheduler-strategy extra_buffer",
        ["--mamba-radix-cache-strategy"],
    ),
    Case(
        "ambiguous-flag",
        "vllm serve: error: ambiguous option: --kv-cache-m could match --kv-cache-memory-bytes, "
        "--kv-cache-metrics",
        ["--kv-cache-memory-bytes"],
        {"flag": "--kv-cache-m"},
    ),
    Case(
        "bad-flag-value",
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto')",
        values={"flag": "--kv-cache-dtype"},
    ),
    Case("drafter-not-named", "num_speculative_tokens was provided but without speculative model."),
    Case(
        "drafts-not-said",
        "A speculative model was provided, but `num_speculative_tokens` was not provided",
    ),
    Case(
        "backend-cannot",
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this "
        "configuration. Reason: ['kv_cache_dtype not supported']",
        ["TRITON_ATTN"],
        {"backend": "FLASH_ATTN"},
    ),
    Case(
        "no-backend",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig("
        "head_size=256). Reasons: {FLASH_ATTN: [no]}.",
    ),
    Case(
        "no-room-for-drafts",
        "VllmConfig does not have enough slots to schedule a token and support the speculative "
        "decoding settings.",
    ),
    Case(
        "quantization-differs",
        "Quantization method specified in the model config (compressed-tensors) does not match the "
        "quantization method specified in the `quantization` argument (modelopt).",
        ["quantization: compressed-tensors"],
    ),
    Case(
        "card-too-old",
        "The quantization method modelopt_fp4 is not supported for the current GPU. Minimum "
        "capability: 75. Current capability: 61.",
        values={"needs": "75", "has": "61"},
    ),
    Case(
        "unknown-architecture",
        "ValueError: Model architectures ['DFlash2DraftModel'] are not supported for now.",
        ["0.28.0"],
    ),
    Case(
        "unknown-model-type",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, The checkpoint you are trying to load has model type `qwen3_5` but "
        "Transformers does not recognize this architecture. This could be because of an issue with "
        "the checkpoint, or because your version of Transformers is out of date.",
        ["newer image"],
        {"type": "qwen3_5"},
    ),
    Case(
        "code-not-trusted",
        "ValueError: The repository `/model` contains custom code which must be executed to "
        "correctly load the model. You can inspect the repository content at https://hf.co//model ."
        "\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run.",
        ["extra_args: [--trust-remote-code]"],
    ),
    Case(
        "code-not-trusted",
        "ValueError: Loading /model requires you to execute the configuration file in that repo on "
        "your local machine.",
    ),
    Case(
        "file-missing",
        "OSError: /model does not appear to have a file named preprocessor_config.json. Checkout "
        "'https://huggingface.co//model/tree/main' for available files.",
        ["language_model_only: true", "roost deploy"],
        {"path": "/model", "file": "preprocessor_config.json"},
    ),
    Case(
        "file-missing",
        "OSError: org/name does not appear to have a file named model.safetensors.index.json.",
        values={"path": "org/name", "file": "model.safetensors.index.json"},
    ),
    # vLLM: running
    Case(
        "no-kernels-for-gpu", "CUDA error: no kernel image is available for execution on the device"
    ),
    Case(
        "no-kernels-for-gpu",
        "NVIDIA GB10 with CUDA capability sm_121 is not compatible with the current PyTorch "
        "installation.",
        values={"sm": "121"},
    ),
    Case("device-side-assert", "torch.AcceleratorError: CUDA error: device-side assert triggered"),
    Case(
        "draft-index-out-of-bounds",
        "/c/sjt.py:37: unknown: block: [23,0,0], thread: [90,0,0] Assertion `index out of bounds: "
        "0 <= tmp5 < 248320` failed.\nCUDA error: device-side assert triggered",
        ["num_speculative_tokens: 10"],
        {"limit": "248320"},
    ),
    Case(
        "ptxas-too-old",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        ["TRITON_PTXAS_PATH"],
        {"sm": "121a"},
    ),
    Case(
        "nvcc-too-old",
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        ["CUDA 13"],
        {"architecture": "compute_121a"},
    ),
    Case(
        "worker-unanswered",
        "(EngineCore pid=171) ERROR 07-16 08:23:49 [core.py:1242] TimeoutError: RPC call to "
        "sample_tokens timed out.",
        ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "gpu_memory_utilization"],
        {"call": "sample_tokens"},
    ),
    Case(
        "segfault",
        '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in cuMemcpyBatchAsync\n'
        '  File "<unknown>", line 0, in swap_blocks_batch(at::Tensor const&, bool)\n',
        ["dmesg", "enforce_eager"],
        {"place": "cuMemcpyBatchAsync"},
    ),
    Case(
        "segfault",
        '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in '
        "c10::impl::make_boxed<void (*)(at::Tensor const&)>::call(c10::DispatchKeySet)\n",
        values={"place": "c10::impl::make_boxed"},
    ),
    Case(
        "segfault",
        "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
        '  File "/x/torch/cuda/graphs.py", line 77 in capture_begin\n',
    ),
    Case("segfault", "*** SIGSEGV received at time=1709021359 on cpu 44 ***"),
    Case("illegal-memory-access", "CUDA error: an illegal memory access was encountered"),
    Case("no-triton", "TypeError: 'function' object is not subscriptable"),
    Case(
        "turboquant-unpatched",
        "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture",
    ),
    Case(
        "nccl-peer-to-peer",
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ["NCCL_P2P_DISABLE=1"],
    ),
    Case(
        "shared-memory-too-small",
        "Bus error. It is possible that you have insufficient shared memory",
    ),
    Case(
        "workers-silent",
        "INFO 11-29 14:43:27 [shm_broadcast.py:466] No available shared memory broadcast block "
        "found in 60 seconds. This typically happens when some processes are hanging",
    ),
    # SGLang
    Case(
        "sglang-weights-leave-nothing",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=0.6. Raise --mem-fraction-static above 0.713 (minimum viable = 1 - "
        "available/pre = 0.7124). If using speculative decoding, draft weights are now counted.",
        ["--mem-fraction-static 0.763"],
        {"now": "0.6", "least": "0.713"},
    ),
    Case(
        "sglang-not-enough-memory",
        "[2026-11-29 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x.py", line 1, in f\n    raise RuntimeError(msg)\n'
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
        "value: mem_fraction_static=0.8\n\n[2026-11-29 10:00:01] Received sigquit from a child "
        "process. It usually means the child failed.",
        values={"now": "0.8"},
    ),
    Case(
        "sglang-state-cache-too-small",
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any "
        "requests. max_mamba_cache_size=0, mamba_ratio=3, resulting max_num_reqs=0.",
    ),
    Case(
        "sglang-drafter-not-named",
        "ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.",
    ),
    Case(
        "sglang-pipeline-parallel",
        "ValueError: Currently DFLASH speculative decoding only supports pp_size == 1.",
    ),
    Case(
        "sglang-stuck",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        values={"seconds": "300"},
    ),
    Case(
        "sglang-drafter-never-accepted",
        "[2026-11-29 10:00:00] Decode batch, #running-req: 1, #token: 100, token usage: 0.01, "
        "accept len: 1.00, accept rate: 0.00, cuda graph: True, gen throughput (token/s): 30.10",
    ),
    # Ansible
    Case("sudo-password", 'fatal: [spark-01]: FAILED! => {"msg": "Missing sudo password"}', ["-K"]),
    Case(
        "sudo-password",
        'fatal: [spark-01]: FAILED! => {"changed": false, "module_stderr": "sudo: a password is '
        'required\\n", "module_stdout": "", "msg": "MODULE FAILURE", "rc": 1}',
        ["-K"],
    ),
    Case(
        "host-key-unknown",
        'fatal: [spark-01]: UNREACHABLE! => {"changed": false, "msg": "Failed to connect to the '
        'host via ssh: Host key verification failed.\\r\\n", "unreachable": true}',
        ["ssh USER@HOST"],
    ),
    Case(
        "host-key-changed",
        'fatal: [h]: UNREACHABLE! => {"changed": false, "msg": "Failed to connect to the host via '
        "ssh: @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\\r\\nIT IS POSSIBLE THAT "
        "SOMEONE IS DOING SOMETHING NASTY!\\r\\nOffending ED25519 key in /home/u/.ssh/known_hosts:3"
        "\\r\\nHost key for spark-01 has changed and you have requested strict checking.\\r\\nHost "
        'key verification failed.\\r\\n", "unreachable": true}',
        ["ssh-keygen -R spark-01"],
        {"host": "spark-01"},
    ),
    Case("ssh-refused-login", "u@10.0.0.1: Permission denied (publickey,password)."),
    Case(
        "ssh-no-connection",
        "ssh: connect to host 10.0.0.1 port 22: Connection refused",
        ["nc -zv 10.0.0.1 22"],
    ),
]

#: Lines that frighten people for nothing.
HARMLESS = [
    Case(
        "attention-block-size",
        "Setting attention block size to 1056 tokens to ensure that attention page size is >= "
        "mamba page size.",
        values={"tokens": "1056"},
    ),
    Case(
        "moe-backend-triton",
        "Using TRITON Fp8 MoE backend out of potential backends: [AITER, VLLM_CUTLASS, TRITON].",
    ),
    Case(
        "moe-backend-triton",
        "Using 'TRITON' Fp8 MoE backend out of potential backends: ['AITER', 'TRITON', 'MARLIN'].",
    ),
    Case(
        "weight-only-fp4", "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN']."
    ),
    Case(
        "custom-allreduce-off",
        "WARNING 11-29 14:43:27 [custom_all_reduce.py:284] Custom allreduce is disabled because "
        "your platform lacks GPU P2P capability or P2P test failed.",
    ),
    Case(
        "gb10-driver-memory",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
        "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359",
    ),
    Case(
        "sglang-draft-window-unused",
        "--speculative-draft-window-size has no effect with speculative_algorithm=NEXTN",
    ),
]

#: What may happen to a message that is pasted without its log.
PASTED = ["plain", "crlf", "terminal of 80", "folded at 100", "typographer's quotes", "one string"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("variation", PASTED)
def test_a_message_has_one_meaning(case: Case, variation: str) -> None:
    found = diagnose(VARIATIONS[variation](case.text))
    assert [item.id for item in found] == [case.id]
    assert found[0].severity in ("error", "warning")
    assert case.values.items() <= found[0].values.items()
    for part in case.fix:
        assert part in found[0].fix
    assert found[0].evidence
    assert found[0].source


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.id)
@pytest.mark.parametrize("variation", PASTED)
def test_a_harmless_line_is_explained_and_no_more(case: Case, variation: str) -> None:
    found = diagnose(VARIATIONS[variation](case.text))
    assert [(item.id, item.severity) for item in found] == [(case.id, "info")]
    assert case.values.items() <= found[0].values.items()
    assert found[0].why


def test_every_fingerprint_has_its_case() -> None:
    seen = {case.id for case in [*CASES, *HARMLESS]}
    for path in LOGS.glob("*.txt.gz"):
        seen |= {item.id for item in diagnose(log(path.name.removesuffix(".txt.gz")))}
    # These are found by the tests of what they wrap and of what follows from something else.
    elsewhere = {"wrapped-start", "wrapped-death", "sglang-wrapped", "sglang-cuda-graph"}
    assert {item.id for item in fingerprints.builtin()} - seen == elsewhere


@pytest.mark.parametrize(
    ("given", "mended"),
    [
        ("{method: mtp, num_speculative_tokens: 1}", '{"method":"mtp","num_speculative_tokens":1}'),
        (r"\{\"method\":\"mtp\"\}", '{"method":"mtp"}'),
        ("""'{"method":"mtp"}'""", '{"method":"mtp"}'),
        ('{{"a":1}}', '{"a":1}'),
        ("method:dspark", '{"method":"dspark"}'),
        (
            "{'method': 'dflash', 'enforce_eager': False}",
            '{"method":"dflash","enforce_eager":false}',
        ),
        # Nothing can be made of a placeholder that was never filled in.
        ('{"n":{num_speculative_tokens}}', '{"method":"dflash","model":"/drafter"'),
    ],
)
def test_json_is_mended(given: str, mended: str) -> None:
    found = diagnose(
        f"vllm serve: error: argument --speculative-config/-sc: Value {given} cannot be converted "
        "to <function loads at 0x7f5e4c9ace00>."
    )
    assert [item.id for item in found] == ["bad-json"]
    assert f"--speculative-config '{mended}" in found[0].fix


def test_settings_decide_what_to_raise() -> None:
    text = next(case.text for case in CASES if case.id == "kv-pool-too-small")
    pinned = diagnose(text, settings={"kv_cache_bytes": 4294967296})[0]
    assert "gpu_memory_utilization has no effect" in pinned.why
    assert "raise gpu_memory_utilization" not in pinned.fix
    assert "raise gpu_memory_utilization" in diagnose(text)[0].fix


def test_advice_for_a_full_gpu_names_only_what_frees_memory() -> None:
    """Whichever way the pool is sized, roost's own plan frees nothing for a shorter context."""
    text = next(case.text for case in CASES if case.id == "gpu-out-of-memory")
    pinned = diagnose(text, settings={"kv_cache_bytes": 4294967296})[0].fix
    assert pinned.startswith("kv_cache_bytes below 4294967296, or max_num_batched_tokens 2048")
    assert "gpu_memory_utilization" not in pinned
    # What a smaller batch leaves, the pool takes.
    share = diagnose(text, settings={"gpu_memory_utilization": 0.85})[0].fix
    assert share.startswith("gpu_memory_utilization (now 0.85) lower by 0.05")
    assert "max_num_batched_tokens" not in share
    for fix in (pinned, share):
        assert "max_model_len frees nothing" in fix


@pytest.mark.parametrize(
    ("total", "card", "unified"),
    [("15.47", True, False), ("121.69", False, True), ("139.80", True, False), (None, True, True)],
)
def test_advice_for_a_full_gpu_tells_kinds_of_memory_apart(
    total: str | None, card: bool, unified: bool
) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory."
    if total:
        text += (
            f" Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {total} GiB of which 1.12 "
            "GiB is free."
        )
    fix = diagnose(text)[0].fix
    assert ("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in fix) is card
    assert ("drop_caches" in fix) is unified
    assert ("leave expandable_segments out" in fix) is unified


def test_the_other_engine_is_left_out() -> None:
    text = next(case.text for case in CASES if case.id == "not-enough-free-memory")
    assert diagnose(text, engine="vllm")[0].id == "not-enough-free-memory"
    assert not diagnose(text, engine="sglang")


def test_a_version_that_cannot_say_it_did_not_say_it() -> None:
    text = next(case.text for case in CASES if case.id == "drafter-needs-new-runner")
    assert diagnose(text, version="0.26.0")[0].id == "drafter-needs-new-runner"
    assert diagnose(text, version="0.23.0")[0].id == "unknown"


def test_acceptance_above_one_withdraws_the_alarm() -> None:
    line = "Decode batch, #running-req: 1, accept len: {}, accept rate: 0.10, gen throughput: 3\n"
    assert diagnose(line.format("1.00"))[0].id == "sglang-drafter-never-accepted"
    assert not diagnose(line.format("1.00") + line.format("1.01"))
    assert not diagnose(line.format("3.40"))


@pytest.mark.parametrize(
    "said",
    [
        "vllm: error: unrecognized arguments: --hf-tokn hf_AbCdEfGhIjKlMnOp",
        "vllm: error: unrecognized arguments: --x --api-key sk-AbCdEf123456",
        'ValueError: oh no, "Authorization: Bearer AbCdEf123456789" was refused',
        "RuntimeError: VLLM_API_KEY=AbCdEf123456 is set",
        "RuntimeError: {'api_key': ['AbCdEf123456'], 'port': 8000}",
        "RuntimeError: cannot reach https://me:AbCdEf12@hub.example/x",
        "RuntimeError: HF_TOKEN: AbCdEf123456",
    ],
)
def test_secrets_are_not_shown(said: str) -> None:
    found = diagnose(said)
    assert found
    assert "AbCdEf" not in str(found)
    assert "<redacted>" in found[0].evidence


def test_what_is_no_secret_is_shown() -> None:
    said = "RuntimeError: max_num_batched_tokens: 2048, token positions 131072, bos_token_id=7"
    assert diagnose(said)[0].evidence == said


@pytest.mark.parametrize("strange", ["", ".", "...", "1.2.3", "9" * 5000, "1,2,3", "-1", "\u0664"])
def test_figures_may_be_no_figures(strange: str) -> None:
    """Logs are anybody's text: whatever stands where a figure should, there is an answer."""
    for case in [*CASES, *HARMLESS]:
        for item in diagnose(re.sub(r"\d[\d.]*", strange, case.text)):
            assert item.title
    log = f"INFO non-default args: {{'port': {strange}, 'max_num_seqs': {strange}}}\n"
    assert diagnose(log + "Address already in use")[0].id == "port-in-use"


@given(st.sampled_from([*CASES, *HARMLESS]), st.data())
@settings(max_examples=150)
def test_a_message_may_lack_a_part(case: Case, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(case.text)))
    end = data.draw(st.integers(begin, len(case.text)))
    for item in diagnose(case.text[:begin] + case.text[end:]):
        assert item.title
        assert item.evidence
