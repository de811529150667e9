"""Feature dimensions before extraction, by formula or from a network without weights."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import timm
import torch
from safetensors.torch import save_file

from dpprobe.backbones import describe, feature_dimensions, timm_models
from dpprobe.backbones.feature_dimensions import FILE, Dimensions, read_dimensions
from dpprobe.backbones.hub_files import HubFile
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from tests.support import tiny_clip
from tests.support.backbones import describe_here, load

TINY: dict[str, Any] = {"family": "timm", "model": "test_vit", "pretrained": False}


def read(folder: Path, **backbones: dict[str, Any]) -> Dimensions:
    options = {name: backbone_options(values) for name, values in backbones.items()}
    return read_dimensions(options, folder)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the names that are requested; answers come without a process."""
    return describe_here(monkeypatch)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"model": "test_efficientnet"},
        {"model": "test_resnet", "model_args": {"global_pool": "catavgmax"}},
        {"model": "test_vit", "preprocessing": {"size": 64, "flip": True}, "layers": "all"},
        {"model_args": {"in_chans": 1}, "preprocessing": {"mean": 0.5, "std": 0.5}},
    ],
)
def test_a_network_without_weights_gives_as_many_as_the_loaded_one(changed: dict[str, Any]) -> None:
    options = backbone_options(TINY | changed)
    loaded = load(**TINY | changed)
    assert loaded.graph is not None
    blocks = blocks_of(loaded.graph.model, "network")  # type: ignore[arg-type]
    told = {"dimension": loaded.dimension, "blocks": len(blocks)}
    assert describe.describe_backbone(options) == told


def test_a_checkpoint_of_another_open_clip_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    tiny_clip.register(tmp_path, monkeypatch)
    path = tmp_path / "weights.safetensors"
    state = open_clip.create_model("tiny").state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    values = {"family": "open_clip", "checkpoint": str(path)}
    good = backbone_options(values | {"model": "tiny"})
    assert describe.describe_backbone(good) == {"dimension": 24, "blocks": 3}
    wrong = describe.describe_backbone(backbone_options(values | {"model": "tiny-resnet"}))
    assert "open_clip cannot create tiny-resnet" in wrong["fault"]
    path.write_bytes(b"\xff\xd8\xff\xe0")
    assert "a JPEG image" in describe.describe_backbone(good)["fault"]


def test_dimensions_are_found_on_the_meta_device_with_the_cpu_as_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Computing a model of 630 million weights would take 2.5 GB and seconds."""
    devices = []
    create = timm.create_model

    def watched(*arguments: Any, **options: Any) -> Any:
        model = create(*arguments, **options)
        devices.append({one.device.type for one in model.parameters()})
        return model

    monkeypatch.setattr(timm, "create_model", watched)
    huge = backbone_options(TINY | {"model": "vit_huge_patch14_224"})
    assert describe.describe_backbone(huge) == {"dimension": 1280, "blocks": 32}
    assert devices == [{"meta"}]
    monkeypatch.undo()
    real, tried = timm_models.describe, []

    def fails_on_meta(options: Any, device: str) -> dict[str, int]:
        tried.append(device)
        if device == "meta":
            raise NotImplementedError("no such operation on meta")
        return real(options, device)

    monkeypatch.setattr(timm_models, "describe", fails_on_meta)
    assert describe.describe_backbone(backbone_options(TINY))["dimension"] == 64
    assert tried == ["meta", "cpu"]


def test_weights_are_listed_but_not_downloaded(asked: list[str], tmp_path: Path) -> None:
    fetched = {"family": "timm", "model": "resnet50.a1_in1k"}
    first = read(tmp_path, one=fetched)
    assert first.known == {"one": 2048}
    names = ("model.safetensors", "pytorch_model.bin")
    wanted = {"one": [HubFile("weights", "timm/resnet50.a1_in1k", names)]}
    assert first.hub_files == wanted
    assert read(tmp_path, one=fetched).hub_files == wanted, "read from the file"
    assert asked == ["one"]


def test_a_second_start_asks_only_for_what_changed(asked: list[str], tmp_path: Path) -> None:
    other = TINY | {"model": "test_efficientnet"}
    first = read(tmp_path, vit=TINY, other=other, pixels={"family": "pixels"})
    assert first.known == {"vit": 64, "other": 256, "pixels": None}
    scattered = {"family": "scattering", "dimension": 81}  # no formula confirms this number
    assert "but the backbone gives 5184" in read(tmp_path, one=scattered).faults["one"]
    assert set(first.blocks) == {"vit", "other"}
    assert asked == ["vit", "other"]
    again = read(tmp_path, renamed=TINY, other=other)
    assert again.known == {"renamed": 64, "other": 256}
    assert again.blocks == {"renamed": first.blocks["vit"], "other": first.blocks["other"]}
    assert asked == ["vit", "other"]
    changed = TINY | {"model_args": {"embed_dim": 32, "num_heads": 2}}
    assert read(tmp_path, vit=changed).known == {"vit": 32}
    assert asked == ["vit", "other", "vit"]
    for text in ("", "[1]", '{"format": 1, "dimensions": {}}', '{"format": 2}'):  # damaged
        (tmp_path / FILE).write_text(text)
        assert read(tmp_path, vit=TINY).known == {"vit": 64}
        (told,) = json.loads((tmp_path / FILE).read_text())["networks"].values()
        assert told["dimension"] == 64
    assert asked == ["vit", "other"] + ["vit"] * 5


def test_a_checkpoint_that_is_written_again_is_looked_at_again(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.safetensors"
    values = {"family": "timm", "model": "test_vit", "checkpoint": str(path)}
    save_file(timm.create_model("test_vit").state_dict(), path)
    assert read(tmp_path, vit=values).known == {"vit": 64}
    assert read(tmp_path, vit=values).faults == {}
    assert asked == ["vit"]
    os.utime(path, (0, 0))
    for number in ("", "1", "2"):  # other weights of equal size, then other library versions
        assert read(tmp_path, vit=values).faults == {}
        monkeypatch.setattr(feature_dimensions, "version", lambda _, number=number: number)
    assert asked == ["vit"] * 4
    save_file({"a": torch.zeros(3)}, path)
    assert "not weights of test_vit" in read(tmp_path, vit=values).faults["vit"]
    assert read(tmp_path, vit=values).faults, "a fault is not kept"
    assert asked == ["vit"] * 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "test_vit.r160_in1l"}, "no weights 'r160_in1l' of test_vit; write r160_in1k"),
        ({"model_args": {"no_such": 1}}, "model_args: no_such is no argument of test_vit"),
        ({"model_args": {"global_pol": "avg"}}, r"global_pol is no .*ormer.; write global_pool"),
        ({"model_args": {"global_pool": ""}}, "global_pool"),
        ({"layers": [99]}, "test_vit has no block 99"),
        *(
            ({"model_args": {"patch_size": patch}, "preprocessing": {"size": 168}}, message)
            for patch, message in (
                ([16, 16], r"patches of \[16, 16\] do not tile.* multiple of 16"),
                ([16, 8], r"patches of \[16, 8\] do not tile.* multiple of 16"),
                ([8, 16], r"patches of \[8, 16\] do not tile.* multiple of 16"),
            )
        ),
        ({"dimension": 63}, "63 features per image are expected, but the backbone gives 64"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_faults_equal_those_of_loading(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(**TINY | changed)
    found = read(tmp_path, vit=TINY | changed)
    assert found.faults == {"vit": str(error.value)}
    assert found.known == {"vit": 64 if "dimension" in changed else None}
    assert "\n" not in str(error.value)


def test_a_model_of_the_hub_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine cannot create the network, but the machine that extracts may have it."""

    def offline(*_: Any, **__: Any) -> Any:
        raise OSError("no route to the Hub")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(timm_models, "require_files", list)  # the Hub answers
    options = backbone_options({"family": "timm", "model": "hf-hub:nobody/nothing"})
    answer = describe.describe_backbone(options)
    assert (answer["certain"], "no route" in answer["fault"]) == (False, True)
    describe_here(monkeypatch)
    result = read(tmp_path, hub=options.model_dump(mode="json"))
    assert result.faults == {}
    assert "no route to the Hub" in result.warnings[0]
    assert result.known == {"hub": None}


def test_one_process_answers_for_all(tmp_path: Path) -> None:
    wrong = TINY | {"model_args": {"no_such": 1}}
    first = read(tmp_path, vit=TINY, wrong=wrong, other=TINY | {"model": "test_efficientnet"})
    assert first.known == {"vit": 64, "wrong": None, "other": 256}
    assert list(first.faults) == ["wrong"]
    assert first.warnings == []


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (subprocess.CalledProcessError(1, ["python"], stderr="\nNo module 'torch'\n"), "'torch'"),
        (subprocess.TimeoutExpired(["python"], 600, stderr=b"a\nlast words"), "last words"),
        (subprocess.TimeoutExpired(["python"], 600), "timed out after 600"),
        (OSError("no such Python"), "no such Python"),
        (SimpleNamespace(stdout="what\n{is no JSON"), "Expecting property name"),
        (SimpleNamespace(stdout=""), "list index out of range"),
    ],
)
def test_a_process_that_fails_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Any, said: str
) -> None:
    monkeypatch.setattr(feature_dimensions, "LIBRARIES", ("torch", "no-such-library"))
    failure = ended if isinstance(ended, Exception) else None
    monkeypatch.setattr(subprocess, "run", Mock(return_value=ended, side_effect=failure))
    result = read(tmp_path, vit=TINY | {"dimension": 64})
    assert result.known == {"vit": 64}, "what the study says of it"
    assert result.faults == {}
    (warning,) = result.warnings
    assert said in warning
    assert "\n" not in warning
