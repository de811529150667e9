"""The job of representation laws, on networks whose scatter per block is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.representation_law import Tuning, measure
from dpprobe.analyses.representation_law.law_measures import (
    fit_law,
    measure_residuals,
    measure_scatter,
)
from dpprobe.analyses.representation_law.law_record import LawRecord
from dpprobe.analyses.representation_law.measure import SPLITS, measure_layer, tap_blocks
from dpprobe.backbones.network_forward import Tapped

CLASSES, WIDTH, RHO = 3, 6, 0.5


class Shrink(torch.nn.Module):
    """Multiplies each row's squared distance from the nearest class mean, and so SS_w, by rho."""

    def __init__(self, rho: float, axis: int) -> None:
        super().__init__()
        self.rho, self.axis = rho, axis

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        moved = values.movedim(self.axis, -1)
        means = 10 * torch.eye(CLASSES, WIDTH)
        nearest = means[torch.cdist(moved, means.expand(len(moved), -1, -1)).argmin(-1)]
        return (nearest + self.rho**0.5 * (moved - nearest)).movedim(-1, self.axis)


class Tokens(torch.nn.Module):
    """A made-up transformer with a constant class token and shrinking blocks."""

    num_prefix_tokens = 1

    def __init__(self, rho: float = RHO, depth: int = 5) -> None:
        super().__init__()
        self.cls_token = torch.nn.Parameter(torch.ones(1, 1, WIDTH))
        self.blocks = torch.nn.ModuleList([Gather(), *(Shrink(rho, -1) for _ in range(depth - 1))])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = images.flatten(2).transpose(1, 2).float()
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, 0]


class Gather(torch.nn.Module):
    """Sets the class token to the mean of the patches."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mean = tokens[:, 1:].mean(dim=1, keepdim=True)
        return torch.cat([mean, tokens[:, 1:]], dim=1)


class Maps(torch.nn.Module):
    """A made-up convolutional network, whose blocks return maps."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.AvgPool2d(2)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = block(images)
        return images.mean((2, 3))


def _rows(rows: int, *, seed: int) -> measure.Rows:
    """Makes 2 x 2 images whose channels are a class mean plus noise."""
    drawn = np.random.default_rng(seed)
    labels = np.tile(np.arange(CLASSES), rows // CLASSES)
    values = 10 * np.eye(CLASSES, WIDTH)[labels] + drawn.standard_normal((len(labels), WIDTH))
    images = torch.from_numpy(values.astype(np.float32))[:, :, None, None].expand(-1, -1, 2, 2)
    return measure.Rows(images=images.contiguous(), labels=labels)


def _subject(
    network: torch.nn.Module, tuning: Tuning | None = None, **names: str
) -> measure.Subject:
    return measure.Subject(
        make=lambda: tap_blocks(network, network, "made up", token="class"), tuning=tuning, **names
    )


TUNED = Tuning(setting="constant", tuned="last 2 blocks", blocks=2)


def make_laws(tmp_path: Path, *more: measure.Subject, rows: int = 300, **changes: int) -> LawRecord:
    """Measures the frozen network, one with two tuned blocks, and further networks."""
    subjects = [_subject(Tokens()), _subject(Tokens(0.8), TUNED, method="two", epsilon="1"), *more]
    return measure.law_job(
        subjects,
        {"train": _rows(rows, seed=0), "test": _rows(rows // 2, seed=1)},
        tmp_path / "law.json",
        dataset="made_up",
        backbone="tokens",
        device="cpu",
        fingerprint="f",
        **{"shuffles": 2, "seed": 0} | changes,
    )


def test_the_factor_of_each_network_comes_back(tmp_path: Path) -> None:
    record = make_laws(tmp_path)
    assert record.layers == 5
    assert record.token == "class"
    for network, rho in zip(record.networks, (RHO, 0.8), strict=True):
        for split in SPLITS:
            law = network.find_series("fuzziness", split).law
            assert law is not None
            assert law.rho == pytest.approx(rho, abs=1e-3)
            rising = network.find_series("separability", split).law
            assert rising is not None
            assert rising.rho == pytest.approx(1 / rho, rel=0.01)
    assert record.frozen.method is None
    assert (record.networks[1].method, record.networks[1].blocks) == ("two", 2)


def test_a_network_whose_head_alone_was_tuned_is_the_frozen_one(tmp_path: Path) -> None:
    def never() -> Tapped:
        raise AssertionError("its blocks are those of the frozen network")

    head = Tuning(setting="constant", tuned="head", blocks=0)
    alike = measure.Subject(make=never, tuning=head, method="head", epsilon="1")
    record = make_laws(tmp_path, alike, rows=30)
    assert record.networks[2].series == record.frozen.series != record.networks[1].series
    assert record.networks[2].blocks == 0


def test_what_is_rounding_has_no_measure() -> None:
    """Features that include class indicators leave only rounding errors as residuals."""
    labels = np.tile(np.arange(CLASSES), 20)
    noise = np.random.default_rng(0).normal(size=(2, 60, 4))
    train, test = (
        np.column_stack([np.eye(CLASSES)[labels], each]).astype(np.float32) for each in noise
    )
    both = dict.fromkeys(SPLITS, labels)
    layer = measure_layer(train, test, both, [dict.fromkeys(SPLITS, np.sort(labels))])
    for split in SPLITS:
        assert layer.values[split, "residual"] is layer.values[split, "residual_one_hot"] is None
        assert (layer.values[split, "separability"] or 0) > 0.1
        assert (layer.shuffled[split, "residual"] or 0) > 0.2
    left = {(split, *names): why.partition(" ")[2] for split, names, why in layer.left_out}
    assert set(left.values()) == {"is rounding"}
    assert len(left) == 4


def test_maps_are_pooled_and_tokens_may_be() -> None:
    rows, maps = _rows(30, seed=0), Maps()
    tapped = tap_blocks(maps, maps, "made up", token="class")
    assert tapped.token == "pooled"
    features = measure.block_features(tapped, rows.images, device="cpu")
    assert [layer.shape for layer in features] == [(30, WIDTH)] * 3
    np.testing.assert_allclose(features[0], rows.images.mean((2, 3)).numpy(), rtol=1e-6)
    tokens = Tokens()
    tapped = tap_blocks(tokens, tokens, "made up", token="pooled")
    pooled = measure.block_features(tapped, rows.images, device="cpu")
    np.testing.assert_allclose(pooled[0], rows.images.mean((2, 3)).numpy(), rtol=1e-6)


def test_a_network_that_sees_mirror_images_gives_the_mean_of_both() -> None:
    class Mirrored(Maps):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + super().forward(3 * images)

    maps, images = Mirrored(), torch.rand(5, WIDTH, 2, 2)
    tapped = tap_blocks(maps, maps, "made up", token="pooled")
    features = measure.block_features(tapped, images, device="cpu")
    np.testing.assert_allclose(features[0], 2 * images.mean((2, 3)).numpy(), rtol=1e-6)


def test_series_hold_the_measures_of_their_layers(tmp_path: Path) -> None:
    """The values equal those of the measures on the features of each layer."""
    record = make_laws(tmp_path, rows=60, seed=3)
    rows = {"train": _rows(60, seed=0), "test": _rows(30, seed=1)}
    features = {
        split: measure.block_features(
            tap_blocks(network := Tokens(), network, "made up", token="class"),
            each.images,
            device="cpu",
        )
        for split, each in rows.items()
    }
    frozen = record.frozen
    assert frozen.widths == (WIDTH,) * 6
    assert (record.train_rows, record.test_rows, record.classes) == (60, 30, CLASSES)
    assert (record.shuffles, record.seed, record.fingerprint) == (2, 3, "f")
    for layer in range(1, 6):
        train, test = features["train"][layer], features["test"][layer]
        left = measure_residuals(
            train, rows["train"].labels, held_out=test, held_out_labels=rows["test"].labels
        )
        expected = {
            ("residual", "train"): left.integer,
            ("residual", "test"): left.integer_held_out,
            ("residual_one_hot", "train"): left.one_hot,
            ("residual_one_hot", "test"): left.one_hot_held_out,
        }
        for split, each in (("train", train), ("test", test)):
            scatter = measure_scatter(each, rows[split].labels)
            expected["separability", split] = scatter.separability
            expected["fuzziness", split] = scatter.fuzziness
        for (name, split), value in expected.items():
            found = frozen.find_series(name, split).values[layer]  # type: ignore[arg-type]
            assert found == pytest.approx(value, rel=1e-4), (layer, name, split)
    for series in frozen.series:
        assert series.law == fit_law(range(1, 6), series.values[1:])[0]
        assert series.null == fit_law(range(1, 6), series.shuffled[1:])[0]
        noisy = series.split == "train" and series.measure.startswith("residual")
        # 60 rows of rank 6, after a class token that is equal for all rows
        expected_noise = pytest.approx((1.0, *[(59 - WIDTH) / 59] * 5))
        assert series.noise == (expected_noise if noisy else None)


def test_shuffled_labels_match_the_noise_level_and_more_shuffles_are_averaged(
    tmp_path: Path,
) -> None:
    record = make_laws(tmp_path, rows=300, shuffles=3)
    for network in record.networks:
        one_hot = network.find_series("residual_one_hot", "train")
        assert one_hot.noise is not None
        three = (each[1:] for each in (one_hot.shuffled, one_hot.values, one_hot.noise))
        for shuffled, value, noise in zip(*three, strict=True):
            assert shuffled == pytest.approx(noise, abs=0.02)
            assert value is not None
            assert value < 0.1
    seeds = [
        make_laws(tmp_path, rows=60, seed=seed).frozen.series[0].shuffled for seed in (1, 1, 2)
    ]
    assert seeds[0] == seeds[1] != seeds[2], "the study's seed shuffles"
    layers = [_layer([np.array(order) for order in orders]) for orders in (SORTED, MIXED, BOTH)]
    first, second, both = (layer.shuffled["train", "residual"] for layer in layers)
    assert both == pytest.approx((first + second) / 2)  # type: ignore[operator]


SORTED, MIXED = [[0, 0, 0, 0, 1, 1, 1, 1]], [[0, 1, 1, 0, 1, 0, 0, 1]]
BOTH = [*SORTED, *MIXED]


def _layer(orders: list[np.ndarray]) -> measure.Layer:
    features = np.random.default_rng(0).normal(size=(2, 8, 2)).astype(np.float32)
    labels = dict.fromkeys(SPLITS, np.arange(8) % 2)
    train, test = features
    return measure_layer(train, test, labels, [dict.fromkeys(SPLITS, each) for each in orders])


def test_a_layer_without_a_measure_is_left_out_with_its_place_and_reason(tmp_path: Path) -> None:
    record = make_laws(tmp_path, rows=30)
    left: dict[Any, list[Any]] = {(each.layer, each.split): [] for each in record.frozen.left_out}
    for each in record.frozen.left_out:
        left[each.layer, each.split].append((each.measures, each.reason))
    residuals = "the same for all rows, so there is nothing to predict"
    assert left == {
        (0, split): [
            (("separability", "fuzziness"), "the same for all rows, so that D is 0/0"),
            (("residual", "residual_one_hot"), residuals),
        ]
        for split in SPLITS
    }, "the class token before the first block"
    assert all(series.values[0] is None for series in record.frozen.series)
    features = np.random.default_rng(0).normal(size=(2, 30, 2)).astype(np.float32)
    labels: Any = {"train": np.arange(30) % 3, "test": np.zeros(30, dtype=np.int64)}
    train, test = features
    layer = measure_layer(train, test, labels, [labels])
    assert set(layer.left_out) == {
        ("test", ("separability", "fuzziness"), "one class"),
        ("test", ("residual", "residual_one_hot"), "not defined"),
    }
    assert layer.width == 2
