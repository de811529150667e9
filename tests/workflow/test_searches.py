"""An unpriced search over options of networks works in a real run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpprobe.results.cell_record import read_cell
from dpprobe.results.network_record import NetworkRecord
from dpprobe.results.search_record import SearchRecord

from .conftest import Workspace
from .test_fine_tuning import FEW_DIGITS, VIT

pytestmark = pytest.mark.slow

NETWORK = {"head": "fine_tune", "tune": "head", "batch_size": 16, "steps": 2}
RATES = {"learning_rate": [0.1, 0.5, 2.0]}


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    return small | {
        "datasets": {"digits": FEW_DIGITS},
        "backbones": {"vit": VIT},
        "methods": {
            "searched": NETWORK | {"search": {"trials": 3, "space": RATES, "held_out": 0.3}},
            "fixed": NETWORK,
        },
        "seeds": 1,
    }


def test_networks_are_trained_with_what_a_search_chose(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    planned = workspace.planned(study, "heads")
    assert (planned["search_options"], planned["tune_network"]) == (1, 2)
    workspace.run(study, "heads")
    results = workspace.directory / "results"
    record = SearchRecord.read(results / "searches/digits/vit/searched/eps-2.json")
    assert len(record.trials) == 3
    networks = {
        method: NetworkRecord.read(
            results / f"networks/digits/vit/{method}/eps-2/seed-0/result.json"
        )
        for method in ("searched", "fixed")
    }
    assert networks["searched"].chosen == record.best.values
    assert networks["fixed"].chosen == {}
    said = json.loads((workspace.cell("searched", "2", "vit") / "privacy.json").read_text())
    assert (said["private"], said["unpriced"]) == (False, "search_without_noise")
    assert not read_cell(workspace.cell("searched", "2", "vit") / "metrics.json").guaranteed
    assert read_cell(workspace.cell("fixed", "2", "vit") / "metrics.json").guaranteed
    assert not list((results / "networks").rglob("*.checkpoint"))
    assert "Nothing to be done" in workspace.run(study, "heads", "searches").stdout

    # a larger number of trials continues after the finished trials
    study["methods"]["searched"]["search"]["trials"] = 4
    workspace.run(study, "searches")
    again = SearchRecord.read(results / "searches/digits/vit/searched/eps-2.json")
    assert again.trials[:3] == record.trials
    log = results / "logs/search_options/digits/vit/searched/eps-2.log"
    assert "3 of 4 trials were already finished" in log.read_text()
