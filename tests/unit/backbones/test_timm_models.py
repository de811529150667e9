"""Models of timm: names, files, settings next to a checkpoint, and explained errors."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from timm.layers.mlp import SwiGLUPacked
from timm.models._hub import save_for_hf
from torch import nn

from dpprobe.backbones import timm_models
from dpprobe.backbones.image_preprocessing import InceptionCrop
from dpprobe.backbones.registry import backbone_options
from dpprobe.backbones.timm_models import list_hub_files, read_stated_config
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.private_mark import mark_metadata
from tests.support.backbones import load, noise, renew_list, run

VIT: dict[str, Any] = {"family": "timm", "model": "test_vit"}
RANDOM = VIT | {"pretrained": False}
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def options(**changes: Any) -> Any:
    return backbone_options(RANDOM | changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"pretrained": True, "checkpoint": "w"},
            "pretrained: true and a checkpoint are both set; keep one",
        ),
        ({"model_args": {"pretrained": True}}, "model_args: pretrained is an option of the backb"),
        ({"model_args": {"checkpoint_path": "x"}}, "checkpoint_path is an option of the backbone"),
        ({"model_args": {"in_chans": 0}}, "in_chans 0: must be a whole number of 1 or more"),
        ({"model_args": {"in_chans": True}}, "in_chans True: must be a whole number"),
        ({"model_args": {"in_chans": 2.0}}, "in_chans 2.0: must be a whole number"),
        ({"model_args": {"in_chans": "3"}}, "in_chans '3': must be a whole number"),
        (
            {"model_args": {"in_chans": 1}, "preprocessing": {"mean": [0.5, 0.5]}},
            "preprocessing.mean: 2 values for 1 channels",
        ),
        ({"preprocessing": {"crop_pct": 1.5}}, "crop_pct: 1.5: must be a number of 1 or less"),
        ({"preprocessing": {"crop_pct": 0}}, "crop_pct: 0: must be a number above 0"),
        ({"model": ""}, "model: "),
    ],
)
def test_options_that_contradict_each_other_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**change)


@pytest.mark.locked
@pytest.mark.parametrize(
    ("model", "without", "with_weights"),
    [
        ("resnet50", None, None),
        ("resnet50.a1_in1k", None, None),
        ("hf-hub:a/b", None, None),
        ("vit_base_patch16_224_in21k", None, None),  # an old name, which timm replaces
        ("vit_base_patch16_224_in21k.tag", None, None),
        (
            "resnet50.a1_in1kk",
            None,
            "no weights 'a1_in1kk' of resnet50; write a1_in1k or .*it",
        ),
        (
            "resnet50.qqqq",
            None,
            "no weights 'qqqq' of resnet50; correct it: it has a1_in1k",
        ),
        (
            "botnet50ts_256",
            None,
            "no weights of botnet50ts_256; name a checkpoint, or",
        ),
        ("test_vitt", "no model 'test_vitt'; write test_vit or ", "no model 'test_vitt'"),
        ("qqqqqqqq", "no model 'qqqqqqqq'; correct it$", "no model 'qqqqqqqq'"),
    ],
)
def test_names_are_compared_with_timms_list(
    model: str, without: str | None, with_weights: str | None
) -> None:
    for pretrained, said in ((False, without), (True, with_weights)):
        chosen = options(model=model, pretrained=pretrained)
        if said is None:
            chosen.check_files()
        else:
            with pytest.raises(ConfigError, match=f"model: timm has {said}"):
                chosen.check_files()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("test_vitt", "no model 'test_vitt'; write test_vit or "),
        ("qqqqqqqq", "no model 'qqqqqqqq'; correct it$"),
        ("test_vit.r160_in1l", "no weights 'r160_in1l' of test_vit; write r160_in1k: it has r160"),
    ],
)
def test_timm_of_another_version_explains_its_names(
    monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.setattr(timm_models, "known_architectures", lambda: None)
    options(model=model).check_files()
    with pytest.raises(ConfigError, match=f"model: timm has {said}"):
        load(family="timm", model=model)


@pytest.mark.locked
def test_the_list_of_architectures_is_timms() -> None:
    listed: dict[str, list[str]] = {name: [] for name in timm.list_models()}
    for weights in timm.list_pretrained():
        name, _, tag = weights.partition(".")
        listed[name].append(tag)
    listed |= {name: [timm_models.DEPRECATED] for name in timm.models._registry._deprecated_models}
    lines = [" ".join([name, *sorted(tags)]) for name, tags in sorted(listed.items())]
    renew_list(timm_models.ARCHITECTURES, "\n".join([f"timm {timm.__version__}", *lines]) + "\n")


@pytest.mark.parametrize(
    ("written", "assumed"),
    [
        ({}, "mean, std, size, interpolation"),
        ({"interpolation": "bilinear"}, "mean, std, size"),
        ({"mean": 0.5, "std": 0.5, "size": 9}, "interpolation"),
        ({"mean": 0.5, "std": 0.5, "size": 9, "interpolation": "bilinear"}, None),
    ],
)
def test_a_checkpoint_s_preprocessing_is_assumed_aloud(
    written: dict[str, Any], assumed: str | None
) -> None:
    warnings = options(checkpoint="w.pth", preprocessing=written).list_warnings()
    if assumed is None:
        assert warnings == []
    else:
        (warning,) = warnings
        said = f"w.pth: preprocessing {assumed} and further model_args are assumed to be timm's for"
        assert warning.startswith(f"{said} test_vit.")
    assert options(preprocessing=written).list_warnings() == []


def test_weights_of_a_file_are_others_than_random_or_timms() -> None:
    """The weights' hash is part of the features' fingerprint, but their path is not."""
    params = [
        options(**change).extraction_params()
        for change in ({}, {"pretrained": True}, {"checkpoint": "a"}, {"checkpoint": "b"})
    ]
    assert params[2] == params[3]
    assert [each["pretrained"] for each in params] == [False, True, None, None]
    assert not any("checkpoint" in each for each in params)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"model": "resnet18"}, [("weights", "timm/resnet18.a1_in1k", WEIGHTS)]),
        ({"model": "resnet18", "pretrained": False}, []),
        ({"model": "resnet18", "pretrained": None, "checkpoint": "w.pth"}, []),
        ({"model": "resnet18", "model_args": {"cache_dir": "x"}}, []),
        ({"model": "resnet18", "model_args": {"pretrained_cfg": {}}}, []),
        ({"model": "gcvit_base.in1k"}, []),  # from another server
        ({"model": "local-dir:x"}, []),
        (
            {"model": "hf-hub:a/b@v2"},
            [("config", "a/b@v2", ("config.json",)), ("weights", "a/b@v2", WEIGHTS)],
        ),
        ({"model": "hf_hub:a/b", "pretrained": False}, [("config", "a/b", ("config.json",))]),
    ],
)
def test_files_of_the_hub_are_known_before_they_are_fetched(
    change: dict[str, Any], wanted: list[Any]
) -> None:
    assert list_hub_files(options(**{"pretrained": True} | change)) == wanted


# A file next to the checkpoint of `test_vit`, and the preprocessing and arguments it states.
STATED: list[tuple[Any, dict[str, Any] | None, dict[str, Any]]] = [
    ({}, None, {}),
    ([], None, {}),
    ({"pretrained_cfg": []}, None, {}),
    ({"other": 1}, None, {}),
    ({"mean": [0.5] * 3}, {"mean": [0.5] * 3}, {}),
    ({"pretrained_cfg": {"std": 0.5, "x": 1}}, {"std": 0.5}, {}),
    (
        {"architecture": "test_vit.tag", "pretrained_cfg": {"crop_pct": 0.9}},
        {"crop_pct": 0.9},
        {},
    ),
    ({"architecture": "resnet50", "mean": 0.5}, None, {}),
    ({"pretrained_cfg": {"architecture": "resnet50", "mean": 0.5}}, None, {}),
    ({"input_size": [3, 32, 32], "std": 1}, {"std": 1, "size": 32}, {}),
    ({"input_size": [3, 32, 64], "std": 1}, {"std": 1}, {}),
    ({"input_size": 32, "std": 1}, {"std": 1}, {}),
    (
        {"mean": 0.5, "model_args": {"num_classes": 3, "depth": 2}},
        {"mean": 0.5},
        {"depth": 2},
    ),
    ({"mean": 0.5, "model_args": [1]}, {"mean": 0.5}, {}),
    (
        {"crop_mode": "squash", "pretrained_cfg": {"crop_mode": "border"}},
        {"crop_mode": "border"},
        {},
    ),
    ({"interpolation": "bicubic", "crop_mode": "center"},) * 2 + ({},),
]


@pytest.mark.parametrize("name", ["w.json", "config.json"])
@pytest.mark.parametrize(("values", "given", "arguments"), STATED)
def test_a_file_next_to_a_checkpoint_states_its_preprocessing(
    tmp_path: Path, name: str, values: Any, given: dict[str, Any] | None, arguments: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    found = read_stated_config(tmp_path / "w.pth", "test_vit.x")
    if given is None:
        assert found is None
    else:
        assert found == {"file": name, "preprocessing": given, "model_args": arguments}


def test_the_checkpoint_s_own_file_comes_first_and_broken_ones_are_passed_over(
    tmp_path: Path,
) -> None:
    assert read_stated_config(tmp_path / "w.pth", "test_vit") is None
    (tmp_path / "config.json").write_text('{"mean": 0.5}')
    for text in ("{", '{"architecture": "resnet50", "mean": 0.1}', "{}"):
        (tmp_path / "w.json").write_text(text)
        found = read_stated_config(tmp_path / "w.pth", "test_vit")
        assert found is not None, text
        assert found["file"] == "config.json", text
    (tmp_path / "w.json").write_text('{"mean": 0.1}')
    found = read_stated_config(tmp_path / "w.pth", "test_vit")
    assert found is not None
    assert (found["file"], found["preprocessing"]) == ("w.json", {"mean": 0.1})
    (tmp_path / "w.json").write_text('{"std": 0}')
    file = re.escape(str(tmp_path / "w.json"))
    said = rf"{file}: states unusable values \(preprocessing.std: 0: must be a number above 0"
    with pytest.raises(ConfigError, match=said):
        read_stated_config(tmp_path / "w.pth", "test_vit")


def create(raised: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Loads a model while timm's function raises or returns `raised`."""
    monkeypatch.setattr(timm_models, "require_files", list)
    monkeypatch.setattr("timm.create_model", Mock(side_effect=raised))
    return load(**RANDOM | changes)


REFUSED = TypeError("VisionTransformer.__init__() got an unexpected keyword argument 'dept'")
NO_TAG = RuntimeError("Invalid pretrained tag (x) for test_vit")


@pytest.mark.parametrize(
    ("raised", "changes", "said"),
    [
        (
            REFUSED,
            {"model_args": {"dept": 1}},
            "model_args: dept is no .*; write depth$",
        ),
        (REFUSED, {}, r"cannot create test_vit \(VisionTransformer.__init__\(\) got"),
        (
            NO_TAG,
            {"model": "test_vit.qqq"},
            "no weights 'qqq' of test_vit; correct it: it",
        ),
        (NO_TAG, {}, r"cannot create test_vit \(Invalid pretrained tag"),
        (ValueError("x"), {"model": "test_vit.qqq"}, r"cannot create test_vit.qqq \(x\)"),
    ],
)
def test_wrong_arguments_and_tags_are_explained(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        create(raised, monkeypatch, **changes)


def test_a_model_without_a_classifier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="test_vit has no classifier, but features are the input"):
        create([nn.Identity()], monkeypatch)


def test_preprocessing_is_timms_with_the_study_s_changes() -> None:
    written = {"size": 32, "mean": 0.25, "std": [0.5, 0.5, 1], "crop_mode": "squash"}
    views = {"flip": True, "crop": "inception", "crop_seed": 3}
    own = resolve_model_data_config(timm.create_model("test_efficientnet"))
    backbone = load(**RANDOM | {"model": "test_efficientnet"}, preprocessing=written | views)
    assert backbone.preprocessing == {
        "color": "RGB",
        "input_size": [3, 32, 32],
        "mean": [0.25] * 3,
        "std": [0.5, 0.5, 1],
        "crop_mode": "squash",
        "interpolation": own["interpolation"],
        "crop_pct": own["crop_pct"],
        **views,
    }
    assert backbone.train_transform == InceptionCrop(
        mode="RGB", size=(32, 32), interpolation=own["interpolation"], seed=3
    )
    assert backbone.transform(noise((90, 70))).shape == (3, 32, 32)


def test_a_one_channel_model_reads_grey_images_and_needs_one_mean_and_std() -> None:
    grey: dict[str, Any] = {"model_args": {"in_chans": 1, "img_size": 64}}
    backbone = load(**RANDOM, **grey, preprocessing={"mean": 0.5, "std": 0.5})
    found = {key: backbone.preprocessing[key] for key in ("color", "input_size", "mean", "std")}
    assert found == {"color": "L", "input_size": [1, 64, 64], "mean": [0.5], "std": [0.5]}
    assert backbone.transform(noise((90, 70))).shape == (1, 64, 64)
    with pytest.raises(ConfigError, match="preprocessing.mean: 3 values for 1 channels; give one"):
        load(**RANDOM, **grey)


def test_layers_of_a_resnet_are_its_stages() -> None:
    backbone = load(**RANDOM | {"model": "test_resnet"}, layers=[4, 0])
    model = timm.create_model("test_resnet")
    assert dict(backbone.layers) == {"0": 32, "4": model.num_features}  # 32 after the stem
    assert backbone.dimension == model.num_features
    for layers, token, said in (
        ([40], None, "layers: test_resnet has no block 40; use numbers from 0 to 4"),
        ("all", "class", "token: test_resnet has no class token"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(**RANDOM | {"model": "test_resnet"}, layers=layers, token=token)


# pooling of tokens


DINOV3 = "vit_small_patch16_dinov3"
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}


def test_the_class_token_of_dinov3_is_the_first_token_after_its_norm() -> None:
    """`append_patch_mean` appends the mean of the tokens after four registers."""
    picture = noise((40, 40))
    made: dict[str, Any] = {}
    changes: dict[str, dict[str, Any]] = {
        "class": {"model_args": SMALL | {"global_pool": "token"}},
        "default": {"model_args": SMALL},
        "both": {"model_args": SMALL | {"global_pool": "token"}, "append_patch_mean": True},
    }
    for name, change in changes.items():
        made[name] = load(**RANDOM | {"model": DINOV3, "preprocessing": {"size": 64}} | change)
    data = made["class"].preprocessing
    steps = create_transform(
        input_size=tuple(data["input_size"]),
        crop_pct=data["crop_pct"],
        mean=data["mean"],
        std=data["std"],
        interpolation=data["interpolation"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = timm.create_model(DINOV3, **SMALL).eval()
    with torch.inference_mode():
        tokens = model.forward_features(steps(picture)[None])
    assert tokens.shape == (1, 1 + 4 + 16, 48)
    assert isinstance(model.norm, nn.LayerNorm)
    features = {name: run(backbone, picture) for name, backbone in made.items()}
    torch.testing.assert_close(features["class"], tokens[:, 0], rtol=1e-5, atol=1e-5)
    patches = tokens[:, 5:].mean(1)
    torch.testing.assert_close(features["default"], patches, rtol=1e-5, atol=1e-5)
    both = torch.cat([tokens[:, 0], patches], dim=1)
    torch.testing.assert_close(features["both"], both, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(tokens[:, 0], patches, atol=0.1)
    assert len({backbone.fingerprint for backbone in made.values()}) == 3
    assert len({backbone.weights_sha256 for backbone in made.values()}) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "vit_base_patch16_dinov3.lvd1689m"}, "vit_base_patch16_dinov3"),
        ({"model": "vit_large_patch16_dinov3_qkvb"}, "vit_large_patch16_dinov3_qkvb"),
        ({"model": "vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m"}, "vit_tiny_patch16_dinov3_qkvb"),
        ({"model": "hf-hub:timm/vit_7b_patch16_dinov3.sat493m"}, "vit_7b_patch16_dinov3"),
        ({"model": "local-dir:{folder}"}, "vit_small_patch16_dinov3"),
        ({"model": "local-dir:{stated}"}, None),
        ({"model": "local-dir:{folder}/nowhere"}, None),
        ({"model": DINOV3, "model_args": {"global_pool": "avg"}}, None),
        ({"model": DINOV3, "model_args": {"global_pool": "token"}}, None),
        ({"model": DINOV3, "append_patch_mean": True}, None),
        ({"model": "convnext_base.dinov3_lvd1689m"}, None),  # has no class token
        ({"model": "vit_base_patch14_dinov2.lvd142m"}, None),  # timm uses its class token
    ],
)
def test_another_pooling_than_the_authors_is_reported(
    tmp_path: Path, change: dict[str, Any], named: str | None
) -> None:
    for name, arguments in (("folder", {}), ("stated", {"model_args": {"global_pool": "token"}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"architecture": DINOV3} | arguments)
        )
    model = change["model"].format(folder=tmp_path / "folder", stated=tmp_path / "stated")
    warnings = options(**change | {"model": model}).list_warnings()
    if named is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith(f"timm's features of {named} are the mean of the patch tokens")
        assert "Write `model_args: {global_pool: token}`" in warning


@pytest.mark.locked
def test_every_pooling_that_timm_notes_is_reported() -> None:
    """The test reads timm's own notes, so the list cannot become outdated."""
    source = Path(inspect.getfile(timm.models.eva)).read_text()
    parts = re.split(r"\ndef ", source)
    said = [part.partition("(")[0] for part in parts if "NOTE: Pass global_pool='token'" in part]
    assert len(said) == source.count("NOTE: Pass global_pool='token'") >= 10
    for name in said:
        assert options(model=name).list_warnings(), name


def test_the_mlp_of_a_vit_may_be_named() -> None:
    """UNI 2 and Virchow, for example, need this option."""
    made = load(**RANDOM | {"model_args": {"mlp_layer": "SwiGLUPacked", "act_layer": "silu"}})
    graph: Any = made.graph
    expected: Any = timm.create_model("test_vit", mlp_layer=SwiGLUPacked, act_layer=nn.SiLU)
    expected.reset_classifier(0)
    assert {k: v.shape for k, v in graph.model.state_dict().items()} == {
        k: v.shape for k, v in expected.state_dict().items()
    }
    with pytest.raises(ConfigError, match="mlp_layer 'Linear': choose one of GluMlp, Mlp"):
        options(model_args={"mlp_layer": "Linear"})


# folders in the Hub's layout


def save_folder(folder: Path, **arguments: Any) -> Any:
    """Saves a small network with random weights by timm's own function."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = timm.create_model("test_vit", num_classes=7, **arguments).eval()
    save_for_hf(model, str(folder), model_args=arguments or None, safe_serialization=True)
    return model


def test_a_folder_is_loaded_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = save_folder(tmp_path / "mine")
    chosen: dict[str, Any] = {"family": "timm", "model": f"local-dir:{tmp_path / 'mine'}"}
    backbone = load(**chosen)
    steps = create_transform(**resolve_model_data_config(model))
    model.reset_classifier(0)
    with torch.inference_mode():
        expected = model(steps(noise((90, 70)))[None])
    torch.testing.assert_close(run(backbone, noise((90, 70))), expected, rtol=1e-5, atol=1e-5)
    assert backbone.trained
    assert backbone.architecture == "test_vit"
    files = backbone_options(chosen).input_files()
    assert [Path(file).name for file in files] == ["config.json", "model.safetensors"]


def test_a_folder_is_known_by_its_weights_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    save_folder(tmp_path / "mine")
    shutil.copytree("mine", "copy")
    shutil.copytree("mine", "pooled")
    shutil.copytree("mine", "other")
    values = json.loads(Path("mine/config.json").read_text())
    Path("pooled/config.json").write_text(
        json.dumps(values | {"model_args": {"global_pool": "avg", "fc_norm": False}})
    )
    weights = load_file("other/model.safetensors")
    save_file(weights | {"cls_token": weights["cls_token"] + 1}, "other/model.safetensors")
    made = {
        name: load(family="timm", model=f"local-dir:{name}")
        for name in ("mine", str(tmp_path / "copy"), "~/copy", "pooled", "other")
    }
    prints = [backbone.fingerprint for backbone in made.values()]
    assert len(set(prints[:3])) == 1
    assert len(set(prints)) == 3
    params = [
        options(model=f"local-dir:{name}", pretrained=True).extraction_params() for name in made
    ]
    assert params[0] == params[1] == params[2] == params[4]
    assert (
        params[0]["model"]
        == f"local-dir:{sha256(Path('mine/config.json').read_bytes()).hexdigest()}"
    )
    assert str(tmp_path) not in json.dumps(params)


def test_a_folder_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    chosen = options(model=f"local-dir:{tmp_path / 'mine'}", pretrained=True)
    with pytest.raises(ConfigError, match="model: no folder .*mine; correct the path after local-"):
        chosen.check_files()
    (tmp_path / "mine").mkdir()
    with pytest.raises(
        ConfigError, match=r"mine has no config\.json; copy it from the model's rep"
    ):
        chosen.check_files()
    (tmp_path / "mine" / "config.json").write_text('{"architecture": "test_vit"}')
    with pytest.raises(ConfigError, match=r"mine has no weights \(.safetensors, .bin, .pth, "):
        chosen.check_files()
    chosen.model_copy(update={"pretrained": False}).check_files()


def test_a_folder_with_private_weights_is_refused(tmp_path: Path) -> None:
    save_folder(tmp_path / "mine")
    path = tmp_path / "mine" / "model.safetensors"
    save_file(load_file(path), path, metadata=mark_metadata({"dataset": "xray"}, {"head": "sgd"}))
    with pytest.raises(PrivacyError):
        load(family="timm", model=f"local-dir:{path.parent}")
