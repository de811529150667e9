"""Laws of real networks, frozen and tuned, from split tables."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dpprobe.analyses.representation_law.law_networks import LawTask, trained_options
from dpprobe.analyses.representation_law.law_record import LawRecord, law_path
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.pixels import Options as Pixels
from dpprobe.backbones.timm_models import Options as Timm
from dpprobe.data import dataset_preparation
from dpprobe.data.sources.sklearn_datasets import Options as Sklearn
from dpprobe.data.table import SplitTable
from dpprobe.errors import ConfigError
from dpprobe.finetune.fine_tuned_network import build_network, tuned_state
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.registry import method_options
from dpprobe.heads.transform import Transform
from dpprobe.results import network_record

METHODS = {
    "one": method_options({"head": "fine_tune", "tune": {"blocks": 1}}),
    "two": method_options({"head": "fine_tune", "tune": {"blocks": 2}}),
    "head": method_options({"head": "fine_tune", "tune": "head"}),
    "lora": method_options({"head": "fine_tune", "tune": {"lora": {"rank": 2}}}),
}
VIT = Timm.model_validate(
    {
        "model": "vit_tiny_patch16_224",
        "pretrained": False,
        "preprocessing": {"size": 32},
        "model_args": {"img_size": 32, "depth": 4, "embed_dim": 48, "num_heads": 3},
    }
)
CONVOLUTIONAL = Timm.model_validate(
    {"model": "resnet10t", "pretrained": False, "preprocessing": {"size": 32}}
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    folder = tmp_path_factory.mktemp("data")
    dataset_preparation.prepare_dataset(Sklearn.model_validate({"name": "digits"}), folder)
    return {split: folder / f"{split}.parquet" for split in ("train", "test")}


Cell = tuple[str, str]  # method and epsilon


def _write_network(results: Path, backbone: Timm, method: str, *, scale: float = 0.0) -> Cell:
    """Writes a network whose tuned parameters are shifted by normal noise of the given scale."""
    loaded = loading.load_backbone(backbone, runtime=Runtime(device="cpu", precision="float32"))
    options: Any = METHODS[method]
    network = build_network(
        loaded,
        options,
        classes=10,
        seed=1,
        device="cpu",
        transform=Transform(spec=NoNormalisation()),
    )
    state = tuned_state(network)
    generator = torch.Generator().manual_seed(0)
    for value in state.values():
        value.add_(torch.randn(value.shape, generator=generator), alpha=scale)
    networks, cell = results / network_record.NETWORKS_FOLDER, ("digits", "net", method, "1")
    folder = network_record.network_folder(networks, cell, 0)
    folder.mkdir(parents=True)
    save_file(state, folder / network_record.STATE_FILE)
    network_record.NetworkRecord.model_validate(
        {
            "cell": {"dataset": "digits", "backbone": "net", "method": method, "epsilon": "1"},
            "index": 0,
            "fingerprint": "f",
            "device": "cpu",
            "options": {},
            "chosen": {},
            "trained": 1,
            "steps": 1,
            "seconds": 1.0,
            "files": {},
        }
    ).write(folder / network_record.RECORD_FILE)
    return method, "1"


def _task(
    tmp_path: Path, tables: dict[Any, Path], backbone: Any, networks: list[Cell], **options: Any
) -> LawTask:
    return LawTask(
        networks=networks,
        results=tmp_path,
        tables=tables,
        dataset="digits",
        backbone_name="net",
        backbone=backbone,
        methods=METHODS,
        seed=0,
        device="cpu",
        options=RepresentationLawOptions.model_validate({"rows": 120, "shuffles": 1, **options}),
    )


def _measure(
    tmp_path: Path, tables: dict[Any, Path], backbone: Any, networks: list[Cell], **options: Any
) -> LawRecord:
    task = _task(tmp_path, tables, backbone, networks, **options)
    task.measure_law(threads=1)
    return LawRecord.read(law_path(tmp_path / "layers", "digits", "net"))


def _values(record: LawRecord, place: int, split: Any = "test") -> list[float | None]:
    return list(record.networks[place].find_series("fuzziness", split).values)


def test_a_vit_is_measured_on_its_class_token(tmp_path: Path, tables: dict[Any, Path]) -> None:
    files = _write_network(tmp_path, VIT, "two", scale=0.05)
    record = _measure(tmp_path, tables, VIT, [files])
    assert (record.layers, record.token) == (4, "class")
    assert (record.train_rows, record.test_rows) == (120, 120)
    frozen, tuned = _values(record, 0), _values(record, 1)
    assert frozen[0] is None, "the class token that enters is constant"
    assert tuned[:3] == frozen[:3], "blocks before the last two are frozen"
    assert tuned[3] != frozen[3]
    assert record.networks[1].blocks == 2


def test_untrained_networks_have_the_laws_of_the_frozen_one(
    tmp_path: Path, tables: dict[Any, Path]
) -> None:
    files = [_write_network(tmp_path, CONVOLUTIONAL, name) for name in ("one", "head")]
    record = _measure(tmp_path, tables, CONVOLUTIONAL, files)
    assert record.token == "pooled"
    assert record.layers == 4
    tuned = [(network.method, network.blocks) for network in record.networks]
    assert tuned == [(None, None), ("one", 1), ("head", 0)]
    for place in (1, 2):
        assert _values(record, place) == _values(record, 0)
    swapped = {"train": tables["test"], "test": tables["train"]}
    other = _measure(tmp_path / "swapped", swapped, CONVOLUTIONAL, [])
    assert _values(other, 0, "train") == _values(record, 0, "test") != _values(record, 0, "train")
    assert _values(other, 0, "test") == _values(record, 0, "train")


def test_a_network_of_another_backbone_is_refused(tmp_path: Path, tables: dict[Any, Path]) -> None:
    files = _write_network(tmp_path, CONVOLUTIONAL, "one")
    with pytest.raises(ConfigError, match="train it again"):
        _measure(tmp_path, tables, VIT, [files])
    with pytest.raises(ConfigError, match="backbones.net: not a network"):
        _measure(tmp_path, tables, Pixels(), [])


def test_what_a_search_chose_are_the_options() -> None:
    options = trained_options(METHODS["one"], {"learning_rate": 0.25})
    assert options.learning_rate == 0.25
    assert trained_options(METHODS["one"], {}) == METHODS["one"]


def test_laws_are_reused_while_their_inputs_are_unchanged(
    tmp_path: Path, tables: dict[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [_write_network(tmp_path, CONVOLUTIONAL, "one")]
    first = _measure(tmp_path, tables, CONVOLUTIONAL, files)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr("dpprobe.analyses.representation_law.law_networks.law_job", never)
        os.utime(path := law_path(tmp_path / "layers", "digits", "net"), (0, 0))
        assert _measure(tmp_path, tables, CONVOLUTIONAL, files) == first
        assert path.stat().st_mtime, "marked for Snakemake"
        with pytest.raises(AssertionError, match="measured again"):
            _measure(tmp_path, tables, CONVOLUTIONAL, [])
        path.write_bytes(b"damaged")
        with pytest.raises(AssertionError, match="measured again"):
            _measure(tmp_path, tables, CONVOLUTIONAL, files)
    another = tmp_path / "another"
    files = [_write_network(another, CONVOLUTIONAL, "one", scale=0.05)]
    assert _measure(another, tables, CONVOLUTIONAL, files).fingerprint != first.fingerprint


def test_a_sample_of_rows_is_drawn_with_the_seed(tmp_path: Path, tables: dict[Any, Path]) -> None:
    runtime = Runtime(device="cpu", precision="float32")
    loaded, table = (
        loading.load_backbone(CONVOLUTIONAL, runtime=runtime),
        SplitTable(tables["test"]),
    )
    task = _task(tmp_path, tables, CONVOLUTIONAL, [], rows=30)
    drawn = [replace(task, seed=seed).read_rows(table, loaded) for seed in (0, 1, 0)]
    draws = {tuple(rows.labels) for rows in drawn} | {tuple(table.read_labels()[:30])}
    assert len(draws) == 3, "neither the first rows nor those of another seed"
    assert torch.equal(drawn[0].images, drawn[2].images)


def test_whatever_decides_laws_changes_their_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dpprobe.analyses.representation_law.law_networks"
    monkeypatch.setattr(f"{module}.SplitTable", lambda path: SimpleNamespace(fingerprint=path.name))
    monkeypatch.setattr(f"{module}.sha256_file", str)
    chosen: dict[str, Any] = {}
    monkeypatch.setattr(LawTask, "_read_chosen", lambda *_: chosen)
    task = LawTask(
        networks=[("one", "1"), ("two", "1")],
        results=Path("r"),
        dataset="d",
        backbone_name="net",
        tables={"train": Path("a"), "test": Path("b")},
        backbone=VIT,
        methods=METHODS,
        seed=0,
        options=RepresentationLawOptions(rows=120),
        device="cpu",
    )
    local = VIT.model_copy(update={"weights_file": "w.pt"})
    changes: list[dict[str, Any]] = [
        {},
        {"networks": [("one", "2"), ("two", "1")]},
        {"networks": [("one", "1")]},
        {"networks": [("two", "1"), ("two", "1")]},
        {"dataset": "e"},
        {"backbone_name": "b"},
        {"tables": {"train": Path("c"), "test": Path("b")}},
        {"results": Path("s")},
        {"tables": {"train": Path("a"), "test": Path("c")}},
        {"backbone": CONVOLUTIONAL},
        {"backbone": local},
        {"methods": METHODS | {"one": METHODS["lora"]}},
        {"seed": 1},
        {"options": RepresentationLawOptions(rows=121)},
        {"device": "cuda"},
    ]
    monkeypatch.setattr(type(VIT), "input_files", lambda self: ["w"] if self is local else [])
    prints = [replace(task, **change).hash_inputs() for change in changes]
    chosen["learning_rate"] = 0.5
    assert len({*prints, task.hash_inputs()}) == len(changes) + 1


def test_a_sample_of_images_keeps_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dpprobe.analyses.representation_law.law_networks"
    monkeypatch.setattr(f"{module}.decode_image", lambda image, **_: image.row)
    images = [SimpleNamespace(row=row) for row in range(90)]
    table: Any = SimpleNamespace(
        rows=90,
        split="test",
        nulls=(4, 70),
        read_images=lambda start, stop: images[start:stop],
        read_labels=lambda: np.arange(90) * 3,
    )
    backbone: Any = SimpleNamespace(
        scaled=None, transform=lambda row: torch.full((1, 2, 2), float(row))
    )
    task = LawTask(
        networks=[],
        results=Path("r"),
        dataset="d",
        backbone_name="net",
        tables={},
        seed=0,
        backbone=VIT,
        methods={},
        options=RepresentationLawOptions(rows=87),
        device="cpu",
    )
    for count in (20, 87, 88, 89):
        few = replace(task, options=RepresentationLawOptions(rows=count))
        rows = few.read_rows(table, backbone)
        places = rows.images[:, 0, 0, 0].numpy()
        assert len(places) == min(count, 88)
        assert not {4, 70} & {*places}
        assert (np.diff(places) > 0).all()
        assert rows.labels.tolist() == (3 * places).tolist()
