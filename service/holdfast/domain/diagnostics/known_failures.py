"""Known failures of distributed training: log signatures, symptoms and remedies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import re2


class FailurePattern(StrEnum):
    """A known kind of failure or slowdown."""

    DESYNC = "desync"
    HANG = "hang"
    DUPLICATE_GPU = "duplicate_gpu"
    NO_SUCH_GPU = "no_such_gpu"
    WRONG_DEVICE = "wrong_device"
    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    GPU_BROKEN = "gpu_broken"
    NUMPY_2 = "numpy_2"
    MISSING_MODULE = "missing_module"
    PORT_IN_USE = "port_in_use"
    WRONG_INTERFACE = "wrong_interface"
    NO_RENDEZVOUS = "no_rendezvous"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    NOT_WRITABLE = "not_writable"
    NOT_SAVED = "not_saved"
    TOO_MANY_THREADS = "too_many_threads"
    NOT_FINITE = "not_finite"
    EXPLODING = "exploding"
    SLOW_NETWORK = "slow_network"
    SOCKETS = "sockets"
    SLOW_LOADING = "slow_loading"
    IDLE_GPU = "idle_gpu"
    LEAK = "leak"


@dataclass(frozen=True, slots=True)
class Advice:
    """Symptom and remedy of a failure, one or two sentences each."""

    symptom: str
    remedy: str
    page: str = ""
    """Documentation page below `docs`; empty without one."""


ADVICE: Final[Mapping[FailurePattern, Advice]] = {
    FailurePattern.DESYNC: Advice(
        "The ranks computed different gradients, so their models diverged.",
        "On all ranks, call the model that run.wrap() returned, in the same way; the job continues from its newest checkpoint.",
        "howto/desync.md",
    ),
    FailurePattern.HANG: Advice(
        "No rank completed a step within the stall limit, and all ranks were terminated.",
        "Read the stack of the named rank in its log; if the operation is only slow, call run.beat() during it.",
        "howto/hangs.md",
    ),
    FailurePattern.DUPLICATE_GPU: Advice(
        "Two processes use the same GPU.",
        "Use run.device, or call torch.cuda.set_device(LOCAL_RANK) first; start at most one rank per GPU on a node.",
    ),
    FailurePattern.NO_SUCH_GPU: Advice(
        "A rank requests a GPU that its node does not have.",
        "Start at most one rank per GPU on a node (--nproc-per-node), and check CUDA_VISIBLE_DEVICES.",
    ),
    FailurePattern.WRONG_DEVICE: Advice(
        "A tensor is on the CPU or on another rank's GPU.",
        "Move batches and all inputs of the loss with .to(run.device); run.wrap() moves only the model.",
    ),
    FailurePattern.GPU_MEMORY: Advice(
        "A GPU ran out of memory.",
        "Use smaller batches with gradient accumulation; bf16 halves activations; FSDP shards the model.",
        "howto/slow-training.md",
    ),
    FailurePattern.HOST_MEMORY: Advice(
        "A node ran out of memory, and the kernel killed a process (137 is 128 + SIGKILL).",
        "Request more (resources.memory), use fewer DataLoader workers, and check whether memory grows with the steps.",
        "howto/slow-training.md",
    ),
    FailurePattern.GPU_BROKEN: Advice(
        "A GPU or its driver failed.",
        "Report the node to its provider. Launches avoid it for some hours where the launcher can; otherwise exclude it. "
        "The job continues from its newest checkpoint.",
        "howto/gpu-health.md",
    ),
    FailurePattern.NUMPY_2: Advice(
        "A package requires NumPy 1, but NumPy 2 is installed.",
        "Pin numpy==1.26.4 where packages are installed (setup), or use a newer version of that package.",
    ),
    FailurePattern.MISSING_MODULE: Advice(
        "A module or the project itself is missing on a node.",
        "Install it in setup:, and set workdir: to the project; without a shared file system each node needs its own copy.",
    ),
    FailurePattern.PORT_IN_USE: Advice(
        "Another program uses the rendezvous port of the ranks.",
        "Choose another port above 1024 (HOLDFAST_MASTER_PORT), or stop leftover processes of an earlier run on that node.",
        "reference/worker-environment.md",
    ),
    FailurePattern.WRONG_INTERFACE: Advice(
        "NCCL uses a network interface that does not reach the other nodes.",
        "Set NCCL_SOCKET_IFNAME to the interface between the nodes (ip -br addr lists them; ^lo,docker0 excludes two), and open its ports.",
        "howto/transport.md",
    ),
    FailurePattern.NO_RENDEZVOUS: Advice(
        "The rendezvous of the ranks failed.",
        "All nodes must resolve the name of the first node, and firewalls must allow its port; the logs name the node that "
        "cannot reach it.",
        "howto/transport.md",
    ),
    FailurePattern.COLLECTIVE_TIMEOUT: Advice(
        "A collective timed out: a rank exited before it, a rank took another code path, or the network stalled.",
        "Find the rank that is missing from it: the earliest error is the cause. NCCL_DEBUG=INFO logs where it stalls.",
        "howto/hangs.md",
    ),
    FailurePattern.NOT_WRITABLE: Advice(
        "A file could not be written.",
        "Check permissions and free space of that folder on the node of rank 0; only rank 0 should write.",
    ),
    FailurePattern.NOT_SAVED: Advice(
        "The job finished without a checkpoint.",
        "Set holdfast.checkpoint.store and call run.track(); if the script saves its own files, save on rank 0 only, to storage that "
        "outlives the node.",
        "howto/own-script.md",
    ),
    FailurePattern.TOO_MANY_THREADS: Advice(
        "More compute threads run than the node has cores.",
        "Set OMP_NUM_THREADS to 1 or to the cores per rank; use fewer DataLoader workers or fewer ranks.",
        "howto/slow-training.md",
    ),
    FailurePattern.NOT_FINITE: Advice(
        "The loss is no longer finite.",
        "Lower the learning rate or warm it up, clip gradients (clip_grad_norm_), use bf16 instead of fp16; continue from an earlier checkpoint.",
    ),
    FailurePattern.EXPLODING: Advice(
        "The gradients explode.",
        "Clip gradients (torch.nn.utils.clip_grad_norm_ after backward), and lower the learning rate.",
    ),
    FailurePattern.SLOW_NETWORK: Advice(
        "More than a fifth of each step is spent waiting for gradients of other ranks.",
        "Run holdfast-worker audit to see which network NCCL uses. If it is the fast one, the model is too small for this many ranks: "
        "accumulate gradients over several batches, or use fewer nodes.",
        "howto/transport.md",
    ),
    FailurePattern.SOCKETS: Advice(
        "NCCL uses TCP sockets between nodes.",
        "If the nodes have InfiniBand, RoCE or EFA, NCCL does not use it: holdfast-worker audit explains why and what to set.",
        "howto/transport.md",
    ),
    FailurePattern.SLOW_LOADING: Advice(
        "Steps wait for data.",
        "Give the DataLoader num_workers above 0, pin_memory=True and prefetching, and store the data near the nodes.",
        "howto/slow-training.md",
    ),
    FailurePattern.IDLE_GPU: Advice(
        "The GPU is idle for much of the time; utilization of 95 % or more is good.",
        "If steps do not wait for data, use larger batches; .item() or printing tensors in each step makes the GPU wait for the CPU.",
        "howto/slow-training.md",
    ),
    FailurePattern.LEAK: Advice(
        "Memory grows with the steps: usually a leak.",
        "Look for tensors kept with their graph (loss sums without .item(), lists) and for gradients that are not set to zero.",
        "howto/slow-training.md",
    ),
}


def _failure_signature(
    failure: FailurePattern, *patterns: str
) -> tuple[FailurePattern, re.Pattern[str]]:
    return failure, re.compile("|".join(patterns), re.IGNORECASE)


FAILURE_SIGNATURES: Final = (
    _failure_signature(FailurePattern.DUPLICATE_GPU, r"Duplicate GPU detected"),
    _failure_signature(FailurePattern.NO_SUCH_GPU, r"invalid device ordinal", r"no GPU of its own"),
    _failure_signature(
        FailurePattern.WRONG_DEVICE,
        r"Expected all tensors to be on the same device",
        r"Input type \(\S+\) and weight type \(\S+\) should be the same",
        r"module parameters.*device_ids",
        r"device_ids.*module parameters",
    ),
    _failure_signature(FailurePattern.GPU_MEMORY, r"CUDA out of memory", r"torch\S*OutOfMemoryError"),
    _failure_signature(
        FailurePattern.HOST_MEMORY,
        r"DefaultCPUAllocator: can't allocate memory",
        r"\bMemoryError\b",
        r"oom-kill",
        r"Out of memory: Killed process",
        r"DataLoader worker .* killed by signal: Killed",
    ),
    _failure_signature(
        FailurePattern.GPU_BROKEN,
        r"\bXid\b",
        r"uncorrectable ECC error",
        r"fallen off the bus",
        r"CUDA error: (?:an illegal memory access|unspecified launch failure|hardware)",
    ),
    _failure_signature(
        FailurePattern.NUMPY_2,
        r"compiled using NumPy 1\.x cannot be run in",
        r"Unable to avoid copy while creating an array",
        r"was removed in the NumPy 2\.0 release",
        r"numpy\.dtype size changed",
        r"numpy\.core\.multiarray failed to import",
    ),
    _failure_signature(FailurePattern.MISSING_MODULE, r"ModuleNotFoundError", r"\b(?:proj|pkgs)=missing\b"),
    _failure_signature(FailurePattern.PORT_IN_USE, r"Address already in use", r"EADDRINUSE"),
    _failure_signature(
        FailurePattern.WRONG_INTERFACE,
        r"no socket interface found",
        r"NET/Socket\s*: No interface found",
        r"socketStartConnect.*(?:refused|timed out|unreachable|no route)",
        r"NCCL WARN .*Connect(?:ion)? to .* failed",
        r"gloo.*(?:No route to host|Unable to find address for)",
    ),
    _failure_signature(
        FailurePattern.NO_RENDEZVOUS,
        r"Rendezvous(?:Timeout|Connection|Closed)Error",
        r"client socket has (?:timed out|failed to connect)",
        r"waiting for clients\. \d+/\d+ clients joined",
        r"Name or service not known",
        r"Temporary failure in name resolution",
        r"cannot reach node 0 at",
    ),
    _failure_signature(
        FailurePattern.COLLECTIVE_TIMEOUT,
        r"Watchdog caught collective operation timeout",
        r"\[c10d\].*(?:collective|ALLREDUCE).*timed? ?out",
        r"Timeout\(ms\)=\d+",
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        r"ncclRemoteError",
    ),
    _failure_signature(
        FailurePattern.NOT_WRITABLE,
        r"PermissionError: \[Errno 13\]",
        r"Read-only file system",
        r"No space left on device",
        r"Disk quota exceeded",
    ),
    _failure_signature(
        FailurePattern.TOO_MANY_THREADS,
        r"libgomp: Thread creation failed",
        r"blas_thread_init: pthread_create failed",
        r"Our suggested max number of worker in current system is",
    ),
    _failure_signature(FailurePattern.NOT_FINITE, r"\bloss\W+nan\b"),
)  # fmt: skip
"""Log signatures of failures, the most certain first. The first match of a line counts."""


def _combined_pattern() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    return re2.compile("|".join(pattern.pattern for _, pattern in FAILURE_SIGNATURES), options)


_COMBINED_PATTERN: Final = _combined_pattern()
"""All signatures in one pattern: most lines match none, and one pass excludes them."""


def match_failure(line: str) -> FailurePattern | None:
    """The failure that a log line indicates; None if no signature matches."""
    if not _COMBINED_PATTERN.search(line):
        return None
    return next((failure for failure, regex in FAILURE_SIGNATURES if regex.search(line)), None)
