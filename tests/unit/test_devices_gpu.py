"""The way through a GPU, walked on a processor: order, waiting, memory; heads without kernels."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe import devices
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.table import SplitTable, decode_image
from dpprobe.errors import DataError
from dpprobe.features import extraction_pipeline
from dpprobe.features.extraction_pipeline import Clock, Decoder, compute_rows
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.target import Target
from tests.support.gpu import needs_gpu
from tests.support.stand_in_device import StandIn
from tests.unit.features.test_extraction import extract, noise, write_dataset

VIT: dict[str, Any] = {"family": "timm", "model": "test_vit", "pretrained": False}


def network(**changed: Any) -> Backbone:
    runtime = Runtime(device="cpu", precision="float32")
    return loading.load_backbone(backbone_options(VIT | changed), runtime=runtime)


def rows_of(
    table: SplitTable, backbone: Backbone, device: StandIn | None, **given: Any
) -> tuple[np.ndarray, dict[str, np.ndarray], Clock]:
    clock = Clock()
    decoder = Decoder(backbone, table.split, memory_of=device)
    parts = compute_rows(
        table.read_images(0, table.rows), table.rows, decoder, backbone, batch_size=40, threads=3,
        accelerator=device, clock=clock, **given,
    )  # fmt: skip
    values, layers = [], []
    with closing(parts):
        for part in parts:
            values.append(part.values.copy())  # what is read now must be there now
            layers.append({name: one.copy() for name, one in part.layers.items()})
    names = layers[0]
    return (
        np.concatenate(values),
        {name: np.concatenate([one[name] for one in layers]) for name in names},
        clock,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> SplitTable:
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, [noise(row) for row in range(101)])
    return SplitTable(directory / "train.parquet")


@pytest.mark.parametrize("layers", [[], [0, 1]])
def test_a_device_gives_the_features_of_the_processor(table: SplitTable, layers: list[int]) -> None:
    backbone, device = network(**({"layers": layers} if layers else {})), StandIn()
    wanted, wanted_layers, _ = rows_of(table, backbone, None)
    values, blocks, clock = rows_of(table, backbone, device)
    np.testing.assert_allclose(values, wanted, rtol=1e-3, atol=1e-4)
    assert blocks.keys() == wanted_layers.keys()
    for name, one in blocks.items():
        np.testing.assert_allclose(one, wanted_layers[name], rtol=1e-3, atol=1e-4)
    assert clock.rows == 101
    assert device.sent == 3 + 3 + 2  # pieces of 16 that span no batch of 40
    assert device.fetched == 3 * (1 + len(layers))
    assert {"decode", "transfer", "forward"} <= clock.seconds.keys()


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
    rows_of(table, network(), device)
    assert order == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]
    assert device.waited == 3


def test_what_cannot_be_decoded_is_left_out_on_a_device_too(table: SplitTable) -> None:
    backbone, device, bad = network(), StandIn(), {0, *range(40, 80), 100}

    def opened(image: Any) -> Any:
        if image.row in bad:
            raise DataError("no image")
        return decode_image(image, split="train")

    decoder = extraction_pipeline.TolerantDecoder(backbone, opened, memory_of=device)
    parts = compute_rows(
        table.read_images(0, 101), 101, decoder, backbone, batch_size=40, threads=2,
        accelerator=device, clock=Clock(),
    )  # fmt: skip
    with closing(parts):
        seen = [(part.rows, part.values.copy(), part.faults) for part in parts]
    assert [row for rows, _, _ in seen for row, _ in rows] == sorted(set(range(101)) - bad)
    assert {fault.row[0] for _, _, faults in seen for fault in faults} == bad
    assert all(np.isfinite(values).all() for _, values, _ in seen)


def test_extraction_and_its_shard_are_the_same_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", [noise(row) for row in range(50)])
    given: dict[str, Any] = {"backbone": VIT, "batch_size": 24, "threads": 2, "shards": 2}
    wanted = extract(dataset, tmp_path / "cpu", **given)
    device = StandIn()
    monkeypatch.setattr(devices, "find_accelerator", lambda _: device)
    actual = extract(dataset, tmp_path / "device", **given)
    assert device.sent > 0
    assert actual.ids == wanted.ids
    np.testing.assert_allclose(actual.read(), wanted.read(), rtol=1e-3, atol=1e-4)


def test_the_processor_has_no_accelerator() -> None:
    assert devices.find_accelerator("cpu") is None
    cuda = devices.find_accelerator("cuda")
    assert cuda is not None
    assert cuda.device == "cuda"
    assert devices.default_precision("cuda") == "float16"
    assert devices.default_precision("cpu") == "float32"


# heads on a device without our kernels

HEADS: dict[str, dict[str, Any]] = {
    "momentum": {"steps": 20, "batch_size": 30},
    "adam": {"steps": 20, "batch_size": "full"},
    "sgd": {"steps": 20, "batch_size": 30},
    "feature_covariance": {},
    "newton": {},
    "least_squares": {},
    "prototypes": {},
}


def training_set(device: str = "cpu") -> TrainingSet:
    # No class has a third of the rows: the first gradient of its bias would be 0 but for rounding,
    # which Adam makes a whole step of.
    features = torch.randn(290, 8, generator=torch.Generator().manual_seed(3))
    labels = features[:, :3].argmax(1)
    return TrainingSet(features.to(device), labels.to(device), 3)


def fitted(head: str, data: TrainingSet, epsilon: float, cache: Path) -> np.ndarray:
    options = method_options({"head": head} | HEADS[head])
    plan = calibrate(
        options.list_mechanisms(data.rows),
        Target(n=data.rows, epsilon=epsilon, delta=1e-3, accountant="rdp"),
        cache=cache,
        selection=options.priced_selection(data.rows),
    )
    return fit_heads(options, data, plan, [1, 2]).weights


def check_heads(plain: np.ndarray, wanted: np.ndarray, noisy: np.ndarray) -> None:
    np.testing.assert_allclose(plain, wanted, rtol=1e-3, atol=1e-4)
    assert np.isfinite(noisy).all()
    assert (np.abs(noisy - plain) > 0).mean() > 0.5
    assert (noisy[0] != noisy[1]).any()


@pytest.mark.parametrize("head", HEADS)
def test_heads_give_the_same_sums_by_products_alone(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise; then the way with noise is walked to its end, and moves every weight."""
    data = training_set()
    wanted = fitted(head, data, float("inf"), tmp_path)
    monkeypatch.setattr(devices, "has_kernels", lambda _: False)
    plain, noisy = (fitted(head, data, epsilon, tmp_path) for epsilon in (float("inf"), 1.0))
    check_heads(plain, wanted, noisy)


@needs_gpu
@pytest.mark.parametrize("head", HEADS)
def test_heads_give_the_same_sums_on_a_gpu(head: str, tmp_path: Path) -> None:
    wanted = fitted(head, training_set(), float("inf"), tmp_path)
    data = training_set("cuda")
    plain, noisy = (fitted(head, data, epsilon, tmp_path) for epsilon in (float("inf"), 1.0))
    check_heads(plain, wanted, noisy)
