"""The table of studies that are refused, one case a line; see `refused.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.backbones import feature_dimensions
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.options import BackboneOptions
from dpprobe.errors import ConfigError
from dpprobe.study.dimension_checks import check_dimensions
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.refusals import check_lines, read_refusals, write_files
from tests.support.small_study import STUDY

TABLE = Path(__file__).with_name("refused.yaml")


@pytest.fixture(autouse=True)
def _described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describes networks in this process: another one for each study imports PyTorch anew."""

    def describe(backbones: dict[str, BackboneOptions], _: Any) -> dict[str, Any]:
        return {name: dict(describe_backbone(one)) for name, one in backbones.items()}

    monkeypatch.setattr(feature_dimensions, "_ask_process", describe)


@pytest.mark.parametrize(("study", "files", "says"), read_refusals(TABLE, STUDY))
def test_a_study_is_refused_with_these_lines_or_accepted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    study: dict[str, Any],
    files: dict[str, Any],
    says: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, files)
    if not says:
        check_study(load_study(study))
        return
    with pytest.raises(ConfigError) as caught:
        check_all(study)
    check_lines(str(caught.value), says, start="config: ")


def check_all(values: dict[str, Any]) -> None:
    study = load_study(values)
    check_study(study)
    check_dimensions(study)
