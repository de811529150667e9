"""Networks that are built by a user's function."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support import backbones

NETWORK = """
import torch

def build(width=4):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )

def build_with_more():
    import no_such_package

def build_nothing():
    return 3

def build_maps():
    return torch.nn.Conv2d(3, 2, 3)

class Raising(torch.nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, images):
        raise getattr(__import__("builtins"), self.error)("of its own")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_nets").mkdir()
    (tmp_path / "my_nets/tiny.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_nets", "my_nets.tiny"):  # other tests need it to be missing
        sys.modules.pop(name, None)


def load(**options: Any) -> Backbone:
    values = {
        "family": "imported",
        "module": "my_nets.tiny:build",
        "preprocessing": {"size": 16},
        **options,
    }
    return backbones.load(**values)


def features(backbone: Backbone) -> torch.Tensor:
    image = Image.radial_gradient("L").convert("RGB").resize((40, 30))
    return backbone.forward(backbone.transform(image)[None])


@pytest.mark.usefixtures("folder")
def test_the_function_s_network_gives_the_features() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    backbone = load(arguments={"width": 6})
    assert torch.equal(torch.rand(3), expected), "no other random number moves"
    assert backbone.dimension == 6
    assert features(backbone).shape == (1, 6)
    torch.manual_seed(7)  # as in another job; the weights must be the same
    assert torch.equal(features(load(arguments={"width": 6})), features(backbone))
    assert load(arguments={"width": 5}).fingerprint != backbone.fingerprint
    image = Image.radial_gradient("L").convert("RGB").resize((40, 30))
    steps = load(preprocessing={"size": 16, "resize": 20, "interpolation": "bilinear"}).transform
    shown = image.resize((26, 20), Image.Resampling.BILINEAR).crop((5, 2, 21, 18))
    assert np.array_equal(steps(image).movedim(0, 2), np.asarray(shown))


def test_a_checkpoint_is_held_against_its_stated_hash(folder: Path) -> None:
    """The hash is the file's SHA-256; a hash without a checkpoint is refused."""
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).state_dict(), folder / "w.pth")
    found = hashlib.sha256((folder / "w.pth").read_bytes()).hexdigest()
    assert load(checkpoint="w.pth", checkpoint_sha256=found).fingerprint == (
        load(checkpoint="w.pth").fingerprint
    )
    with pytest.raises(
        ConfigError, match=f"checkpoint: w.pth: SHA-256 {found} instead of {'0' * 64}"
    ):
        load(checkpoint="w.pth", checkpoint_sha256="0" * 64)
    with pytest.raises(ConfigError, match="checkpoint_sha256: has no checkpoint to check"):
        load(checkpoint_sha256=found)


ROUNDED = """
class Rounded(torch.nn.Sequential):
    def forward(self, images):
        return super().forward(images.bfloat16()).float()
"""


def test_code_that_rounds_a_checkpoint_s_weights_gives_another_fingerprint(folder: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).state_dict(), folder / "w.pth")
    before = load(checkpoint="w.pth")
    code = NETWORK.replace("torch.nn.Sequential", "Rounded", 1)
    code = code.replace("Flatten()\n    )", "Flatten()\n    ).bfloat16()")
    (folder / "my_nets/tiny.py").write_text(code + ROUNDED)
    for name in ("my_nets", "my_nets.tiny"):
        sys.modules.pop(name)
    after = load(checkpoint="w.pth")
    assert not torch.equal(features(after), features(before))
    assert after.weights_sha256 == before.weights_sha256
    assert after.fingerprint != before.fingerprint


def test_weights_of_a_trainer_s_checkpoint_are_loaded(folder: Path) -> None:
    torch.manual_seed(1)
    trained = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    state = {f"module.{name}": value for name, value in trained.state_dict().items()}
    torch.save({"epoch": 3, "model_state_dict": state}, folder / "trained.pth")
    backbone = load(checkpoint="trained.pth")
    assert not torch.equal(features(backbone), features(load()))
    expected = trained(backbone.transform(Image.new("RGB", (16, 16), "red"))[None].float() / 255)
    given = backbone.forward(backbone.transform(Image.new("RGB", (16, 16), "red"))[None])
    torch.testing.assert_close(given, expected.mean((2, 3)))
    torch.save({"0.weight": torch.zeros(1)}, folder / "other.pth")
    for function in ("build_with_more", "missing"):  # another machine may have the package
        options = {"family": "imported", "module": f"my_nets.tiny:{function}"}
        told = describe_backbone(backbone_options(options))
        assert told["certain"] == (function == "missing")
    with pytest.raises(ConfigError, match="not weights of my_nets.tiny:build: 1 of its 2"):
        load(checkpoint="other.pth")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module": "no_such_package.nets:build"}, "no module no_such_package in the working"),
        ({"module": "my_nets.tiny:missing"}, "cannot be called with .* no attribute"),
        ({"arguments": {"depth": 3}}, r"cannot be called with .*TypeError"),
        ({"module": "my_nets.tiny:build_nothing"}, "returns int; return a torch.nn.Module"),
        ({"module": "my_nets.tiny:build_maps"}, "image instead of one vector; choose a"),
        *(
            ({"module": "my_nets.tiny:Raising", "arguments": {"error": kind}}, "of its own")
            for kind in ("AssertionError", "RuntimeError", "ValueError", "TypeError", "KeyError")
        ),
        ({"module": "my_nets.tiny"}, "module: "),
        ({"preprocessing": {"size": 16, "resize": 8}}, "resize 8 is below size 16; use 16 or "),
        ({"preprocessing": {"size": 16, "resize": 15}}, "resize 15 is below size 16"),
        ({"preprocessing": {"interpolation": "box"}}, "must be 'bicubic', 'bilinear' or 'nearest'"),
        ({"color": "gray", "preprocessing": {"mean": [0, 0, 0]}}, "3 values for 1 channels"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**options)


def test_a_module_or_a_package_in_the_working_folder_is_a_file_of_the_study(folder: Path) -> None:
    (folder / "my_nets/__init__.py").touch()
    for module, files in (
        ("my_nets.tiny:build", ("my_nets/tiny.py",)),
        ("my_nets:build", ("my_nets/__init__.py",)),
        ("json:loads", ()),  # part of the environment
    ):
        options = backbone_options({"family": "imported", "module": module})
        options.check_files()
        assert options.input_files() == files


@pytest.mark.usefixtures("folder")
def test_a_network_s_options_are_recorded() -> None:
    backbone = load(color="rgb", preprocessing={"size": 16, "resize": 16, "std": 0.5})
    assert backbone.preprocessing == {
        "color": "RGB",
        "size": 16,
        "resize": 16,
        "interpolation": "bicubic",
        "mean": [0.0] * 3,
        "std": [0.5] * 3,
        "crop": "centre",
        "flip": False,
    }
    assert (backbone.architecture, backbone.trained) == ("my_nets.tiny:build", True)
