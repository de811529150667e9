"""Vectors for a head: rows of files, or one file per item, read as in training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, DataError
from dpprobe.release import described_backbone
from dpprobe.release.bundle import BundleFacts, read_facts
from dpprobe.release.predict import Predictor
from dpprobe.release.released_backbone import check_backbone
from dpprobe.release.vector_sources import VectorSource, find_vectors
from tests.support.classifiers import DIMENSION, make_private, make_rows
from tests.support.refusals import refuses
from tests.unit.data.sources.test_embedding_files_items import WRITERS, by_trident, make_items
from tests.unit.data.sources.test_embedding_files_items import options as item_options


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = make_rows()
    folder = tmp_path_factory.mktemp("releases") / "lesions_v1"
    return (
        make_private()
        .fit(X, y)
        .save_bundle(folder, dataset="lesions", model="uni", each_by_itself=True, pretrained=True)
    )


def trained_on(bundle: Path, **preprocessing: str) -> BundleFacts:
    """Returns the facts of a head that was trained on files of items."""
    facts = read_facts(bundle)
    backbone = facts.backbone.model_copy(update={"preprocessing": preprocessing})
    return facts.model_copy(update={"backbone": backbone})


def make_slides() -> dict[str, Any]:
    generator = np.random.default_rng(5)
    return {f"s{n}": generator.normal(size=(n + 1, DIMENSION)).astype("f4") for n in range(5)}


def read_all(source: VectorSource) -> tuple[list[str], np.ndarray, dict[str, str]]:
    blocks = list(source.read_blocks())
    places = [row[0] for rows, _, faults in blocks for row in (*rows, *(f.row for f in faults))]
    assert sorted(places) == list(range(source.count))
    ids = [name for rows, _, _ in blocks for _, name in rows]
    faults = {fault.row[1]: fault.reason for _, _, found in blocks for fault in found}
    return ids, np.concatenate([array for _, array, _ in blocks]), faults


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("write", WRITERS)
def test_items_are_pooled_as_in_training(
    bundle: Path, tmp_path: Path, write: Any, pool: str
) -> None:
    slides = make_slides()
    for name, patches in slides.items():
        write(tmp_path, name, patches)
    files = sorted(tmp_path.iterdir())
    wanted = [getattr(patches.astype("f8"), pool)(0) for patches in slides.values()]
    facts = trained_on(bundle, pool=pool)
    for inputs in ([tmp_path], files):  # a folder, or its files
        ids, vectors, faults = read_all(find_vectors(inputs, facts))
        assert (ids, faults) == (list(map(str, files)), {})
        np.testing.assert_allclose(vectors, wanted, rtol=1e-6, atol=1e-7)
    predictor = Predictor.load_bundle(bundle)
    blocks = list(predictor.predict_source(find_vectors([tmp_path], facts)))
    values = np.concatenate([block.values for block in blocks])
    np.testing.assert_array_equal(values, predictor.predict_vectors(np.array(wanted, "f4")))


def test_a_release_of_pooled_items_is_loaded(bundle: Path) -> None:
    """A backbone of vectors does not record facts about files, so they are not compared with it."""
    loaded, facts = (
        Predictor.load_bundle(bundle).backbone,
        trained_on(bundle, pool="max", array="x"),
    )
    check_backbone(bundle, facts.backbone, loaded, DIMENSION)
    with refuses(DataError, "preprocessing has size"):
        check_backbone(bundle, trained_on(bundle, size="8").backbone, loaded, DIMENSION)


def test_vectors_of_another_kind_are_refused(bundle: Path, tmp_path: Path) -> None:
    by_trident(tmp_path, "s0", np.ones((3, DIMENSION)))
    by_trident(tmp_path, "s1", np.ones((3, DIMENSION + 1)))
    pd.DataFrame({"x": [[0.0] * DIMENSION]}).to_parquet(tmp_path / "rows.parquet")
    pooled, single = trained_on(bundle, pool="max"), trained_on(bundle)
    for facts, name, said in (
        (pooled, "rows.parquet", ("pooled by max", ".h5")),
        (pooled, "s1.h5", (f"[rows, {DIMENSION}]", "uni")),
        (pooled, "no.h5", ("no file or folder",)),
        (trained_on(bundle, pool="max", array="other"), "s0.h5", ("'other'",)),
        (single, "no.npy", ("no file",)),
    ):
        with refuses(ConfigError, tmp_path / name, *said):
            find_vectors([tmp_path / name], facts)
    (tmp_path / "s1.h5").unlink()
    _, _, faults = read_all(find_vectors([tmp_path], single))
    assert "several patches" in faults[str(tmp_path / "s0.h5")]
    with refuses(ConfigError, "no rows"):
        find_vectors([], single)


def test_rows_of_every_format_are_read(bundle: Path, tmp_path: Path) -> None:
    X = make_rows(3).X[:7].astype("f4")
    np.savez(tmp_path / "a.npz", X=X, ids=np.arange(7))
    pd.DataFrame({"embedding": list(X)}).to_parquet(tmp_path / "b.parquet")
    torch.save(torch.from_numpy(X), tmp_path / "c.pt")
    files = sorted(tmp_path.iterdir())
    ids, vectors, _ = read_all(find_vectors(files, read_facts(bundle)))
    assert ids == [f"{path}:{row}" for path in files for row in range(7)]
    np.testing.assert_array_equal(vectors, np.concatenate([X, X, X]))
    pd.DataFrame({"embedding": [[1.0, 2.0]]}).to_parquet(tmp_path / "d.parquet")
    with refuses(DataError, "d.parquet", "2 numbers"):
        read_all(find_vectors([tmp_path / "d.parquet"], read_facts(bundle)))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, {"pool": "mean"}),
        ({"pool": "max", "vectors": {"uni": "features"}}, {"pool": "max", "array": "features"}),
    ],
)
def test_a_bundle_says_how_files_became_vectors(
    tmp_path: Path, more: dict[str, Any], wanted: dict[str, str]
) -> None:
    dataset = item_options(tmp_path, by_trident, make_items(), **more)
    external = {"family": "external", "model": "m", "each_by_itself": True}
    study = SimpleNamespace(backbones={"uni": backbone_options(external)})
    asked: Any = SimpleNamespace(study=study, dataset=dataset)
    assert described_backbone.describe_vectors(asked, "uni") == wanted
