"""Options that all backbones share: which are refused, and what planning reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.backbones.network_options import Views
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support.backbones import load, noise

NETWORKS: dict[str, dict[str, Any]] = {
    "timm": {"family": "timm", "model": "test_vit", "pretrained": False},
    "open_clip": {"family": "open_clip", "model": "ViT-B-32", "pretrained": False},
    "convolutional": {"family": "convolutional", "color": "rgb", "stages": [{"filters": 4}]},
    "imported": {"family": "imported", "module": "nets.tiny:build"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "pixels": {"family": "pixels", "size": 8},
    "scattering": {"family": "scattering", "size": 8},
}
INCEPTION: dict[str, Any] = {"crop": "inception", "crop_seed": 3}
every_network = pytest.mark.parametrize("family", NETWORKS)


def of(family: str, **changes: Any) -> Any:
    return backbone_options({**NETWORKS, **OTHERS}[family] | changes)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"layers": [1, 1]}, "layers: block 1 appears twice; remove one"),
    ({"layers": [0, 2, 0]}, "layers: block 0 appears twice; remove one"),
    ({"layers": [-1]}, "layers.0: -1: must be a number of 0 or more"),
    ({"layers": "last"}, "layers: 'last': must be 'all' or a list"),
    ({"token": "pooled"}, "token pooled has no effect without layers; remove it, or write"),
    (
        {"layers": [0], "preprocessing": INCEPTION | {"crops": 2}},
        "preprocessing.crops 2 with layers: .* two backbones, one with crops and one with layers",
    ),
    ({"preprocessing": {"mean": [0.1, 0.2]}}, "preprocessing.mean: 2 values for 3 channels; give"),
    ({"preprocessing": {"std": [1] * 4}}, "preprocessing.std: 4 values for 3 channels; give one"),
    ({"preprocessing": {"std": [1, 0, 1]}}, "preprocessing.std.1: 0: must be a number above 0"),
    ({"preprocessing": {"std": 0}}, "preprocessing.std: 0: must be a number above 0"),
    ({"preprocessing": {"mean": float("nan")}}, "preprocessing.mean: nan: must be a finite number"),
    ({"preprocessing": {"crop_seed": 3}}, "crop_seed 3 has no effect with crop centre; remove it"),
    ({"preprocessing": {"crop_seed": 0}}, "crop_seed 0 has no effect with crop centre; remove it"),
    ({"preprocessing": {"crops": 2}}, "crops 2 has no effect with crop centre; remove it, or"),
    ({"preprocessing": INCEPTION | {"crops": 100}}, "crops: 100: must be a number of 99 or less"),
    ({"preprocessing": {"size": 0}}, "preprocessing.size: 0: must be a number of 1 or more"),
    ({"checkpoint_sha256": "0" * 64}, "checkpoint_sha256: has no checkpoint to check; remove it"),
    ({"grey_bits": 17}, "grey_bits: 17: must be a number of 16 or less"),
    ({"grey_bits": 0}, "grey_bits: 0: must be a number of 1 or more"),
    ({"dimension": 0}, "dimension: 0: must be a number of 1 or more"),
]


@every_network
@pytest.mark.parametrize(("change", "said"), WRONG)
def test_options_of_networks_that_cannot_be_meant_are_refused(
    family: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        of(family, **change)


@every_network
def test_crops_are_random_or_stored(family: str) -> None:
    for views, random, stored in (
        ({}, False, 0),
        ({"flip": True}, False, 0),
        (INCEPTION, True, 0),
        (INCEPTION | {"crops": 3}, False, 3),
    ):
        options = of(family, preprocessing=views)
        assert (options.random_crops, options.stored_crops) == (random, stored), views
    assert of(family, layers=[3, 0, 11]).layers == (0, 3, 11)
    assert of(family, layers="all").layers == "all"
    assert of(family, layers=[0], preprocessing=INCEPTION).random_crops


@pytest.mark.parametrize("family", [*NETWORKS, *OTHERS])
def test_features_are_decided_by_options_and_not_by_notes_or_places(family: str) -> None:
    plain = of(family).extraction_params()
    assert of(family, dimension=9, catalog="x").extraction_params() == plain
    deeper = of(family, grey_bits=12).extraction_params()
    assert deeper == plain | {"grey_bits": 12}
    assert of(family, grey_bits=16).extraction_params() == plain, "files of old studies stay valid"
    if family in NETWORKS:
        assert of(family, layers=[1]).extraction_params() == plain | {"layers": [1]}
        flipped = of(family, preprocessing={"flip": True}).extraction_params()
        assert flipped["preprocessing"]["flip"]
        assert flipped != plain


@pytest.mark.parametrize("family", ["timm", "open_clip", "imported"])
def test_a_checkpoint_is_a_file_that_must_exist(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    for name in ("w.pth", "other.pth", "nets/tiny.py"):
        (tmp_path / name).touch()
    source = ("nets/tiny.py",) if family == "imported" else ()
    given = of(family, checkpoint="w.pth")
    given.check_files()
    assert given.input_files() == ("w.pth", *source)
    assert of(family).input_files() == source
    if family != "imported":  # here the weights' hash identifies the file
        assert given.extraction_params() == of(family, checkpoint="other.pth").extraction_params()
    for missing in ("no/such.pth", "nets"):
        with pytest.raises(ConfigError, match=f"checkpoint: no file {missing}; correct the path"):
            of(family, checkpoint=missing).check_files()


def test_families_tell_planning_what_they_are() -> None:
    for family in NETWORKS:
        options = of(family)
        assert options.network
        assert (options.computed_dimension, options.fewer_features) == (None, None)
    for family in OTHERS:
        options = of(family)
        assert not options.network
        assert options.fewer_features == "project: 512"
        assert (options.random_crops, options.stored_crops, options.input_files()) == (False, 0, ())
    for family in ("timm", "convolutional", "imported", "pixels", "scattering"):
        assert not of(family).reads_text
        assert of(family).list_warnings() == []
        assert of(family).text_params() == of(family).extraction_params()


def test_an_expected_number_of_features_is_compared() -> None:
    options = of("pixels", dimension=63)
    with pytest.raises(ConfigError, match="dimension: 63 features .* but the backbone gives 64"):
        options.check_dimension(64)
    with pytest.raises(ConfigError, match="dimension: 63 features .* but the backbone gives 64"):
        load(**OTHERS["pixels"], dimension=63)
    options.check_dimension(63)
    of("pixels").check_dimension(64)


@pytest.mark.parametrize("family", ["convolutional", "timm"])
def test_grey_bits_hold_for_training_and_test_images(family: str) -> None:
    values = NETWORKS[family] | {"grey_bits": 12, "preprocessing": INCEPTION}
    backbone = load(**values)
    assert backbone.train_transform is not None
    transforms: list[Any] = [backbone.transform, backbone.train_transform]
    for transform in transforms:
        assert (type(transform).__name__, transform.bits) == ("AssumeGreyBits", 12)
    central = load(**NETWORKS[family], grey_bits=12)
    assert central.train_transform is None
    assert (
        backbone.train_transform(noise((40, 40)), b"x").dtype == backbone.transform(noise()).dtype
    )


def test_crops_and_mirrors_are_part_of_the_recorded_preprocessing() -> None:
    assert Views().resolved_views() == {"crop": "centre", "flip": False}
    assert Views(crop="inception", flip=True).resolved_views() == {
        "crop": "inception",
        "crop_seed": 0,
        "flip": True,
    }
    stored = Views(crop="inception", crop_seed=4, crops=2).resolved_views()
    assert stored == {"crop": "inception", "crop_seed": 4, "crops": 2, "flip": False}
