"""Architectures of timm whose tensors fit the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch

from dpprobe.backbones import timm_models
from dpprobe.backbones.sister_models import list_sisters
from tests.support.refusals import check_tokens

LITE, TENSORFLOW = "efficientnet_lite0", "tf_efficientnet_lite0"


@pytest.mark.parametrize(
    ("one", "other", "are_sisters"),
    [
        (LITE, TENSORFLOW, True),
        ("resnet18", "resnetblur18", True),
        ("test_efficientnet_ln", "test_efficientnet_gn", True),
        ("vit_tiny_patch16_224", "deit_tiny_patch16_224", False),
        ("resnet18", "resnet34", None),
    ],
)
def test_sisters_have_equal_tensors_and_other_features(
    one: str, other: str, *, are_sisters: bool | None
) -> None:
    """If `are_sisters` is None, the tensors differ."""
    torch.manual_seed(0)
    networks = [timm.create_model(name, num_classes=0).eval() for name in (one, other)]
    shapes = [{key: v.shape for key, v in each.state_dict().items()} for each in networks]
    assert (shapes[0] == shapes[1]) == (are_sisters is not None)
    if are_sisters is not None:
        networks[1].load_state_dict(networks[0].state_dict())
        with torch.inference_mode():
            rows = [each(torch.rand(1, 3, 224, 224, generator=seeded())) for each in networks]
        assert torch.allclose(rows[0], rows[1], rtol=1e-4, atol=1e-6) == (not are_sisters)
    assert (other in list_sisters(f"{one}.a_tag")) == bool(are_sisters)
    assert (one in list_sisters(other)) == bool(are_sisters)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize(
    ("model", "stated", "said"),
    [
        (LITE, None, (f"also {TENSORFLOW}", '{"architecture": "efficientnet_lite0"} into w.json')),
        (LITE, {"architecture": TENSORFLOW}, (f"config.json names {TENSORFLOW}",)),
        (LITE, {"architecture": f"{LITE}.ra_in1k"}, None),
        ("resnet50", [], ("resnetaa50 and resnetblur50",)),
        ("resnet34", None, None),
    ],
)
def test_a_study_is_warned_unless_a_file_names_the_architecture(
    tmp_path: Path, model: str, stated: object, said: tuple[str, ...] | None
) -> None:
    if stated is not None:
        (tmp_path / "config.json").write_text(json.dumps(stated))
    views = {"mean": 0.5, "std": 0.5, "size": 128, "interpolation": "bilinear"}
    options = timm_models.Options(
        model=model, checkpoint=str(tmp_path / "w.pth"), preprocessing=views
    )
    warnings = options.list_warnings()
    assert len(warnings) == (said is not None)
    check_tokens("".join(warnings), *(said or ()))
    assert options.model_copy(update={"checkpoint": None}).list_warnings() == []
