"""The study: its cells, jobs and names, and the checks of its parts against each other."""

from __future__ import annotations

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_a_study_has_one_cell_for_each_combination() -> None:
    study = load_study(STUDY)
    cells = [(cell.method, cell.epsilon) for cell in study.list_cells()]
    assert cells == [("sgd", "0.5"), ("sgd", "1"), ("sgd", "inf"), ("ceiling", "inf")]


def test_public_datasets_have_features_and_no_cells() -> None:
    public = {"other": {"source": "sklearn", "name": "digits"}}
    study = load_study(STUDY | {"public_datasets": public})
    assert {cell.dataset for cell in study.list_cells()} == {"digits"}
    assert list(study.all_datasets()) == ["digits", "other"]


def test_non_private_methods_train_once_also_where_inf_is_not_listed() -> None:
    study = load_study(changed("epsilons", [1]))
    assert study.job_epsilons() == ("1", "inf")
    assert study.job_methods("inf") == ("ceiling",)


def test_few_shot_probes_are_of_backbones_that_read_text_unless_told() -> None:
    clip = {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}
    both = STUDY | {"backbones": {**STUDY["backbones"], "clip": clip}}
    assert load_study(both).few_shot_backbones() == ()
    assert load_study(both).text_backbones() == ("clip",)
    assert load_study(both | {"few_shot": {}}).few_shot_backbones() == ("clip",)
    told = load_study(both | {"few_shot": {"backbones": ["pixels"]}})
    assert told.few_shot_backbones() == ("pixels",)


def test_a_password_is_not_repeated() -> None:
    for uri in ("https://me:geheim@host", "postgresql://me:geheim@host/db", "http://me:geheim@["):
        with pytest.raises(ConfigError) as caught:
            load_study(STUDY | {"tracking": {"uri": uri}})
        assert "geheim" not in str(caught.value)
