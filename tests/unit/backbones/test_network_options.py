"""The options of backbones that are networks."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


@pytest.mark.parametrize("channels", ["x", [1], 0, True])
def test_channels_that_are_no_number_are_refused(channels: Any) -> None:
    net = {"family": "timm", "model": "resnet50", "model_args": {"in_chans": channels}}
    with pytest.raises(ConfigError, match="in_chans"):
        load_study({**STUDY, "backbones": {"net": net}})
