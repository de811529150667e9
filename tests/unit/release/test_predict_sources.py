"""Bundles from strangers load weights and code only from sources that the user permits."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError, DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.release import bundle
from dpprobe.release.predict import Predictor
from tests.support.bundles import write_example
from tests.support.refusals import change_values, refuses


class Loaded(Exception):
    """Stops a test where the backbone would be loaded, with its options."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def load(options: Any, *, runtime: Any) -> None:
        raise Loaded(runtime.precision, options.extraction_params())

    monkeypatch.chdir(tmp_path)
    made = write_example(Path("bundle"))
    monkeypatch.setattr("dpprobe.backbones.loading.load_backbone", load)
    return made


def alter(folder: Path, change: dict[str, Any]) -> None:
    write_json(folder / "bundle.json", change_values(read_json(folder / "bundle.json"), change))
    bundle.write_sums(folder)


def of(family: str, **options: Any) -> dict[str, Any]:
    return {"backbone.options": {"family": family, "model": "test_vit", **options}}


ALLOWED: dict[str, Any] = {"allow_hub": True, "allow_module": True}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (of("timm", model="local-dir:/tmp/mine"), "local-dir:/tmp/mine"),
        (of("timm", model="other:somebody/weights"), "other:somebody/weights"),
        (
            of("timm", model_args={"pretrained_cfg_overlay": {"file": "/x"}}),
            "pretrained_cfg_overlay",
        ),
        (of("timm", model_args={"pretrained": True}), "pretrained"),
        (of("timm", model_args={"cache_dir": "/tmp"}), "cache_dir"),
        (of("open_clip", pretrained="/tmp/mine.pt"), "pretrained"),
        (of("open_clip", pretrained="a.pt"), "pretrained"),
    ],
)
def test_a_place_of_weights_is_refused_whatever_is_allowed(
    folder: Path, change: dict[str, Any], place: str
) -> None:
    alter(folder, change)
    allowed: dict[str, Any]
    for allowed in ({}, ALLOWED):
        with refuses(DataError, "bundle", place):
            Predictor.load_bundle(folder, device="cpu", **allowed)


@pytest.mark.parametrize(
    ("change", "permission", "said"),
    [
        (of("timm", model="hf-hub:a/b"), "allow_hub", ("hf-hub:a/b", "--allow-hub")),
        (of("timm", model="hf_hub:a/b"), "allow_hub", ("hf_hub:a/b", "--allow-hub")),
        (of("open_clip", model="hf-hub:a/b"), "allow_hub", ("hf-hub:a/b", "--allow-hub")),
        (
            {"backbone.options": {"family": "imported", "module": "nets:build"}},
            "allow_module",
            ("nets:build", "--allow-module"),
        ),
    ],
)
def test_a_repository_or_a_function_needs_its_own_permission(
    folder: Path, change: dict[str, Any], permission: str, said: tuple[object, ...]
) -> None:
    alter(folder, change)
    allowed: dict[str, Any]
    for allowed in ({}, ALLOWED | {permission: False}):
        with refuses(ConfigError, *said):
            Predictor.load_bundle(folder, device="cpu", **allowed)
    allowed = {permission: True}
    with pytest.raises(Loaded):
        Predictor.load_bundle(folder, device="cpu", **allowed)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({}, {"family": "pixels", "size": 8}),
        (of("timm"), {"model": "test_vit", "layers": []}),
        (of("timm", pretrained=False), {"pretrained": False}),
        (of("timm", model_args={"depth": 1}), {"model_args": {"depth": 1}}),
        (of("open_clip", pretrained="laion_2-b"), {"pretrained": "laion_2-b"}),
        # a head uses only the features of the last block
        (of("timm", layers=[0], token="class"), {"layers": [], "token": None}),
    ],
)
def test_known_weights_are_loaded_as_the_bundle_says(
    folder: Path, change: dict[str, Any], options: dict[str, Any]
) -> None:
    alter(folder, {**change, "backbone.precision": "bfloat16"})
    for precision in (None, "float16"):
        with pytest.raises(Loaded) as caught:
            Predictor.load_bundle(folder, device="cpu", precision=precision)
        asked, loaded = caught.value.args
        assert asked == (precision or "bfloat16")
        assert {key: loaded[key] for key in options} == options


@pytest.mark.parametrize("options", [{"family": "unknown"}, {}, {"family": "pixels", "x": 1}])
def test_options_that_no_family_takes_are_refused(folder: Path, options: dict[str, Any]) -> None:
    alter(folder, {"backbone.options": options})
    with refuses(ConfigError, "family"):
        Predictor.load_bundle(folder, device="cpu", **ALLOWED)


FOLDER = f"local-dir:{'0' * 64}"  # as a study records `local-dir:FOLDER`


def test_a_folder_of_weights_is_named_by_the_user(folder: Path, tmp_path: Path) -> None:
    for family in ("timm", "open_clip"):
        alter(
            folder,
            {**of(family, model=FOLDER), "backbone.checkpoint": "mine", "backbone.trained": True},
        )
        for wrong in (None, tmp_path / "w"):
            with refuses(ConfigError, "--checkpoint FOLDER", *filter(None, [wrong])):
                Predictor.load_bundle(folder, device="cpu", checkpoint=wrong)
        (tmp_path / "mine").mkdir(exist_ok=True)
        config = "config.json" if family == "timm" else "open_clip_config.json"
        (tmp_path / "mine" / config).write_text("{}")
        with pytest.raises(Loaded) as caught:
            Predictor.load_bundle(folder, device="cpu", checkpoint=tmp_path / "mine")
        loaded = caught.value.args[1]
        assert loaded["model"] == f"local-dir:{sha256(b'{}').hexdigest()}"


def test_a_bundle_with_a_folder_needs_its_hash(folder: Path) -> None:
    alter(folder, of("timm", model=FOLDER))
    with refuses(DataError, "bundle", "checkpoint"):
        Predictor.load_bundle(folder, device="cpu", **ALLOWED)
