"""Inputs: requested rows, from memory or decoded, and views that depend on (seed, step, row)."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_tensor

import dpprobe
from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.image_preprocessing import ToBytes, crop_box
from dpprobe.data.table import SplitTable
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.finetune import inputs as inputs_module
from dpprobe.finetune.inputs import ImageInputs, Inputs, cut_inputs, image_inputs, views_of
from dpprobe.finetune.options import Augment
from dpprobe.heads.patient_groups import Units
from dpprobe.privacy.float32_noise import start_lanes
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.randomness import cell_seed, derived_seed, open_stream, stream_seed
from tests.support.feature_stores import write_store
from tests.support.split_tables import encode, write_tables

ROWS, SIZE = 11, 6


def picture(row: int, *, turned: bool = False) -> Image.Image:
    values = np.random.default_rng(row).integers(0, 256, (SIZE, SIZE + 2, 3), dtype=np.uint8)
    return Image.fromarray(values.transpose(1, 0, 2) if turned else values)


def write_images(folder: Path, *, odd: bool = False) -> SplitTable:
    """Writes a table of small images; `odd` swaps one image's height and width."""
    rows = {"train": range(ROWS), "test": range(20, 23)}
    images = {
        split: [encode(picture(row, turned=odd and row == 7)) for row in each]
        for split, each in rows.items()
    }
    units = {split: [f"p{row // 2}" for row in each] for split, each in rows.items()}
    write_tables(folder, images, units=units)
    return SplitTable(folder / "train.parquet")


def bytes_backbone(transform: Any = None) -> Backbone:
    return Backbone(
        dimension=3,
        preprocessing={},
        weights_sha256=None,
        fingerprint="f",
        transform=transform or ToBytes(mode="RGB", steps=pil_to_tensor),
        forward=lambda images: images.float().mean((2, 3)),
    )


def images_of(
    source: SplitTable, *, augment: Augment | None = None, memory_mb: int = 100, seed: int = 3
) -> ImageInputs:
    return image_inputs(
        source,
        bytes_backbone(),
        split="train",
        augment=augment,
        seed=seed,
        memory_mb=memory_mb,
        threads=2,
    )


WANTED = torch.stack([pil_to_tensor(picture(row)) for row in range(ROWS)])
VIEWS = Augment(views=3, flip=True, pad=2)


@pytest.mark.parametrize("less", [0, 1e-6])
def test_images_are_the_table_s(
    tmp_path: Path, less: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that just fit into memory are cached; with a byte more they are decoded each time."""
    monkeypatch.setattr(inputs_module, "DECODED_AT_ONCE", 4)
    most: Any = WANTED.numel() / 1e6 - less
    inputs = images_of(write_images(tmp_path), memory_mb=most)
    assert inputs.slow == (less > 0)
    assert inputs.shape == (3, SIZE, SIZE + 2)
    assert (inputs.rows, inputs.n, inputs.num_classes) == (ROWS, ROWS, 3)
    assert inputs.labels.tolist() == [row % 3 for row in range(ROWS)]
    for index in (np.arange(ROWS), np.array([10, 0, 0, 4]), np.zeros(0, dtype=np.int64)):
        for step in (None, 4):
            batch = inputs.read_batch(index, step=step)
            assert batch.dtype == torch.uint8
            assert torch.equal(batch, WANTED[torch.from_numpy(index)])


def test_images_decoded_again_and_kept_have_the_same_views(tmp_path: Path) -> None:
    source, index = write_images(tmp_path), np.array([9, 2, 2, 7])
    kept, anew = (images_of(source, augment=VIEWS, memory_mb=size) for size in (100, 0))
    assert (kept.views, anew.views) == (3, 3)
    for step in (0, 5):
        first = kept.read_batch(index, step=step)
        assert first.shape == (4, 3, 3, SIZE, SIZE + 2)
        assert torch.equal(first, anew.read_batch(index, step=step))
    assert torch.equal(kept.read_batch(index, step=None), WANTED[torch.from_numpy(index)])


@settings(max_examples=40)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=8),
    step=st.integers(0, 2**40),
    flip=st.booleans(),
    views=st.integers(1, 4),
    pad=st.integers(1, SIZE - 1),
)
def test_views_depend_only_on_seed_step_and_row(
    rows: list[int], step: int, flip: bool, views: int, pad: int
) -> None:
    """Each view equals one of the plain mirrored or unmirrored crops of the reflected image."""
    augment = Augment(views=views, flip=flip, pad=pad)
    index = np.array(rows)
    together = views_of(WANTED[index], augment, key=1, step=step, rows=index)
    assert together.shape == (len(rows), views, *WANTED.shape[1:])
    for place, row in enumerate(rows):
        alone = views_of(WANTED[[row]], augment, key=1, step=step, rows=np.array([row]))
        assert torch.equal(together[place], alone[0])
        padded = np.pad(WANTED[row].numpy(), ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        crops = {
            padded[:, top : top + SIZE, left : left + SIZE + 2].tobytes()
            for top in range(2 * pad + 1)
            for left in range(2 * pad + 1)
        }
        for view in alone[0]:
            plain, mirrored = (one.numpy().tobytes() for one in (view, view.flip(-1)))
            assert plain in crops or (flip and mirrored in crops)


def test_half_of_the_views_are_mirrored_and_all_shifts_are_drawn() -> None:
    """Each of 25 shifts has probability 1 / 25, mirrored or not, over many rows."""
    rows, image = 4000, torch.arange(49, dtype=torch.uint8).view(1, 1, 7, 7)
    augment = Augment(views=1, flip=True, pad=2)
    made = views_of(image.expand(rows, -1, -1, -1), augment, key=1, step=3, rows=np.arange(rows))
    centres = made[:, 0, 0, 3, 3].numpy()
    counts = np.bincount(centres, minlength=49).reshape(7, 7)
    inner = counts[1:6, 1:6]
    assert inner.sum() == rows
    assert np.abs(inner - rows / 25).max() < 5 * (rows / 25) ** 0.5
    # without mirroring, the middle row rises from left to right at its centre
    mirrored = made[:, 0, 0, 3, 4].int() < made[:, 0, 0, 3, 3].int()
    assert abs(float(mirrored.float().mean()) - 0.5) < 5 * 0.5 / rows**0.5


@pytest.mark.parametrize("memory_mb", [100, 0])
def test_an_error_names_the_image_whose_size_differs(tmp_path: Path, memory_mb: int) -> None:
    source = write_images(tmp_path, odd=True)
    with pytest.raises(DataError, match=r"n row 7 \(id train-7\): the image has shape \[3, 8, 6\]"):
        images_of(source, memory_mb=memory_mb).read_batch(np.arange(ROWS), step=None)


def test_a_backbone_that_gives_no_bytes_is_refused(tmp_path: Path) -> None:
    """Floats would silently be truncated to bytes."""
    floats = bytes_backbone(ToBytes(mode="RGB", steps=to_tensor))
    with pytest.raises(ConfigError, match=r"gives torch\.float32 instead of bytes; choose a"):
        image_inputs(
            write_images(tmp_path), floats, split="train", augment=None, seed=1, memory_mb=1
        )


def test_units_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_images(tmp_path)
    names = source.read_units()
    assert names is not None
    inputs = image_inputs(
        source,
        bytes_backbone(),
        split="train",
        augment=None,
        seed=1,
        memory_mb=1,
        threads=0,
        units=Units.number_units(names),
    )
    assert (inputs.rows, inputs.n) == (ROWS, 6)
    several = torch.eye(3, dtype=torch.uint8)[inputs.labels]
    source.multi_label = True
    monkeypatch.setattr(source, "read_labels", lambda: several.numpy().astype(np.int64))
    several_inputs = images_of(source)
    assert torch.equal(several_inputs.labels, several)
    assert several_inputs.labels.dtype == torch.uint8
    for shape in ((3, 6, 8), (3, 8, 6)):
        rest: Any = {"shape": shape, "units": None}
        ImageInputs(WANTED, inputs.labels, 3, **rest, augment=Augment(pad=5))
        with pytest.raises(ConfigError, match=f"pad 6: too large .* {shape[1]} x {shape[2]}"):
            ImageInputs(WANTED, inputs.labels, 3, **rest, augment=Augment(pad=6))
    with pytest.raises(DataError, match="given for 2 rows, but the inputs have 11"):
        ImageInputs(
            WANTED, inputs.labels, 3, shape=inputs.shape, units=Units.number_units(["a", "b"])
        )


@pytest.mark.parametrize("less", [0, 1e-6])
def test_activations_are_the_store_s_and_a_part_shares_them(tmp_path: Path, less: float) -> None:
    store = FeatureStore(write_store(tmp_path, rows=30, dimension=12, classes=3))
    most: Any = 4 * 30 * 12 / 1e6 - less
    inputs = cut_inputs(store, shape=(3, 2, 2), memory_mb=most)
    assert inputs.slow == (less > 0)
    wanted = torch.from_numpy(store.read()).view(30, 3, 2, 2)
    assert inputs.labels.tolist() == store.labels.tolist()
    assert inputs.num_classes == 3
    for index in (np.arange(30), np.array([29, 0, 14, 15, 0]), np.zeros(0, dtype=np.int64)):
        batch = inputs.read_batch(index, step=2)
        assert batch.dtype == torch.float32
        assert torch.equal(batch, wanted[torch.from_numpy(index)])
    with pytest.raises(DataError, match=r"each row has 12 numbers, but the network takes \[3, 5\]"):
        cut_inputs(store, shape=(3, 5), memory_mb=1)
    labels = torch.zeros(4, dtype=torch.int64)
    rows = torch.zeros(4, 2)
    whole = Inputs(rows, labels, 2, shape=(2,), units=None)
    part = whole.keep_rows(np.array([True, False, True, True]))
    assert part.n == 4
    rows[1] = 7.0
    assert part.read_batch(np.array([1]), step=None).tolist() == [[7.0, 7.0]], "shared, not copied"
    assert whole.kept is None


# Keyed streams never repeat words for different purposes, seeds, rows or steps.

SEEDS, KEYED_ROWS, STEPS = (0, 1, 2, 2**64, 2**127), (0, 1, 2, 3, 250), (0, 1, 2, 3, 1000)
WORDS = 40  # per stream, more than a view needs


def words_of(name: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[Any]:
    """Returns the first words of each NumPy generator that a call makes."""
    real, seen = getattr(np.random, name), []

    def watched(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        seen.append(getattr(made, "bit_generator", made).random_raw(WORDS))
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(np.random, name, watched)
        call()
    assert seen
    return seen


def used_names() -> list[str]:
    """Returns the names of streams in the code; some of them belong to one seed."""
    pattern = re.compile(
        r'(?:open_stream|stream_seed|derived_seed|open_keystream)\([^"()]*"([^"]+)"'
    )
    files = Path(inspect.getfile(dpprobe)).parent.rglob("*.py")
    names = {name for file in files for name in pattern.findall(file.read_text())}
    assert {"sampling", "noise", "views", "coins"} <= names
    return sorted(names)


def test_no_word_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(300, 1, 8, 8, dtype=torch.uint8)
    labels = torch.zeros(300, dtype=torch.int64)
    drawn: list[Any] = []
    for seed in SEEDS:
        inputs = ImageInputs(
            images, labels, 2, shape=(1, 8, 8), units=None, augment=Augment(pad=2), seed=seed
        )
        for step in STEPS:
            views = words_of(
                "Philox",
                monkeypatch,
                lambda: inputs.read_batch(np.array(KEYED_ROWS), step=step),  # noqa: B023
            )
            assert len(views) == len(KEYED_ROWS)
            drawn += views
    for seed, row, number in itertools.product(SEEDS[:4], KEYED_ROWS, range(3)):
        sha256 = row.to_bytes(32, "big")
        drawn += words_of(
            "default_rng",
            monkeypatch,
            lambda: crop_box(9, 9, seed=seed, sha256=sha256, number=number),  # noqa: B023
        )
    for seed, name in itertools.product(SEEDS, used_names()):
        drawn.append(open_stream(seed, name).bit_generator.random_raw(WORDS))
        drawn.append(Keystream.from_seed(seed, name).draw_words(WORDS))
        drawn.append(np.array([derived_seed(seed, name) >> 64, stream_seed(seed, f"{name} ")]))
        part = Keystream.from_seed(seed, name).make_part("part")
        drawn.append(part.draw_words(WORDS))
        drawn.append(start_lanes(seed, f"lanes of {name}", 8)[:3].reshape(-1))
    drawn.append(
        np.array([cell_seed({"a": one}, index) >> 64 for one in range(9) for index in range(9)])
    )
    words = np.concatenate([np.asarray(one, dtype=np.uint64) for one in drawn])
    assert len(np.unique(words)) == len(words)
