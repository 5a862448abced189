"""What goes wrong with training on many ranks: how it shows in what programs print, what it is, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import re2


class FailurePattern(StrEnum):
    """What it looks like."""

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
    """What a trouble is, and what is done about it; each is a sentence or two."""

    looks: str
    remedy: str
    page: str = ""
    """Of the documentation, below `docs`; empty where none says more."""


ADVICE: Final[Mapping[FailurePattern, Advice]] = {
    FailurePattern.DESYNC: Advice(
        "The ranks had different gradients, and trained different models.",
        "Call the model that run.wrap() gave, on all ranks and in the same way; the job goes on from its newest checkpoint.",
        "howto/desync.md",
    ),
    FailurePattern.HANG: Advice(
        "No rank made a step for too long, and all were ended.",
        "Look at the rank that is named and at its stack, in its log; if it only takes long, call run.beat() there.",
        "howto/hangs.md",
    ),
    FailurePattern.DUPLICATE_GPU: Advice(
        "Two processes compute on one GPU.",
        "Use run.device, or torch.cuda.set_device(LOCAL_RANK) before anything else; start no more ranks on a node than it has GPUs.",
    ),
    FailurePattern.NO_SUCH_GPU: Advice(
        "A rank asks for a GPU that its node has not.",
        "Start no more ranks on a node than it has GPUs (--nproc-per-node), and look at CUDA_VISIBLE_DEVICES.",
    ),
    FailurePattern.WRONG_DEVICE: Advice(
        "A tensor was left on the CPU, or is on the GPU of another rank.",
        "Move batches and whatever the loss uses with .to(run.device); run.wrap() moves the model alone.",
    ),
    FailurePattern.GPU_MEMORY: Advice(
        "A GPU ran out of memory.",
        "Take smaller batches and sum up gradients over several; bf16 halves activations; FSDP divides the model.",
        "howto/slow-training.md",
    ),
    FailurePattern.HOST_MEMORY: Advice(
        "A node ran out of memory, and the kernel killed a process (137 is 128 + SIGKILL).",
        "Ask for more (resources.memory), take fewer workers in the DataLoader, and look whether memory grows with the steps.",
        "howto/slow-training.md",
    ),
    FailurePattern.GPU_BROKEN: Advice(
        "A GPU or its driver failed.",
        "If it is the same node again, leave it out and tell its provider; the job goes on from its newest checkpoint.",
    ),
    FailurePattern.NUMPY_2: Advice(
        "A package was made for NumPy 1, and NumPy 2 is installed.",
        "Pin numpy==1.26.4 where packages are installed (setup), or take a newer version of that package.",
    ),
    FailurePattern.MISSING_MODULE: Advice(
        "A module or the project itself is not on a node.",
        "Install it in setup:, and name the project as workdir:; without a shared file system each node needs its own copy.",
    ),
    FailurePattern.PORT_IN_USE: Advice(
        "The port at which ranks meet is taken by another program.",
        "Choose another port above 1024 (HOLDFAST_MASTER_PORT), or end what an earlier run has left on that node.",
        "reference/worker-environment.md",
    ),
    FailurePattern.WRONG_INTERFACE: Advice(
        "NCCL uses a network interface at which the other nodes are not reached.",
        "Set NCCL_SOCKET_IFNAME to the one between the nodes (ip -br addr lists them; ^lo,docker0 leaves two out), and open its ports.",
        "howto/transport.md",
    ),
    FailurePattern.NO_RENDEZVOUS: Advice(
        "Ranks did not find each other at the start.",
        "The name of the first node has to resolve on all of them, and firewalls have to let its port through; see which node says that it "
        "cannot reach it.",
        "howto/transport.md",
    ),
    FailurePattern.COLLECTIVE_TIMEOUT: Advice(
        "A collective took too long: a rank died before it, took another way through the script, or the network stalled.",
        "Look for the rank that is missing in it: the first error in time is the cause. NCCL_DEBUG=INFO says where it stalls.",
        "howto/hangs.md",
    ),
    FailurePattern.NOT_WRITABLE: Advice(
        "Something could not be written.",
        "Look at the rights and the room of that folder on the node of rank 0, which alone should write.",
    ),
    FailurePattern.NOT_SAVED: Advice(
        "The job is through, and no checkpoint of it was kept.",
        "Name holdfast.checkpoint.store and call run.track(); what the script writes itself is written by rank 0 alone, to a place that "
        "outlives the node.",
        "howto/own-script.md",
    ),
    FailurePattern.TOO_MANY_THREADS: Advice(
        "More threads compute than the node has cores.",
        "Set OMP_NUM_THREADS to 1, or to the cores that each rank has; take fewer workers in the DataLoader, or fewer ranks.",
        "howto/slow-training.md",
    ),
    FailurePattern.NOT_FINITE: Advice(
        "The loss is not finite any more.",
        "Lower the learning rate or warm it up, clip gradients (clip_grad_norm_), use bf16 instead of fp16; go on from a checkpoint before it.",
    ),
    FailurePattern.EXPLODING: Advice(
        "The gradients explode.",
        "Clip them (torch.nn.utils.clip_grad_norm_ after backward), and lower the learning rate.",
    ),
    FailurePattern.SLOW_NETWORK: Advice(
        "More than a fifth of each step is spent waiting for other ranks' gradients.",
        "Let holdfast-worker audit say which network NCCL took; else the model is too small for so many ranks: sum up gradients over "
        "several batches, or take fewer nodes.",
        "howto/transport.md",
    ),
    FailurePattern.SOCKETS: Advice(
        "Between nodes data goes by sockets.",
        "If the nodes have InfiniBand, RoCE or EFA, NCCL did not take it: holdfast-worker audit says why, and what to set.",
        "howto/transport.md",
    ),
    FailurePattern.SLOW_LOADING: Advice(
        "Steps wait for data.",
        "Give the DataLoader num_workers above 0, pin_memory=True and prefetching, and have the data near the nodes.",
        "howto/slow-training.md",
    ),
    FailurePattern.IDLE_GPU: Advice(
        "The GPU has nothing to do for much of the time; 95 % and more is good.",
        "If steps do not wait for data, take bigger batches; .item() and print of tensors in each step make the GPU wait for the CPU.",
        "howto/slow-training.md",
    ),
    FailurePattern.LEAK: Advice(
        "Memory grows with the steps: a leak, as a rule.",
        "Look for tensors that are kept with their graph (sums of loss without .item(), lists), and for gradients that nobody sets to zero.",
        "howto/slow-training.md",
    ),
}


def _sign(trouble: FailurePattern, *patterns: str) -> tuple[FailurePattern, re.Pattern[str]]:
    return trouble, re.compile("|".join(patterns), re.IGNORECASE)


SIGNS: Final = (
    _sign(FailurePattern.DUPLICATE_GPU, r"Duplicate GPU detected"),
    _sign(FailurePattern.NO_SUCH_GPU, r"invalid device ordinal", r"no GPU of its own"),
    _sign(
        FailurePattern.WRONG_DEVICE,
        r"Expected all tensors to be on the same device",
        r"Input type \(\S+\) and weight type \(\S+\) should be the same",
        r"module parameters.*device_ids",
        r"device_ids.*module parameters",
    ),
    _sign(FailurePattern.GPU_MEMORY, r"CUDA out of memory", r"torch\S*OutOfMemoryError"),
    _sign(
        FailurePattern.HOST_MEMORY,
        r"DefaultCPUAllocator: can't allocate memory",
        r"\bMemoryError\b",
        r"oom-kill",
        r"Out of memory: Killed process",
        r"DataLoader worker .* killed by signal: Killed",
    ),
    _sign(
        FailurePattern.GPU_BROKEN,
        r"\bXid\b",
        r"uncorrectable ECC error",
        r"fallen off the bus",
        r"CUDA error: (?:an illegal memory access|unspecified launch failure|hardware)",
    ),
    _sign(
        FailurePattern.NUMPY_2,
        r"compiled using NumPy 1\.x cannot be run in",
        r"Unable to avoid copy while creating an array",
        r"was removed in the NumPy 2\.0 release",
        r"numpy\.dtype size changed",
        r"numpy\.core\.multiarray failed to import",
    ),
    _sign(FailurePattern.MISSING_MODULE, r"ModuleNotFoundError", r"\b(?:proj|pkgs)=missing\b"),
    _sign(FailurePattern.PORT_IN_USE, r"Address already in use", r"EADDRINUSE"),
    _sign(
        FailurePattern.WRONG_INTERFACE,
        r"no socket interface found",
        r"NET/Socket\s*: No interface found",
        r"socketStartConnect.*(?:refused|timed out|unreachable|no route)",
        r"NCCL WARN .*Connect(?:ion)? to .* failed",
        r"gloo.*(?:No route to host|Unable to find address for)",
    ),
    _sign(
        FailurePattern.NO_RENDEZVOUS,
        r"Rendezvous(?:Timeout|Connection|Closed)Error",
        r"client socket has (?:timed out|failed to connect)",
        r"waiting for clients\. \d+/\d+ clients joined",
        r"Name or service not known",
        r"Temporary failure in name resolution",
        r"cannot reach node 0 at",
    ),
    _sign(
        FailurePattern.COLLECTIVE_TIMEOUT,
        r"Watchdog caught collective operation timeout",
        r"\[c10d\].*(?:collective|ALLREDUCE).*timed? ?out",
        r"Timeout\(ms\)=\d+",
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        r"ncclRemoteError",
    ),
    _sign(
        FailurePattern.NOT_WRITABLE,
        r"PermissionError: \[Errno 13\]",
        r"Read-only file system",
        r"No space left on device",
        r"Disk quota exceeded",
    ),
    _sign(
        FailurePattern.TOO_MANY_THREADS,
        r"libgomp: Thread creation failed",
        r"blas_thread_init: pthread_create failed",
        r"Our suggested max number of worker in current system is",
    ),
    _sign(FailurePattern.NOT_FINITE, r"\bloss\W+nan\b"),
)  # fmt: skip
"""How troubles show in a line, the most certain first. A line is of the first that fits."""


def _any() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    return re2.compile("|".join(pattern.pattern for _, pattern in SIGNS), options)


_ANY: Final = _any()
"""All of them in one: nearly every line has none, and this says so in one pass."""


def match_failure(line: str) -> FailurePattern | None:
    """What a line is a sign of; None: of nothing."""
    if not _ANY.search(line):
        return None
    return next((trouble for trouble, pattern in SIGNS if pattern.search(line)), None)
