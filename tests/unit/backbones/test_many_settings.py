"""What backbones answer over many settings, held against stored answers."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from dpprobe.backbones import (
    feature_digest,
    hub_files,
    image_preprocessing,
    open_clip_models,
    timm_models,
)
from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support import tiny_clip
from tests.support.backbones import load, noise
from tests.support.stored_records import answer_of, check_values, to_plain

STAGE = {"filters": 4, "kernel": 4, "stride": 2, "padding": 0, "pool": 2, "pool_stride": 1}
SMALL = {
    "family": "convolutional",
    "preprocessing": {"size": 12},
    "stages": [STAGE, {"filters": 6}],
}
VIT: dict[str, Any] = {"family": "timm", "model": "test_vit"}
CLIP: dict[str, Any] = {"family": "open_clip", "model": "ViT-B-32"}
VECTORS = {"family": "external", "model": "speech-96", "each_by_itself": True}
IMPORTED = {"family": "imported", "module": "nets.tiny:build"}
INCEPTION: dict[str, Any] = {"crop": "inception", "crop_seed": 3}


def views(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"preprocessing": change} for change in changes]


ALL: list[dict[str, Any]] = [{}, {"dimension": 9}, {"grey_bits": 12}, {"grey_bits": 17}]
PROJECTED: list[dict[str, Any]] = [
    {"project": 9},
    {"project": 20},
    {"project": 192},
    {"project": 324},
    {"color": "rgb"},
]
NETWORKS: list[dict[str, Any]] = [
    *({"layers": layers} for layers in ("all", [3, 0, 11], [1, 1], [-1], "last")),
    {"token": "pooled"},
    {"layers": [1], "token": "pooled"},
    {"checkpoint": "w.pth"},
    {"layers": [0], "preprocessing": INCEPTION | {"crops": 2}},
    *({"checkpoint": path} for path in ("no/such.pth", "nets")),
    *views(
        {"mean": 0.5},
        {"mean": [0.1, 0.2]},
        {"std": [1, 0, 1]},
        {"std": 0},
        {"std": [1] * 4},
        {"mean": float("nan")},
        {"crop_seed": 3},
        {"crops": 2},
        INCEPTION,
        {"flip": True},
        INCEPTION | {"crops": 3},
        INCEPTION | {"crops": 100},
        {"size": 0},
        {"crop_pct": 1.5},
    ),
]
SETTINGS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "convolutional": (
        SMALL,
        [
            *ALL,
            *NETWORKS,
            {"stages": []},
            {"stages": [STAGE | {"kernel": 15}]},
            {"hidden": 5},
            {"stages": [{"filters": 4, "pool": 4}] * 2},
            {"stages": [{"filters": 4, "pool": 4}] * 3},
            {"stages": [{"filters": 4, "pool_stride": 2}]},
            {"stages": [STAGE | {"kernel": 12}]},
            {"preprocessing": {"size": 8}, "scattering": {"J": 3}, "stages": [{"filters": 4}]},
            *({"scattering": each} for each in ({"J": 4}, {"J": 3}, {"groups": 2}, {"groups": 3})),
            {"weights_seed": 1},
            {"activation": "relu"},
        ],
    ),
    "timm": (
        VIT | {"pretrained": False},
        [
            *ALL,
            *NETWORKS,
            {"pretrained": True},
            {"pretrained": True, "checkpoint": "w.pth"},
            {"model_args": {"pretrained": True}},
            {"model": "hf-hub:a/b"},
            *({"model_args": {"in_chans": channels}} for channels in (0, True, 1, 2.0, "3")),
            {"model_args": {"in_chans": 1}, "preprocessing": {"mean": [0.5, 0.5]}},
            {"checkpoint": "w.pth", "preprocessing": {"mean": 0.5, "std": 0.5, "size": 9}},
            {"checkpoint": "w.pth", "preprocessing": {"interpolation": "bilinear"}},
            *(
                {"model": name, "pretrained": pretrained}
                for pretrained in (True, False)
                for name in (
                    "resnet50.a1_in1k",
                    "resnet50.a1_in1kk",
                    "resnet50.qqqq",
                    "test_vitt",
                    "qqqqqqqq",
                    "botnet50ts_256",
                    "vit_base_patch16_224_in21k",
                )
            ),
        ],
    ),
    "open_clip": (
        CLIP | {"pretrained": False},
        [
            *ALL,
            *NETWORKS,
            *({"model": name} for name in ("ViT-B-33", "qqqqqqqq", "hf-hub:a/b")),
            *(
                {"model": name, "pretrained": None}
                for name in (
                    "ViT-B-32",
                    "ViT-B-32.openia",
                    "ViT-B-32.webli",
                    "ViT-B-32.openai",
                    "hf-hub:a/b",
                    "ViT-B-32-quickgelu.openai",
                    "ViT-B-32.laion2b_s34b_b79k",
                    "ViT-B-32.Laion2b-e16",
                )
            ),
            *(
                {"model": name, "pretrained": tag}
                for name, tag in (
                    ("ViT-B-32", "openai"),
                    ("ViT-H-14", "dfn5b"),
                    ("ViT-e-14", "x"),
                    ("hf-hub:a/b", "x"),
                    ("ViT-B-32.openai", "laion2b_e16"),
                    ("ViT-B-32.openai", "openai"),
                )
            ),
            {"model": "ViT-B-32.openai", "checkpoint": "w.pth", "pretrained": None},
            {"model": "hf-hub:a/b", "checkpoint": "w.pth", "pretrained": None},
            {"checkpoint": "w.pth", "pretrained": "openai"},
            {"checkpoint": "w.pth", "quick_gelu": True},
            {"model": "ViT-B-32-quickgelu.openai", "quick_gelu": False, "pretrained": None},
            {"model": "ViT-B-32.openai", "quick_gelu": True, "pretrained": None},
            {"model": "ViT-B-32.laion2b_s34b_b79k", "quick_gelu": True, "pretrained": None},
        ],
    ),
    "imported": (
        IMPORTED,
        [
            *ALL,
            *NETWORKS,
            {"module": "nets.tiny"},
            {"module": "nothing.of:it"},
            {"color": "gray"},
            {"module": "nets:build"},
            {"module": "json:loads"},
            {"arguments": {"a": 1}},
            *views({"size": 16, "resize": 8}, {"size": 16, "resize": 16}, {"interpolation": "box"}),
        ],
    ),
}
ASKED = (
    "check_files",
    "list_warnings",
    "reads_text",
    "text_params",
    "extraction_params",
    "input_files",
    "imports",
    "network",
    "takes_vectors",
    "random_crops",
    "stored_crops",
    "computed_dimension",
    "fewer_features",
    "architecture",
    "tag",
    "image_channels",
    "input_shape",
    "unset_options",
)


def ask(values: dict[str, Any]) -> Any:
    options = answer_of(backbone_options, values)
    if not isinstance(options, BackboneOptions):
        return to_plain(options)
    asked = {name: getattr(options, name) for name in ASKED if hasattr(options, name)}
    return to_plain({name: answer_of(one) if callable(one) else one for name, one in asked.items()})


@pytest.mark.parametrize("family", SETTINGS)
def test_options_answer_before_anything_is_loaded(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(open_clip_models, "find_spec", lambda _: None)  # no transformers
    (tmp_path / "w.pth").touch()
    for name in ("nets/tiny.py", "nets/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    base, changes = SETTINGS[family]
    plain, answers = ask(base), {}
    for change in changes:
        found = ask(base | change)
        if isinstance(found, dict) and change:
            found = {name: one for name, one in found.items() if one != plain[name]}
        answers[str(change)] = found
    check_values(f"backbones_{family}", answers)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_clip.register(tmp_path, monkeypatch)


LOADED: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        VIT | {"pretrained": False},
        [
            {},
            {"layers": "all"},
            {"layers": [2, 0], "token": "pooled"},
            {"layers": [40]},
            {"model": "test_resnet", "layers": "all", "token": "class"},
            {"dimension": 63},
            {"model": "test_resnet", "layers": [4, 0]},
            {"model_args": {"in_chans": 1}},
            {
                "model_args": {"in_chans": 1, "img_size": 64},
                "preprocessing": {"mean": 0.5, "std": 0.5},
            },
            {
                "model": "test_efficientnet",
                "preprocessing": {
                    "size": 32,
                    "mean": 0.25,
                    "std": [0.5, 0.5, 1],
                    "interpolation": "bilinear",
                    "crop_pct": 1,
                    "crop_mode": "squash",
                    "flip": True,
                }
                | INCEPTION,
            },
            {"preprocessing": {"size": 100}},
            {"preprocessing": {"size": 224}, "grey_bits": 12},
            {"preprocessing": INCEPTION, "grey_bits": 12},
            {"model_args": {"num_heads": 5}},
            {"model_args": {"no_such": 1}},
        ],
    ),
    (
        SMALL,
        [
            {},
            {"hidden": 5, "activation": "relu"},
            {"layers": "all"},
            {"layers": [3]},
            {"color": "rgb", "preprocessing": {"size": 16, "mean": [0.1, 0.2, 0.3], "flip": True}},
            {"preprocessing": {"size": 16}, "scattering": {"J": 1, "L": 2}},
            {"preprocessing": {"size": 16}, "scattering": {"J": 2, "L": 2, "groups": 3}},
        ],
    ),
    (
        {"family": "open_clip", "model": "tiny", "pretrained": False},
        [
            {},
            {"model": "tiny-quickgelu"},
            {"quick_gelu": True},
            {"layers": [0, 3]},
            {"layers": [4]},
            {"model": "tiny-timm", "layers": [6]},
            {"model": "tiny-resnet", "layers": [4]},
            {
                "preprocessing": {
                    "size": 48,
                    "mean": 0.5,
                    "std": [0.5, 0.4, 0.3],
                    "resize_mode": "longest",
                    "interpolation": "bilinear",
                    "flip": True,
                }
                | INCEPTION
            },
        ],
    ),
    (
        {"family": "pixels", "size": 4},
        [{}, {"color": "rgb", "mean": 0.5, "std": 0.25, "project": 5}],
    ),
    (
        {"family": "scattering", "size": 8},
        [
            {},
            {"color": "rgb", "J": 1, "L": 4},
            {"project": 5},
            {"size": 36, "J": 3, "L": 4},
            {"size": 7, "J": 1},
            {"size": 28},
        ],
    ),
    (
        VECTORS,
        [{}, {"dimension": 7, "version": "2", "pretrained": False, "weights_sha256": "0" * 64}],
    ),
]


def describe(backbone: Backbone) -> dict[str, Any]:
    names = ("dimension", "layers", "preprocessing", "architecture", "trained", "pretrained_tag")
    crop = backbone.train_transform
    found = {name: getattr(backbone, name) for name in names} | {
        "graph": backbone.graph is not None,
        "weights": backbone.weights_sha256 is not None,
        "crop": vars(crop) if isinstance(crop, image_preprocessing.InceptionCrop) else None,
        "transforms": [type(each).__name__ for each in (backbone.transform, crop)],
    }
    if backbone.takes_vectors:
        vectors = torch.randn(5, 96)
        found["refused"] = answer_of(backbone.transform, noise())
        assert torch.equal(backbone.forward(vectors), vectors)
        assert feature_digest.take_probe(backbone) == feature_digest.NO_PROBE
    else:
        image = backbone.transform(noise((90, 70)))
        features, layers = backbone.compute_features(torch.stack([image] * 3))
        found["shapes"] = [each.shape for each in (image, features, *layers.values())]
    return found


@pytest.mark.usefixtures("tiny")
def test_loaded_backbones_are_what_their_options_say() -> None:
    answers = {}
    for base, changes in LOADED:
        for change in changes:
            loaded = answer_of(load, **base | change)
            found = describe(loaded) if isinstance(loaded, Backbone) else loaded
            answers[f"{base['family']} {change}"] = found
    check_values("backbones_loaded", answers)


HUB_FILES: list[dict[str, Any]] = [
    *(
        {"family": "timm", "model": name}
        for name in ("resnet18", "gcvit_base.in1k", "local-dir:x", "hf-hub:a/b@v2")
    ),
    {"family": "timm", "model": "resnet18", "pretrained": False},
    {"family": "timm", "model": "resnet18", "checkpoint": "w.pth"},
    {"family": "timm", "model": "resnet18", "model_args": {"cache_dir": "x"}},
    {"family": "timm", "model": "hf_hub:a/b", "pretrained": False},
    *(
        {"family": "open_clip", "model": name}
        for name in (
            "ViTamin-S.datacomp1b",
            "ViT-B-32.laion2b_s34b_b79k",
            "hf-hub:a/b",
            "local-dir:x",
            "roberta-ViT-B-32.laion2b_s12b_b32k",
        )
    ),
    {"family": "open_clip", "model": "roberta-ViT-B-32", "pretrained": False},
]


def test_files_of_the_hub_are_known_before_they_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[str, Any] = {}
    for values, there in product(HUB_FILES, (None, "there")):
        monkeypatch.setattr(open_clip_models, "find_spec", lambda _, there=there: there)
        family: Any = timm_models if values["family"] == "timm" else open_clip_models
        options = backbone_options(values)
        reads_text = getattr(options, "reads_text", None)
        listed = [one._asdict() for one in family.list_hub_files(options)]
        answers[f"{values} {there}"] = [reads_text, *listed]
    check_values("backbones_hub_files", answers)
    for file, names in (("w.bin", ("w.bin",)), (None, hub_files.TIMM_WEIGHTS)):
        known = SimpleNamespace(hf_hub_id="a/b", hf_hub_filename=file)
        monkeypatch.setattr("timm.models.get_pretrained_cfg", lambda _, known=known: known)
        found: Any = timm_models.list_hub_files(timm_models.Options(model="test_vit"))
        assert found == [("weights", "a/b", names)]


STATED: list[Any] = [
    {},
    [],
    {"pretrained_cfg": []},
    {"mean": [0.5] * 3},
    {"pretrained_cfg": {"std": 0.5, "x": 1}},
    {"architecture": "test_vit.tag", "pretrained_cfg": {"crop_pct": 0.9}},
    {"std": 0},
    {"architecture": "resnet50", "mean": 0.5},
    {"architecture": "test_vit", "mean": [0.1]},
    *({"input_size": size, "interpolation": "bicubic"} for size in ([3, 32, 32], [3, 32, 64], 32)),
    {"mean": 0.5, "model_args": {"num_classes": 3, "depth": 2}},
    {"mean": 0.5, "model_args": [1]},
    {"crop_mode": "squash", "pretrained_cfg": {"crop_mode": "border", "architecture": "test_vit"}},
]


def test_files_beside_a_checkpoint_state_its_preprocessing(tmp_path: Path) -> None:
    answers = []
    for name, values in product(("w.json", "config.json"), STATED):
        (tmp_path / name).write_text(json.dumps(values))
        stated = str(answer_of(timm_models.read_stated_config, tmp_path / "w.pth", "test_vit.x"))
        answers.append(re.sub(r"use \(.*\)", "use (...)", stated).replace(str(tmp_path), "FOLDER"))
        (tmp_path / name).unlink()
    (tmp_path / "w.json").write_text("{")
    (tmp_path / "config.json").write_text('{"mean": 0.5}')
    answers.append(str(timm_models.read_stated_config(tmp_path / "w.pth", "test_vit.x")))
    check_values("backbones_stated", answers)


def test_what_timm_raises_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of creating and resizing a network, and what an error says of an argument."""
    refused = "VisionTransformer.__init__() got an unexpected keyword argument 'dept'"
    said = ("of its own", "Invalid pretrained tag (x) for test_vit", refused)
    kinds: tuple[Any, ...] = (
        AssertionError,
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
        OSError,
    )
    changes: list[dict[str, Any]] = [
        {},
        {"model": "test_vit.qqq"},
        {"model_args": {"dept": 1}},
        {"pretrained": True},
    ]
    answers: dict[str, Any] = {}
    monkeypatch.setattr(timm_models, "require_files", list)
    for kind, words, change in product(kinds, said, changes):
        raised = Mock(side_effect=kind(words))
        monkeypatch.setattr("timm.create_model", raised)
        options: Any = backbone_options(VIT | {"pretrained": False} | change)
        if kind is not TypeError and (change or words != said[0]):
            continue
        answers[f"{kind.__name__} {words} {change}"] = answer_of(timm_models._create_model, options)
        for patch, size in product((None, (8, 8), (8, 4)), ((16, 16), (16, 20), (20, 16))):
            embed = SimpleNamespace(patch_size=patch, img_size=(16, 20))
            model = SimpleNamespace(patch_embed=embed, set_input_size=raised)
            if kind not in (KeyError, OSError) and not change and words == said[0]:
                answers[f"{kind.__name__} {patch} {size}"] = answer_of(
                    timm_models._resize_network, model, options, size
                )
    answers["identity"] = [
        monkeypatch.setattr("timm.create_model", lambda *_, **__: nn.Identity()),
        answer_of(timm_models._create_model, options),
    ]
    answers["arguments"] = [
        timm_models._list_arguments(*each)
        for each in product(("test_resnet", "no_such"), ("ResNet", "NoSuch", "os", "_cfg"))
    ]
    check_values("backbones_explained", answers)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_an_archive_of_numpy_is_read_by_timm_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """At the model's own size, then at the size of the images."""
    call = Mock(side_effect=[ConfigError(f"number {k}") for k in range(fails)] + ["model"])
    monkeypatch.setattr(timm_models, "_call_timm", call)
    values = VIT | {"checkpoint": str(tmp_path / "w.npz"), "preprocessing": {"size": 48}}
    options: Any = backbone_options(values)
    made = answer_of(timm_models._create_model, options)
    assert str(made) == ("model" if fails < 2 else "number 0")
    file = {"checkpoint_path": str(tmp_path / "w.npz")}
    tried = [file, file | {"img_size": 48}][: fails + 1]
    assert [each.kwargs for each in call.call_args_list] == tried
