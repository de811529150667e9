"""Networks in real runs make cells and are reused; a lost seed costs only its own training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from dpprobe.files.json_files import read_json
from dpprobe.results.cell_record import read_cell
from dpprobe.results.network_record import STATE_FILE, NetworkRecord

from .conftest import Template, Workspace, contents

pytestmark = pytest.mark.slow

VIT = {
    "family": "timm",
    "model": "test_vit",
    "pretrained": False,
    "model_args": {"img_size": 32},
    "preprocessing": {"size": 32},
}
FEW_DIGITS = {
    "source": "sklearn",
    "name": "digits",
    "test_fraction": 0.03,
    "subsample": {"per_class": 3},
}
FROM_SCRATCH = {
    "family": "convolutional",
    "preprocessing": {"size": 8},
    "stages": [{"filters": 3, "pool": 2}],
    "hidden": 4,
}
NETWORK = {"head": "fine_tune", "batch_size": 16, "steps": 2, "learning_rate": 0.1}
SGD = {"head": "sgd", "batch_size": 16, "epochs": 1}
# the cheapest method: uses stored features, without passes through a network
HEAD = NETWORK | {"tune": "head"}


@pytest.fixture
def study(template: Template, workspace: Workspace, small: dict[str, Any]) -> dict[str, Any]:
    """Returns a study of one network, after writing its features into the test's workspace."""
    study = small | {
        "datasets": {"digits": FEW_DIGITS},
        "backbones": {"vit": VIT},
        "methods": {"head": HEAD},
        "features": {"shards": 1, "batch_size": 4},
        "tsne": {"points": 50},
    }
    template(workspace, study, "features")
    return study


def network(workspace: Workspace, method: str, index: int, backbone: str = "vit") -> Path:
    folder = workspace.directory / "results/networks/digits" / backbone / method
    return folder / f"eps-2/seed-{index}"


def test_fine_tuned_networks_make_complete_cells(
    workspace: Workspace, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study["seeds"] = 1
    study["methods"] = {
        "sgd": SGD,
        "head": HEAD,
        "blocks": NETWORK | {"tune": {"blocks": 1}},
        "all": NETWORK | {"tune": "all", "augment": {"views": 2}},
        "lora": NETWORK | {"tune": {"lora": {"rank": 2}}, "probe": {"method": SGD}},
    }
    workspace.run(study, "heads", "tables", "html_report")
    for method in ("head", "blocks", "all", "lora"):
        cell = workspace.cell(method, "2", "vit")
        record = read_cell(cell / "metrics.json")
        assert record.tunes_network
        assert record.guaranteed
        assert record.rows.train == 30
        of_seed = NetworkRecord.read(network(workspace, method, 0) / "result.json")
        assert of_seed.fingerprint == record.fingerprint
        assert of_seed.steps == 2
        state = load_file(network(workspace, method, 0) / "network.safetensors")
        assert of_seed.trained == sum(values.size for values in state.values())
        (weights,) = load_file(cell / "heads.safetensors")["weights"]
        assert np.array_equal(weights[:, :-1], state["head.weight"])
        assert np.array_equal(weights[:, -1], state["head.bias"])
        scores = np.load(network(workspace, method, 0) / "scores.npy")
        predicted = pq.read_table(cell / "predictions.parquet")["scores"].to_pylist()
        assert np.array_equal(np.asarray(predicted, dtype=np.float32), scores)
        statement = read_json(cell / "privacy.json")
        assert statement["outputs"] == ["network"]
        names = [item["name"] for item in statement["mechanisms"]]
        assert names == (["probe gradients", "gradients"] if method == "lora" else ["gradients"])
    assert (load_file(workspace.cell("sgd", "2", "vit") / "heads.safetensors"))["weights"].shape
    report = (workspace.directory / "results/report.html").read_text()
    assert all(f">{method}<" in report for method in ("blocks", "lora"))
    # also with a GPU: a plan does not depend on devices, and ignores the device of cells
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "Nothing to be done" in workspace.run(study, "heads", "tables", "html_report").stdout


def test_networks_are_trained_from_scratch_on_pixels_and_on_coefficients(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    scattered = FROM_SCRATCH | {"scattering": {"J": 1, "L": 2, "groups": 3}}
    study |= {"seeds": 1, "backbones": {"pixels": FROM_SCRATCH, "scattered": scattered}}
    study |= {"accountant": "rdp_2017", "methods": {"whole": NETWORK | {"tune": "all"}}}
    study["methods"]["stored"] = NETWORK | {"tune": {"blocks": 1}}
    workspace.run(study, "heads")
    for backbone in ("pixels", "scattered"):
        shapes = [
            {name: values.shape for name, values in load_file(folder / STATE_FILE).items()}
            for folder in (network(workspace, name, 0, backbone) for name in ("whole", "stored"))
        ]
        channels = 1 if backbone == "pixels" else 3
        assert shapes[0]["body.blocks.0.convolution.weight"] == (3, channels, 3, 3)
        assert shapes[0] == shapes[1], "no layer before the stage is trained"
        statement = read_json(workspace.cell("whole", "2", backbone) / "privacy.json")
        assert statement["accountant"].startswith("rdp_2017 (opacus")
        (pld,) = (value for name, value in statement["checks"].items() if name.startswith("pld"))
        assert 0 < pld < statement["epsilon_realised"] <= 2


def test_only_the_seed_that_is_lost_is_trained_again(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    workspace.run(study, "heads")
    first, second = (network(workspace, "head", index) for index in range(2))
    before = contents(first), contents(second)
    assert before[0]["network.safetensors"] != before[1]["network.safetensors"]
    cell = contents(workspace.cell("head", "2", "vit"))
    (first / "result.json").unlink()
    planned = workspace.planned(study, "heads")
    assert (planned["tune_network"], planned["gather_networks"]) == (1, 1)
    workspace.run(study, "heads")
    after = contents(first)
    assert after["network.safetensors"] == before[0]["network.safetensors"]
    assert contents(second) == before[1]
    assert contents(workspace.cell("head", "2", "vit")).keys() == cell.keys()

    # Another seed or method does not change a finished seed.
    study["seeds"] = 3
    study["methods"]["more"] = HEAD | {"steps": 3}
    output = workspace.run(study, "heads").stdout
    assert "seed 0 reused, because nothing that it depends on has changed" in output + logs(
        workspace
    )
    assert contents(first) == after
    assert contents(second) == before[1]

    study["methods"]["head"] = HEAD | {"learning_rate": 0.2}
    assert workspace.planned(study, "heads")["tune_network"] >= 3


def test_two_processes_train_a_network_in_a_run(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    study |= {"seeds": 1, "fine_tuning": {"processes": 2}}
    workspace.run(study, "networks")
    folder = network(workspace, "head", 0)
    assert NetworkRecord.read(folder / "result.json").steps == 2
    assert "head eps 2: train: " in logs(workspace), "the lines of the first process"
    assert not list(folder.parent.glob(".*.checkpoint"))
    # the number of processes does not affect the network's identity
    study["fine_tuning"] = {}
    assert "Nothing to be done" in workspace.run(study, "networks").stdout


def logs(workspace: Workspace) -> str:
    paths = (workspace.directory / "results/logs/tune_network").rglob("*.log")
    return "\n".join(path.read_text() for path in paths)
