"""Studies of papers write what their gradient heads have, whatever the defaults become."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dpprobe.heads.adam import MomentOptions
from dpprobe.heads.ruled_options import RuledOptions
from dpprobe.study.study_file import load_study

STUDIES = ("large_scale_transfer*.yaml", "features_second_order*.yaml", "scatternet_*.yaml")
CONFIG = Path(__file__).resolve().parents[2] / "config"
FILES = sorted(path for pattern in STUDIES for path in CONFIG.glob(pattern))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_paper_s_gradient_heads_are_plain_linear_layers(path: Path) -> None:
    study = load_study(yaml.safe_load(path.read_text(encoding="utf-8")))
    for name, method in study.methods.items():
        base = getattr(method, "base", method)
        if not isinstance(base, RuledOptions):
            continue
        assert base.intercept == 1, name
        assert base.learning_rate is not None, name
        written = {"learning_rate", "max_grad_norm", "intercept", "normalize"}
        assert written <= base.model_fields_set, name
        assert base.normalize.kind in ("none", "channels", "group_norm"), name
        assert {"steps", "epochs"} & base.model_fields_set, name
        if isinstance(base, MomentOptions):
            assert base.noise_correction is None, name


def test_there_are_such_studies() -> None:
    assert len(FILES) >= 12
