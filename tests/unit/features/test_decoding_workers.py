"""Processes that decode for a GPU, for which a stand-in is used: order, faults, and exits."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dpprobe import devices
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.data.table import EncodedImage, SplitTable, decode_image
from dpprobe.errors import ConfigError, DataError, WorkerError
from dpprobe.features import decoding_workers, extraction_pipeline
from dpprobe.features.decoding_workers import (
    MOST_ROWS,
    PIECE_BYTES,
    Workers,
    make_task,
    shape_memory,
)
from dpprobe.features.extraction_pipeline import Decoder, Features, TolerantDecoder, compute_rows
from tests.support.backbones import load
from tests.support.gpu import needs_gpu
from tests.support.stand_in_device import StandIn
from tests.unit.features.test_extraction import extract, noise, write_dataset

ROWS = 101
VIT: dict[str, Any] = {"family": "timm", "model": "test_vit", "pretrained": False}


def network(**changed: Any) -> Backbone:
    return load(**VIT | changed)


def pixels() -> Backbone:
    return load(family="pixels")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> SplitTable:
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, [noise(row) for row in range(ROWS)])
    return SplitTable(directory / "train.parquet")


def run(
    table: SplitTable,
    backbone: Backbone,
    device: StandIn | None,
    *,
    batch_size: int = 40,
    threads: int = 3,
    decoder: Decoder | None = None,
) -> list[Features]:
    parts = compute_rows(
        table.read_ranges,
        table.rows,
        decoder or Decoder(backbone, table.split),
        backbone,
        batch_size=batch_size,
        threads=threads,
        accelerator=device,
    )
    with closing(parts):  # the values may be reused later
        return [replace(part, values=part.values.copy()) for part in parts]


def workers_left() -> int:
    """Counts this process's children, except joblib's, which outlive the test that used them."""
    children = multiprocessing.active_children()
    return sum(not type(child).__module__.startswith("joblib.") for child in children)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[], [0, 1]])
@pytest.mark.parametrize(("batch_size", "threads"), [(16, 1), (40, 3), (256, 5)])
def test_a_device_gives_the_features_of_the_processor(
    table: SplitTable, layers: list[int], batch_size: int, threads: int
) -> None:
    """Bits are equal if both pass the same number of rows, here 16."""
    backbone, device = network(**({"layers": layers} if layers else {})), StandIn()
    wanted = run(table, backbone, None, batch_size=16)
    parts = run(table, backbone, device, batch_size=batch_size, threads=threads)
    assert [row for part in parts for row, _ in part.rows] == list(range(ROWS))
    bound = {} if batch_size == 16 else {"rtol": 1e-3, "atol": 1e-4}
    compare: Callable[..., None] = (
        np.testing.assert_allclose if bound else np.testing.assert_array_equal
    )
    for pick in (lambda part: part.values, *(lambda part, n=n: part.layers[n] for n in "01")):
        if pick is None or (layers == [] and pick.__defaults__):
            continue
        compare(
            np.concatenate([pick(part) for part in parts]),
            np.concatenate([pick(part) for part in wanted]),
            **bound,
        )
    batches = -(-ROWS // batch_size)
    assert (device.sent, device.fetched) == (batches, batches * (1 + len(layers)))
    assert workers_left() == 0


def test_a_batch_is_launched_before_the_one_before_is_waited_for(
    table: SplitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, order = StandIn(), []

    def noted(name: str) -> None:
        original = getattr(extraction_pipeline, name)

        def work(*given: Any) -> Any:
            order.append(name.strip("_"))
            return original(*given)

        monkeypatch.setattr(extraction_pipeline, name, work)

    noted("_launch")
    noted("_fetch")
    run(table, network(), device)
    assert order == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]
    assert device.waited == 3


@pytest.mark.parametrize(
    "bad", [set(), {5}, set(range(32)), {0, *range(40, 80), 100}, set(range(ROWS))]
)
@pytest.mark.parametrize("batch_size", [7, 40, 200])
def test_what_cannot_be_decoded_is_left_out_on_a_device_too(
    table: SplitTable, bad: set[int], batch_size: int
) -> None:
    backbone, kept = (
        replace(pixels(), train_transform=lambda *_: torch.full((1,), np.nan)),
        object(),
    )

    def opened(image: EncodedImage) -> Image.Image:
        assert kept is not None  # not picklable, so it must be inherited
        if image.row in bad:
            raise DataError("no image")
        return decode_image(image, split="train")

    decoder = TolerantDecoder(backbone, opened)
    seen = run(table, backbone, StandIn(), decoder=decoder, batch_size=batch_size)
    assert [row for part in seen for row, _ in part.rows] == sorted(set(range(ROWS)) - bad)
    assert [fault.row[0] for part in seen for fault in part.faults] == sorted(bad)
    assert all(len(part.rows) <= batch_size for part in seen)
    ends = [[row for row, _ in part.rows] + [one.row[0] for one in part.faults] for part in seen]
    assert all(max(one) < min(other) for one, other in pairwise(ends))
    assert all(np.isfinite(part.values).all() for part in seen)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_row_s_error_comes_when_it_is_due_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    images = [noise(row) for row in range(90)]
    images[50], images[55], images[88] = b"none", b"none", b"none"
    dataset = write_dataset(tmp_path / "data", images)
    with pytest.raises(DataError) as plain:
        extract(dataset, tmp_path / "cpu", backbone=VIT, batch_size=10)
    monkeypatch.setattr(devices, "find_accelerator", lambda _: StandIn())
    with pytest.raises(DataError) as error:
        extract(dataset, tmp_path / "out", backbone=VIT, batch_size=10, threads=threads)
    assert str(error.value) == str(plain.value)
    assert workers_left() == 0
    assert list((tmp_path / "out").iterdir()) == []


def test_extraction_and_its_shard_are_the_same_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and columns are equal, and so are all feature bits if passes have as many rows."""
    dataset = write_dataset(tmp_path / "data", [noise(row) for row in range(50)])
    given: dict[str, Any] = {"backbone": VIT, "batch_size": 16, "threads": 2, "shards": 2}
    wanted = extract(dataset, tmp_path / "cpu", **given)
    device = StandIn()
    monkeypatch.setattr(devices, "find_accelerator", lambda _: device)
    actual = extract(dataset, tmp_path / "device", **given)
    assert device.sent > 0
    assert actual.ids == wanted.ids
    np.testing.assert_array_equal(actual.read(), wanted.read())


def test_processes_are_forked_before_a_network_is_loaded_and_end_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", [noise(row) for row in range(10)])
    seen = []

    def fail(*_: Any, **__: Any) -> Backbone:
        seen.append(workers_left())
        raise ConfigError("no such network")

    monkeypatch.setattr(devices, "find_accelerator", lambda _: StandIn())
    monkeypatch.setattr(loading, "load_backbone", fail)
    started = time.monotonic()
    with pytest.raises(ConfigError, match="no such network"):
        extract(dataset, tmp_path / "out", backbone=VIT, threads=2)
    assert seen == [2]
    assert workers_left() == 0
    assert time.monotonic() - started < 4, "the processes were waited for"


def test_closing_ends_the_processes(table: SplitTable) -> None:
    backbone = network()
    parts = compute_rows(
        table.read_ranges,
        ROWS,
        Decoder(backbone, "train"),
        backbone,
        batch_size=8,
        threads=3,
        accelerator=StandIn(),
    )
    next(parts)
    assert workers_left() == 3
    parts.close()
    assert workers_left() == 0
    with pytest.raises(RuntimeError, match="^other$"), Workers(table.read_ranges, 1):
        raise RuntimeError("other")


def act_at(row: int, act: Callable[[], None]) -> Callable[[EncodedImage], Image.Image]:
    def opened(image: EncodedImage) -> Image.Image:
        if image.row == row:
            act()
        return decode_image(image, split="train")

    return opened


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"worker \(pid.*\)"),
        (lambda: os._exit(3), r"worker \(pid.*\)"),
        (lambda: time.sleep(60), r"timed out after 2 seconds"),
    ],
)
def test_a_process_that_is_killed_or_hangs_ends_the_work(
    table: SplitTable, act: Callable[[], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_workers, "HANG_SECONDS", 2)
    backbone = pixels()
    decoder = TolerantDecoder(backbone, act_at(60, act))
    with pytest.raises(
        WorkerError, match=rf"^decoding: a process died \({words}.*more memory"
    ) as error:
        run(table, backbone, StandIn(), decoder=decoder, threads=2)
    assert "\n" not in str(error.value)
    wait_for_end(lambda: workers_left() > 0)  # older PyTorch does not wait for what it ends


KILLED = """
import multiprocessing, os, signal
from dpprobe.features.decoding_workers import Workers
workers = Workers(lambda ranges: iter(()), 2)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_that_wait_for_an_order_end_with_their_parent(tmp_path: Path) -> None:
    written = tmp_path / "pids"
    with written.open("w") as stream:
        subprocess.run([sys.executable, "-c", KILLED], stdout=stream, stderr=stream, check=False)
    pids = written.read_text().split()
    assert len(pids) == 2
    wait_for_end(lambda: any(is_running(pid) for pid in pids))


def wait_for_end(running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while running():
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    """Returns False also for a zombie, because a container may lack a process that waits for it."""
    try:
        return ") Z " not in Path("/proc", pid, "stat").read_text()
    except OSError:
        return False


def test_a_worker_has_one_thread(table: SplitTable) -> None:
    def opened(_: EncodedImage) -> Image.Image:
        numbers = {torch.get_num_threads(), pa.cpu_count(), pa.io_thread_count()}
        raise DataError(f"threads {numbers}")

    backbone, before = pixels(), torch.random.get_rng_state()
    (part, *_) = run(table, backbone, StandIn(), decoder=TolerantDecoder(backbone, opened))
    assert {fault.reason for fault in part.faults} == {"threads {1}"}
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("size", [32, 224, 800])
def test_a_piece_fits_into_its_memory(size: int) -> None:
    decoder = Decoder(network(preprocessing={"size": size}), "train")
    order = make_task(decoder, 100_000, 256, 16)
    most = max(map(len, order.pieces))
    assert most == min(MOST_ROWS, PIECE_BYTES // (3 * size**2))
    assert make_task(Decoder(pixels(), "train"), 900, 256, 1).pieces[0] == range(1)


def test_an_error_names_an_image_that_is_too_large_for_the_workers(
    table: SplitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_workers, "PIECE_BYTES", 1 << 10)
    with pytest.raises(DataError, match=r"^train row 0 \(id id0\): the image takes .* size$"):
        run(table, network(), StandIn())


@needs_gpu
def test_processes_feed_a_gpu(table: SplitTable) -> None:
    runtime = Runtime(device="cuda", precision="float32")
    wanted = np.concatenate([part.values for part in run(table, network(), None)])
    backbone = load(runtime, **VIT)
    device: Any = devices.find_accelerator("cuda")
    for _ in range(2):  # the second time after CUDA has started
        parts = run(table, backbone, device)
        values = np.concatenate([part.values for part in parts])
        np.testing.assert_allclose(values, wanted, rtol=0.01, atol=0.01)


IMPORTED = """
import pickle, sys
from importlib import import_module
import dpprobe.features.extraction
from dpprobe.backbones.feature_digest import probe_image
from dpprobe.backbones.registry import FAMILIES
from dpprobe.options import options_class
for name in options_class(FAMILIES, sys.argv[1]).imports:
    import_module(name)
before = {*sys.modules}
pickle.load(sys.stdin.buffer)._transform(probe_image())
print({name.partition(".")[0] for name in {*sys.modules} - before} - {"PIL"})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [VIT, {"family": "open_clip", "model": "RN50", "pretrained": False}],
    ids=lambda options: options["family"],
)
def test_processes_inherit_all_heavy_modules(options: dict[str, Any]) -> None:
    """If processes imported heavy modules themselves, the GPU would wait."""
    decoder = pickle.dumps(Decoder(load(**options), "test"))
    imported = subprocess.run(
        [sys.executable, "-c", IMPORTED, options["family"]],
        input=decoder,
        capture_output=True,
        check=True,
    )
    assert imported.stdout.strip() == b"set()", imported.stdout


@given(
    size=st.none() | st.sampled_from([1, 1 << 20, 3 * 224**2, 1 << 25]),
    count=st.integers(0, 3000),
    batch=st.integers(1, 300),
    processes=st.integers(1, 16),
)
def test_pieces_have_each_row_once_and_suit_memory_batches_and_processes(
    size: int | None, count: int, batch: int, processes: int
) -> None:
    decoder: Any = SimpleNamespace(row_bytes=lambda: size)
    pieces = make_task(decoder, count, batch, processes).pieces
    assert [row for piece in pieces for row in piece] == list(range(count))
    most = max(map(len, pieces), default=0)
    assert all(piece[0] // batch == piece[-1] // batch for piece in pieces), "within one batch"
    assert most <= MOST_ROWS
    assert most <= 1 or most * (size or PIECE_BYTES) <= PIECE_BYTES
    assert most <= 1 or len(pieces) >= 8 * processes, "each process has eight pieces"
    more = most + 1
    if pieces and most < min(batch, MOST_ROWS):
        too_large = more * (size or PIECE_BYTES) > PIECE_BYTES
        assert too_large or more * 8 * processes > count, "no larger piece would do"


@pytest.mark.parametrize(
    ("shape", "kind", "fits"),
    [
        ((2, 3), torch.uint8, True),
        ((24,), torch.uint8, True),
        ((5, 5), torch.uint8, False),
        ((0, 3), torch.float32, True),
        ((2, 3), torch.float32, True),
        ((7,), torch.float32, False),
    ],
)
def test_memory_begins_with_the_numbers_of_a_piece(
    shape: tuple[int, ...], kind: torch.dtype, fits: bool
) -> None:
    memory = torch.arange(24, dtype=torch.uint8)
    found = shape_memory(memory, shape, kind)
    if not fits:
        assert found is None
        return
    wanted = memory.numpy().tobytes()
    dtype = np.dtype(str(kind).removeprefix("torch."))
    assert found is not None
    assert found.numpy().tobytes() == wanted[: found.nbytes]
    assert (found.shape, found.numpy().dtype) == (shape, dtype)
