"""`dpprobe predict` on files of vectors: the same answers as in Python, and refused files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from PIL import Image

from dpprobe.__main__ import main
from dpprobe.data.sources.embedding_formats import embedding_file
from dpprobe.errors import ConfigError, DataError
from dpprobe.release.export import export_onnx
from dpprobe.release.predict import Predictor, predict
from dpprobe.release.vector_sources import find_vectors, is_vector_file
from dpprobe.tracking.served_release import stack_vectors
from tests.support.bundles import write_example
from tests.support.classifiers import DIMENSION, make_private, make_rows
from tests.support.refusals import check_tokens, refuses

NAMES = ["keratosis", "melanoma", "naevus"]
COLUMNS = [f"probability_{name}" for name in NAMES]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = make_rows()
    fitted = make_private(classes=NAMES).fit(X, np.array(NAMES)[y])
    folder = tmp_path_factory.mktemp("releases") / "lesions_v1"
    told: dict[str, Any] = {"each_by_itself": True, "pretrained": True}
    return fitted.save_bundle(folder, dataset="lesions", model="clip-vit", **told)


def write_vectors(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


def test_a_table_has_the_answers_of_python(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be read in several blocks."""
    monkeypatch.setattr(embedding_file, "BLOCK_ROWS", 50)
    X = make_rows(3).X
    parts = {
        write_vectors(tmp_path / f"{place}.npy", X[rows].astype(kind)): rows
        for place, rows, kind in (
            (2, slice(130), "f8"),
            (1, slice(130, 140), "f4"),
            (3, slice(140, None), "f4"),
        )
    }
    summary = predict(bundle, [*parts], output=tmp_path / "table.parquet")
    assert (summary.rows, summary.unreadable) == (len(X), ())
    table = pd.read_parquet(tmp_path / "table.parquet")
    predictor = Predictor.load_bundle(bundle)
    values = predictor.predict_vectors(X)
    np.testing.assert_array_equal(table[COLUMNS].to_numpy(), values)
    ids = [f"{path}:{row}" for path, rows in parts.items() for row in range(len(X[rows]))]
    assert table["id"].tolist() == ids
    assert table["class"].tolist() == np.array(NAMES)[values.argmax(1)].tolist()
    blocks = predictor.predict_source(find_vectors([*parts], predictor.facts))
    assert [row for block in blocks for row in block.rows] == [*enumerate(ids)]
    assert predictor.predict_vectors(X[:0]).shape == (0, len(NAMES))
    X[[7, 4, 2], [0, -1, 1]] = np.nan, np.inf, 2e18
    for wrong, said in (
        (X, ("vector 2", "1e+18")),
        (X[0], (f"[rows, {DIMENSION}]",)),
        (X[:3, 1:], (f"[rows, {DIMENSION}]",)),
    ):
        with refuses(DataError, *said):
            predictor.predict_vectors(wrong)


def test_an_exported_head_takes_vectors(bundle: Path, tmp_path: Path) -> None:
    exported = export_onnx(bundle, tmp_path / "head.onnx")
    rows = make_rows(3).X.astype(np.float32)
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    wanted = Predictor.load_bundle(bundle).predict_vectors(rows)
    (given,) = session.run(["probabilities"], {"vectors": rows})
    np.testing.assert_allclose(given, wanted, atol=1e-4)
    check_tokens(exported.input, f"float32 [batch, {DIMENSION}]", "clip-vit")


def test_vectors_that_cannot_be_used_have_a_reason(
    bundle: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = make_rows(3).X[:5].astype(np.float64)
    X[1, 0], X[2, 1], X[3, 0] = np.nan, 1e300, 2e18
    path = write_vectors(tmp_path / "rows.npy", X)
    output = tmp_path / "table.csv"
    command = ["dpprobe", "predict", str(bundle), str(path), "--output", str(output)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="^3$"):
        main()
    table = pd.read_csv(output)
    assert table["class"].notna().tolist() == [True, False, False, False, True]
    assert table["error"].notna().tolist() == [False, True, True, True, False]
    assert f"{path}:1" in capsys.readouterr().err


SHAPE = (f"[rows, {DIMENSION}]", "clip-vit")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((3, DIMENSION + 1)), SHAPE),
        (np.ones((3, DIMENSION - 1)), SHAPE),
        (np.ones(DIMENSION), SHAPE),
        (np.full((3, DIMENSION), "a"), ("type",)),
        (np.full((3, DIMENSION), 1j), ("type complex128",)),
        (np.array([{"a": 1}], dtype=object), ()),
    ],
)
def test_files_without_vectors_of_the_expected_shape_and_type_are_refused(
    bundle: Path, tmp_path: Path, values: Any, message: tuple[object, ...]
) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, values, allow_pickle=True)
    with refuses(ConfigError, path, *message):
        predict(bundle, [path], output=tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()


def test_missing_and_damaged_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 2), }".ljust(117) + b"\n"
    for content, said in (
        (b"\x93NUMPY\x01\x00\x76\x00" + header + bytes(24), "(-3, 2)"),
        (b"\x93NUMPY\x01\x00", "read"),
        (b"", "read"),
        (None, "file"),
    ):
        path = tmp_path / "rows.npy"
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        with refuses(ConfigError, path, said):
            predict(bundle, [path], output=None)


def test_vectors_are_refused_together_with_images_or_image_options(
    bundle: Path, tmp_path: Path
) -> None:
    vectors = write_vectors(tmp_path / "rows.npy", make_rows(3).X)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    mixed = {"images": [vectors, tmp_path / "one.png"]}
    for more in (mixed, {"id_column": "id"}, {"image_column": "x"}, {"root": tmp_path}):
        values = {"images": [vectors], "output": None, **more}
        with refuses(ConfigError, "vectors"):
            predict(bundle, **values)  # type: ignore[arg-type]


def test_vectors_and_images_need_their_bundles(bundle: Path, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "rows.npy", np.ones((2, 64)))
    with refuses(ConfigError, "images"):
        predict(write_example(tmp_path / "pixels"), [vectors], output=None)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with refuses(ConfigError, "one.png", ".npy", "vectors"):
        predict(bundle, [tmp_path / "one.png"], output=tmp_path / "t.csv")
    names = ("a.NPY", "a.npz", "a.png", "a.parquet", "a.H5")
    assert [is_vector_file(Path(name)) for name in names] == [True, True, False, False, True]


@pytest.mark.parametrize("wrong", [[1.0], [1.0, [2.0, 3.0]], ["a", "b"], [[1.0, 2.0]], None])
def test_an_error_names_the_served_row_that_is_not_a_vector(wrong: Any) -> None:
    assert stack_vectors([[1, 2], (3, 4.5)], 2).tolist() == [[1.0, 2.0], [3.0, 4.5]]
    with refuses(DataError, "row 1", "2 numbers"):
        stack_vectors([[1.0, 2.0], wrong], 2)


def test_the_constructor_names_what_loads_a_bundle(bundle: Path) -> None:
    with refuses(TypeError, f"Predictor.load_bundle({bundle!r})"):
        Predictor(bundle)  # type: ignore[call-arg, arg-type]
