"""The device, threads and Python of a process, and settings that depend on the device.

Under a scheduler, a job sees only its own GPU. Without a scheduler, or in a group of jobs in one
Slurm job, each process sees several GPUs, and all processes would use the first GPU. So each
process reserves the GPU with the fewest users, by a lock that is released when the process ends.

A GPU executes its operations in order, while the program continues. Data copied from the GPU may be
read only after waiting for a mark (a CUDA event) that was set after the copy.
`tests/support/stand_in_device.py` imitates a GPU's delayed copies, so that tests need no GPU.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from dpprobe.errors import DeviceError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("dpprobe")

# The environment variable with the user's original PATH, before `put_python_on_path`.
USER_PATH = "DPPROBE_USER_PATH"

Mark = Any
VISIBLE = "CUDA_VISIBLE_DEVICES"
# The most processes per GPU; more would not fit into its memory.
_LEVELS = 64
# A program that ends with status 3 only if torch is installed and sees no GPU.
_ASK_TORCH = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"
# Locks of GPUs, which this process releases only when it ends.
_held: list[BinaryIO] = []
# The GPUs that this process saw before it hid all but one.
_seen: list[str] = []


def resolve_device(name: str) -> str:
    """Returns "cpu" or "cuda" for a study's `device`; raises DeviceError for cuda without a GPU.

    Call this function before anything else uses CUDA. If there are several GPUs, this process
    reserves one of them, which no other process on the node uses while there are enough GPUs.
    """
    if name == "cpu":
        return name
    keep_one_device()
    import torch  # late and heavy: each start of Snakemake imports this module

    available = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if available else "cpu"
    if name == "cuda" and not available:
        raise DeviceError(
            "device: the study asks for cuda, but torch sees no GPU; write `device: auto` or cpu"
        )
    return name


def identity_device(name: str) -> str:
    """Returns the device to record in the identity of a study's cells: "cpu" or "cuda".

    Needs no GPU for `device: cuda`, so that a machine without a GPU can reuse finished cells.
    """
    return resolve_device(name) if name == "auto" else name


def limit_threads(threads: int) -> None:
    import torch  # late, because torch is heavy

    torch.set_num_threads(max(1, threads))


def put_python_on_path() -> None:
    """Puts this Python first on PATH; keeps the user's PATH in `USER_PATH` for printed commands."""
    folder, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    os.environ.setdefault(USER_PATH, path)
    os.environ["PATH"] = os.pathsep.join([folder, path])


def visible_devices(environment: Mapping[str, str], nodes: Iterable[str]) -> tuple[str, ...]:
    """Returns the GPUs that a process sees, according to `CUDA_VISIBLE_DEVICES`.

    Args:
      nodes: file names in /dev, from which GPUs are counted if the variable is not set.
    """
    written = environment.get(VISIBLE)
    if written is None:
        count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in nodes)
        return tuple(map(str, range(count)))
    names: list[str] = []
    for name in map(str.strip, written.split(",")):
        if not name or name == "-1":  # CUDA ignores this entry and all later entries
            break
        names.append(name)
    return tuple(dict.fromkeys(names))


def count_devices() -> int:
    """Counts the GPUs that this process sees, without starting CUDA."""
    return len(visible_devices(os.environ, _device_nodes()))


def lacks_gpu() -> bool:
    """Returns True if torch sees no GPU; starts another process to find out, which takes seconds.

    Returns False if this Python has no torch, because jobs may run in another environment.
    """
    asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, check=False)
    return asked.returncode == 3


def slot_names(devices: Sequence[str], environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lists the pairs (lock file, device) in the order in which a process tries to lock them.

    The list has each device once, then each device a second time, and so on. So the first pair with
    an unlocked file has a device with the fewest users. Two Slurm jobs may use one name for
    different devices, so each Slurm job has its own locks.
    """
    job = environment.get("SLURM_JOB_ID", "")
    return [
        (re.sub(r"[^A-Za-z0-9.-]", "_", f"{job}.{device}.{level}"), device)
        for level in range(_LEVELS)
        for device in devices
    ]


def take_device(
    environment: Mapping[str, str] | None = None,
    *,
    nodes: Iterable[str] | None = None,
    folder: Path | None = None,
) -> str | None:
    """Reserves one of several visible GPUs until the process ends; None with fewer than two GPUs.

    Args:
      folder: the folder of the locks, on the node's own disk, shared by all processes of a user.
    """
    given = os.environ if environment is None else environment
    devices = visible_devices(given, _device_nodes() if nodes is None else nodes)
    if len(devices) < 2:
        return None
    return next(iter(_lock_devices(devices, 1, given, folder)), None)


def reserve_devices(count: int, *, folder: Path | None = None) -> list[str]:
    """Reserves `count` different GPUs for child processes, until this process ends.

    Raises DeviceError if this process sees fewer GPUs.
    """
    devices = _seen or visible_devices(os.environ, _device_nodes())
    if len(devices) < count:
        raise DeviceError(
            f"fine_tuning.processes: {count}, but the job sees {len(devices)} GPU(s); write "
            f"`processes: {max(1, len(devices))}`, or give the job gpu={count}"
        )
    return _lock_devices(devices, count, os.environ, folder)


def _lock_devices(
    devices: Sequence[str], count: int, environment: Mapping[str, str], folder: Path | None
) -> list[str]:
    """Locks `count` different devices with the fewest users."""
    place = folder or Path(tempfile.gettempdir(), f"dpprobe-gpus-{os.getuid()}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken: list[str] = []
    for name, device in slot_names(devices, environment):
        if len(taken) == count:
            break
        if device not in taken and (lock := _lock_file(place / name)) is not None:
            _held.append(lock)
            taken.append(device)
    return taken


def keep_one_device() -> None:
    """Hides all GPUs but one from this process; call it before CUDA starts."""
    if not _held and (device := take_device()) is not None:
        _seen.extend(visible_devices(os.environ, _device_nodes()))
        os.environ[VISIBLE] = device
        logger.info("GPU %s of several", device)


def _lock_file(path: Path) -> BinaryIO | None:
    """Locks a file and returns it; None if another process has locked it."""
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    return stream


def _device_nodes() -> list[str]:
    try:
        return os.listdir("/dev")  # noqa: PTH208 - names are enough
    except OSError:
        return []


class Accelerator:
    """The first GPU that this process sees, with the operations that feature extraction needs."""

    device = "cuda"

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns uninitialised host memory for copies from and to the device."""
        import torch  # late, because torch is heavy

        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def copy_to_device(self, values: torch.Tensor) -> torch.Tensor:
        """Starts a copy to the device."""
        return values.to(self.device, non_blocking=True)

    def copy_to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Starts a copy to the host; before reading, wait for a mark that was set later."""
        return self.host_memory(values.shape, values.dtype).copy_(values, non_blocking=True)

    def set_mark(self) -> Mark:
        """Sets a mark after all operations that were sent to the device so far."""
        import torch  # late, because torch is heavy

        event = torch.cuda.Event()
        event.record()
        return event

    def wait_for_mark(self, mark: Mark) -> None:
        mark.synchronize()


def find_accelerator(device: str) -> Accelerator | None:
    return Accelerator() if is_gpu(device) else None


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def default_precision(device: str) -> Literal["float16", "float32"]:
    """Returns the precision to use for `precision: auto` on this device."""
    return "float16" if is_gpu(device) else "float32"


def use_precision(device: torch.device | str, precision: torch.dtype | None) -> torch.autocast:
    """Sets the precision of matrix products; None means the precision of the weights."""
    import torch  # late, because torch is heavy

    kind = "cuda" if is_gpu(str(device)) else "cpu"
    return torch.autocast(kind, dtype=precision, enabled=precision is not None)


@contextmanager
def use_full_float32() -> Iterator[None]:
    """Sets full float32 products and deterministic convolutions in the `with` block.

    By default a GPU rounds factors of convolutions to 10 bits (TF32), an error above clipping's
    margins, and chooses its algorithm by the batch size.
    """
    import torch  # late, because torch is heavy

    backend, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = backend.deterministic, backend.benchmark, backend.allow_tf32
    torch.set_float32_matmul_precision("highest")
    backend.deterministic, backend.benchmark, backend.allow_tf32 = True, False, False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        backend.deterministic, backend.benchmark, backend.allow_tf32 = before


def has_kernels(device: torch.device) -> bool:
    """Returns True if compiled loops exist for a device; elsewhere torch computes equal sums."""
    return device.type == "cpu"


def spare_bytes(device: torch.device) -> int:
    """Returns the memory for copies that only save time: half of the free memory of a GPU.

    Memory that PyTorch has reserved from earlier copies counts as free. On a CPU the result is 32
    MB, which is little compared with torch, so that jobs need not request more memory.
    """
    import torch  # late, because torch is heavy

    if not is_gpu(device.type):
        return 2**25
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + reserved) // 2
