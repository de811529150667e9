"""Predictions equal those from stored features, for every kind of input; faults are listed."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image

from dpprobe import devices
from dpprobe.__main__ import main
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import dataset_preparation
from dpprobe.data.images.image_files import open_image
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.extraction import extract_shard
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.release.bundle import FACTS_FILE, read_bundle
from dpprobe.release.export import export_onnx
from dpprobe.release.image_sources import find_images
from dpprobe.release.predict import Predictor, predict
from dpprobe.tracking.served_release import ServedRelease
from tests.support.bundles import CLASSES, write_example
from tests.support.edited_bundles import edit_file
from tests.support.network_bundles import CALIBRATED, write_release
from tests.support.refusals import check_tokens, refuses
from tests.support.stand_in_device import StandIn

PROBABILITIES = [f"probability_{name}" for name in CLASSES]


def picture(seed: int, size: tuple[int, int] = (12, 9), mode: str = "RGB") -> Image.Image:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind)
    return stream.getvalue()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("bundle") / "pixels")


@pytest.fixture(scope="module")
def predictor(bundle: Path) -> Predictor:
    return Predictor.load_bundle(bundle, device="cpu")


def expected(folder: Path, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Returns softmax probabilities of feature rows, normalised to unit length, by plain NumPy."""
    weights = read_bundle(folder).weights.astype(np.float64)
    unit = features / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    scores = unit @ weights[:, :-1].T + weights[:, -1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


ROWS = 50


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """Prepares a dataset of real images."""
    folder = tmp_path_factory.mktemp("cifar10")
    source = {
        "source": "parquet",
        "train": str(test_data / "cifar10" / "train.parquet"),
        "test": str(test_data / "cifar10" / "test.parquet"),
        "limit": {"train": ROWS, "test": 1},
        "missing_classes": "warn",
    }
    dataset_preparation.prepare_dataset(dataset_options(source), folder)
    return folder


def store_of(dataset: Path, output: Path, backbone: dict[str, Any], *, dtype: str) -> FeatureStore:
    info = read_info(dataset / "dataset.json")
    paths = [output / f"shard-{shard:05d}-of-00002.h5" for shard in range(2)]
    for shard, path in enumerate(paths):
        extract_shard(
            table=dataset / "train.parquet",
            info=dataset / "dataset.json",
            output=path,
            backbone=backbone_options(backbone),
            backbone_name="mine",
            split="train",
            shard=shard,
            shards=2,
            batch_size=256,
            dtype=dtype,
            device="cpu",
        )
    write_manifest(paths, output / "manifest.json", rows=ROWS, dataset_fingerprint=info.fingerprint)
    return FeatureStore(output / "manifest.json")


MOBILENET = {
    "family": "timm",
    "model": "mobilenetv2_100",
    "model_args": {"pad_type": "same"},
    "preprocessing": {"size": 128, "mean": 0.5, "std": 0.5, "crop_pct": 1.0},
}


@pytest.mark.parametrize(
    ("backbone", "dtype"),
    [
        (MOBILENET, "float16"),
        (MOBILENET, "float32"),
        ({"family": "pixels", "color": "rgb"}, "float16"),
        ({"family": "scattering", "color": "rgb"}, "float16"),
    ],
    ids=["mobilenet-float16", "mobilenet-float32", "pixels", "scattering"],
)
def test_predictions_equal_those_of_stored_features(
    tmp_path: Path, cifar: Path, test_data: Path, backbone: dict[str, Any], dtype: str
) -> None:
    checkpoint = None
    if backbone["family"] == "timm":
        checkpoint = test_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
        backbone = backbone | {"checkpoint": str(checkpoint)}
    store = store_of(cifar, tmp_path / "store", backbone, dtype=dtype)
    options: dict[str, Any] = {"dtype": dtype, "dimension": store.dimension, "scale": 5.0}
    folder = write_release(tmp_path / "bundle", backbone, **options)
    # A bundle's facts, taken from the store, equal the backbone's own description.
    facts = read_bundle(folder).facts.backbone
    assert facts.options == store.backbone_options
    assert facts.weights_sha256 == store.weights_sha256
    assert facts.preprocessing == json.loads(json.dumps(store.preprocessing))
    assert facts.probe == store.shards[0].probe
    (tmp_path / "new").mkdir()
    for image in SplitTable(cifar / "train.parquet").read_images(0, ROWS):
        open_image(image.data or b"").save(tmp_path / f"new/{image.row:04d}.png")
    output = tmp_path / "out.parquet"
    more: dict[str, Any] = {"output": output, "checkpoint": checkpoint, "device": "cpu"}
    summary = predict(folder, [tmp_path / "new"], **more)
    assert (summary.rows, summary.unreadable) == (ROWS, ())
    table = pd.read_parquet(output)
    assert [Path(name).name for name in table["id"]] == [f"{row:04d}.png" for row in range(ROWS)]
    given = table[PROBABILITIES].to_numpy()
    wanted = expected(folder, store.read().astype(np.float32))
    assert np.abs(given - wanted).max() <= 1e-5
    assert given.std(axis=0).max() > 1e-3  # the images differ, so the test can fail
    assert table["class"].tolist() == [CLASSES[index] for index in given.argmax(axis=1)]


def test_rows_depend_on_no_other_row(tmp_path: Path) -> None:
    """A row stays bit-identical if images are added, one is broken, or the thread count changes."""
    network = {"family": "timm", "model": "test_vit", "pretrained": False}
    folder = write_release(tmp_path / "bundle", network)
    for row in range(40):
        picture(row, (50, 40)).save(tmp_path / f"{row:02d}.png")
    paths = sorted(tmp_path.glob("*.png"))

    def rows(named: Sequence[Path], threads: int) -> dict[str, tuple[str, ...]]:
        output = tmp_path / "out.csv"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.get_num_threads", lambda: threads)
            predict(folder, named, output=output, device="cpu")
        lines = output.read_text().splitlines()[1:]
        return {line.split(",")[0]: tuple(line.split(",")[1:]) for line in lines}

    whole = rows(paths, 1)
    (tmp_path / "bad.png").write_bytes(b"bad")
    assert len(set(whole.values())) == 40
    mixed = rows([*paths[:3], tmp_path / "bad.png", *paths[7:]], 3)
    assert len(mixed) == 37
    assert mixed.pop(str(tmp_path / "bad.png"))[0] == ""
    assert mixed == {name: whole[name] for name in mixed}


def test_a_file_name_that_is_not_utf8_is_escaped(tmp_path: Path, bundle: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        picture(1).save(tmp_path / name)
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    predict(bundle, [tmp_path / name], output=tmp_path / "out.csv")
    table = pd.read_csv(tmp_path / "out.csv")
    assert table["id"].tolist() == [f"{tmp_path}/caf\\xe9.png"]
    assert table["class"].notna().all()


def test_outputs_that_cannot_be_are_one_error(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "in.csv"
    picture(1).save(tmp_path / "x.png")
    table.write_text("path\nx.png\n")
    for output, message in (bundle / "out.csv", "is a bundle"), (table, "is one of the inputs"):
        with pytest.raises(ConfigError, match=message):
            predict(bundle, [tmp_path / "x.png", table], output=output)
    assert table.read_text() == "path\nx.png\n"
    with pytest.raises(ConfigError, match="is a bundle"):
        export_onnx(bundle, bundle / "out.onnx")
    report = ["--monitor", "--monitor-report", str(bundle / "privacy.json")]
    monkeypatch.setattr("sys.argv", ["dpprobe", "predict", str(bundle), str(table), *report])
    with pytest.raises(SystemExit, match="is a bundle"):
        main()


GOOD: dict[str, Callable[[], bytes]] = {
    "alpha.png": lambda: encoded(picture(3, mode="RGBA")),
    "print.jpg": lambda: encoded(picture(4, mode="CMYK"), "JPEG"),
    "wide.png": lambda: encoded(picture(5, (400, 1))),
}
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut.png": (lambda: encoded(picture(6, (30, 30)))[:-300], "cannot be decoded"),
    "empty.png": (lambda: b"", "it is empty"),
    "huge.png": (lambda: encoded(picture(8, (60, 60))), "exceeds limit of 3000 pixels"),
}


def test_each_image_that_cannot_be_read_is_a_row_with_its_reason(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    (tmp_path / "in").mkdir()
    for name, make in GOOD.items() | {(name, make) for name, (make, _) in BAD.items()}:
        (tmp_path / "in" / name).write_bytes(make())
    for suffix in ("csv", "parquet"):
        output = tmp_path / f"out.{suffix}"
        summary = predict(bundle, [tmp_path / "in"], output=output, device="cpu")
        table = pd.read_csv(output) if suffix == "csv" else pd.read_parquet(output)
        names = sorted([*GOOD, *BAD])
        assert [Path(name).name for name in table["id"]] == names
        assert summary.rows == len(names)
        reasons = {Path(name).name: reason for name, reason in summary.unreadable}
        assert set(reasons) == set(BAD)
        for row, name in zip(table.to_dict("records"), names, strict=True):
            values = np.array([row[column] for column in PROBABILITIES])
            if name in GOOD:
                assert abs(values.sum() - 1) < 1e-5
                assert row["class"] == CLASSES[values.argmax()]
                assert pd.isna(row["error"])
            else:
                assert BAD[name][1] in row["error"]
                assert row["error"] == reasons[name]
                assert np.isnan(values).all()
                assert pd.isna(row["class"])


def test_a_photograph_is_turned_upright_in_files_and_in_memory(
    tmp_path: Path, bundle: Path, predictor: Predictor
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    held = picture(1, (16, 8))
    held.save(tmp_path / "held.png", exif=exif)
    upright = held.transpose(Image.Transpose.ROTATE_270)
    predict(bundle, [tmp_path / "held.png"], output=tmp_path / "out.parquet")
    given = pd.read_parquet(tmp_path / "out.parquet")[PROBABILITIES].to_numpy()
    np.testing.assert_array_equal(given, predictor.predict_images([upright]))
    in_memory = predictor.predict_images([Image.open(tmp_path / "held.png")])
    np.testing.assert_array_equal(given, in_memory)
    assert np.abs(given - predictor.predict_images([held])).max() > 1e-3


def test_an_image_in_memory_that_cannot_be_read_is_named(
    tmp_path: Path, predictor: Predictor
) -> None:
    (tmp_path / "cut.png").write_bytes(encoded(picture(6, (90, 90)))[:-300])
    images = [picture(1), Image.open(tmp_path / "cut.png")]
    with pytest.raises(DataError, match=r"^image 1: cannot be decoded \("):
        predictor.predict_images(images)


def test_a_failed_prediction_writes_no_file(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(1).save(tmp_path / "x.png")
    monkeypatch.setattr(Predictor, "score_features", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict(bundle, [tmp_path / "x.png"], output=tmp_path / "out" / "table.csv")
    assert list((tmp_path / "out").iterdir()) == []


def test_standard_output_has_only_the_table(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(1).save(tmp_path / "x.png")
    predict(bundle, [tmp_path / "x.png"], output=None)
    printed = capsys.readouterr().out
    predict(bundle, [tmp_path / "x.png"], output=tmp_path / "out.csv")
    assert printed == (tmp_path / "out.csv").read_text()
    assert len(printed.splitlines()) == 2


def test_a_calibrated_release_has_probabilities_and_sets(tmp_path: Path) -> None:
    """Scores that are not logits are calibrated, too."""
    for row in range(20):
        picture(row, (8, 8)).save(tmp_path / f"{row:02d}.png")
    pixels = {"family": "pixels", "size": 8}
    bundle = write_release(tmp_path / "bundle", pixels, link="none", calibration=CALIBRATED)
    output, limits = tmp_path / "out.parquet", {"naevus": 0.6, "melanoma": 0.2}
    predict(bundle, [tmp_path], output=output, thresholds=limits)
    table = pd.read_parquet(output)
    assert table.columns.tolist() == ["id", "class", *PROBABILITIES, "set", "abstain", "error"]
    for one in table.to_dict("records"):
        values = np.array([one[name] for name in PROBABILITIES])
        assert values.sum() == pytest.approx(1, abs=1e-5)
        order = np.argsort(-values)
        held = [CLASSES[place] for place in order if values[place] >= 0.25 or place == order[0]]
        assert (one["set"], one["abstain"]) == ("|".join(held), len(held) != 1)
    assert set(table["abstain"]) == {True, False}
    metadata = pq.read_schema(output).metadata
    assert json.loads(metadata[b"dpprobe"])["thresholds"] == limits
    with refuses(ConfigError, "coverage 0.5", "0.9, 0.99"):
        predict(bundle, [tmp_path / "00.png"], output=tmp_path / "no.csv", coverage=0.5)


def test_the_operating_point_of_a_release_is_its_threshold(tmp_path: Path) -> None:
    for row in range(20):
        picture(row, (8, 8)).save(tmp_path / f"{row:02d}.png")
    pixels, output = {"family": "pixels", "size": 8}, tmp_path / "out.parquet"

    def write(name: str, **block: Any) -> Path:
        return write_release(tmp_path / name, pixels, link="none", calibration=CALIBRATED | block)

    point = {"positive_class": "melanoma", "threshold": 0.2}
    bundle = write("some", operating_point=point)
    predict(bundle, [tmp_path], output=output, operating_point=True)
    table, metadata = pd.read_parquet(output), pq.read_schema(output).metadata
    assert json.loads(metadata[b"dpprobe"])["thresholds"] == {"melanoma": 0.2}
    named = table["probability_melanoma"] >= np.float32(0.2)
    assert ((table["class"] == "melanoma") == named).all()
    assert 0 < named.sum() < len(table)
    with refuses(ConfigError, "threshold of naevus", "operating point"):
        predict(bundle, [tmp_path], output=output, operating_point=True, thresholds={"naevus": 0.5})
    for other, words in (
        (write("without"), ("operating_point", "`calibrate: {operating_point: ...}`")),
        (write("none", operating_point=point | {"threshold": None}), ("melanoma", "too few")),
    ):
        with refuses(ConfigError, *words):
            predict(other, [tmp_path], output=output, operating_point=True)


def test_an_image_of_another_size_is_refused_if_the_backbone_does_not_resize(
    tmp_path: Path,
) -> None:
    folder = write_release(tmp_path / "bundle", {"family": "pixels"}, dimension=64)
    predictor = Predictor.load_bundle(folder, device="cpu")
    assert predictor.predict_images([picture(1, (8, 8))]).shape == (1, 3)
    for width, values in ((9, 72), (7, 56)):
        with refuses(DataError, "image 1", f"{width} x 8", f"{values} values", 64):
            predictor.predict_images([picture(1, (8, 8)), picture(1, (width, 8))])
    assert predictor.predict_images([]).shape == (0, 3)


def test_grey_bits_of_a_release_hold_for_new_images(tmp_path: Path) -> None:
    """Twelve-bit values in a 16-bit file equal the 8-bit picture, from a file and in memory."""
    grey = picture(1, (8, 8), "L")
    scaled = np.round(np.asarray(grey, np.float64) * (4095 / 255)).astype(np.uint16)
    twelve = Image.fromarray(scaled)
    (tmp_path / "twelve.png").write_bytes(encoded(twelve))
    pixels = {"family": "pixels", "size": 8}
    plain, told = (
        Predictor.load_bundle(write_release(tmp_path / name, options), device="cpu")
        for name, options in (("plain", pixels), ("told", pixels | {"grey_bits": 12}))
    )
    wanted = plain.predict_images([grey])
    np.testing.assert_array_equal(told.predict_images([twelve]), wanted)
    np.testing.assert_array_equal(told.predict_images([grey]), wanted)
    assert np.abs(plain.predict_images([twelve]) - wanted).max() > 1e-3
    predict(tmp_path / "told", [tmp_path / "twelve.png"], output=tmp_path / "out.parquet")
    of_file = pd.read_parquet(tmp_path / "out.parquet")[PROBABILITIES].to_numpy()
    np.testing.assert_allclose(of_file, wanted, atol=1e-6)


def test_a_release_of_scaled_decoding_decodes_new_files_so(tmp_path: Path) -> None:
    """Files and MLflow's inputs are decoded by Pillow's draft at 1/4, unlike images in memory."""
    pixels = {"family": "pixels", "size": 8}
    plain, scaled = (
        write_release(tmp_path / name, pixels | more, scale=9.0)
        for name, more in (("plain", {}), ("scaled", {"jpeg_decoding": "scaled"}))
    )
    photograph = picture(1, (12, 9)).resize((96, 72), Image.Resampling.BICUBIC)
    data = encoded(photograph, "JPEG")
    (tmp_path / "photo.jpg").write_bytes(data)
    drafted = Image.open(io.BytesIO(data))
    drafted.draft(None, (16, 16))
    assert drafted.size == (24, 18)
    reference = Predictor.load_bundle(plain, device="cpu")
    wanted, full = (reference.predict_images([one]) for one in (drafted, open_image(data)))
    assert np.abs(wanted - full).max() > 1e-5

    def of_file(folder: Path) -> npt.NDArray[np.float64]:
        predict(folder, [tmp_path / "photo.jpg"], output=tmp_path / "out.parquet", device="cpu")
        return pd.read_parquet(tmp_path / "out.parquet")[PROBABILITIES].to_numpy()

    np.testing.assert_allclose(of_file(scaled), wanted, atol=1e-6)
    np.testing.assert_allclose(of_file(plain), full, atol=1e-6)
    for value in (data, str(tmp_path / "photo.jpg"), base64.b64encode(data).decode()):
        served = ServedRelease(scaled).predict(pd.DataFrame({"image": [value]}))
        np.testing.assert_allclose(served[PROBABILITIES].to_numpy(), wanted, atol=1e-6)
    told = Predictor.load_bundle(scaled, device="cpu")
    np.testing.assert_array_equal(told.predict_images([open_image(data)]), full)


def test_a_feature_beyond_the_dtype_is_a_fault(tmp_path: Path) -> None:
    loud = {"family": "pixels", "size": 8, "std": 1e-5}
    folder = write_release(tmp_path / "bundle", loud, dtype="float16")
    Image.new("L", (8, 8), 0).save(tmp_path / "dark.png")
    Image.new("L", (8, 8), 255).save(tmp_path / "light.png")
    dark, light = tmp_path / "dark.png", tmp_path / "light.png"
    summary = predict(folder, [dark, light], output=tmp_path / "out.csv")
    ((named, fault),) = summary.unreadable
    assert named == str(light)
    check_tokens(fault, 100000, "float16")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a bundle whose backbone has a checkpoint, and two files of weights."""
    folder = tmp_path_factory.mktemp("networks")
    for seed, name in enumerate(("right.pth", "wrong.pth")):
        torch.manual_seed(seed)
        torch.save(timm.create_model("test_vit").state_dict(), folder / name)
    model = {"family": "timm", "model": "test_vit", "checkpoint": str(folder / "right.pth")}
    write_release(folder / "bundle", model | {"layers": [0, 1]})
    return folder


def test_a_checkpoint_is_the_one_of_the_release(networks: Path, bundle: Path) -> None:
    with refuses(ConfigError, "checkpoint", "pixels"):
        Predictor.load_bundle(bundle, checkpoint=networks / "right.pth")
    bundle = networks / "bundle"
    text = (bundle / FACTS_FILE).read_text()
    assert str(networks) not in text
    sha256 = json.loads(text)["backbone"]["weights_sha256"]
    predictor = Predictor.load_bundle(bundle, checkpoint=networks / "right.pth", device="cpu")
    assert predictor.backbone.layers == {}  # the head uses no layers
    with refuses(ConfigError, "--checkpoint FILE", "right.pth", sha256):
        Predictor.load_bundle(bundle)
    with refuses(ConfigError, "checkpoint", networks / "gone.pth"):
        Predictor.load_bundle(bundle, checkpoint=networks / "gone.pth")
    with refuses(DataError, networks / "wrong.pth", sha256):
        Predictor.load_bundle(bundle, checkpoint=networks / "wrong.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda v: v["probe"].update(sha256="0" * 64, norm=99.0),
            ("backbone mine", 99),
        ),
        (
            lambda v: v["preprocessing"].update(crop_pct=0.5),
            ("backbone mine", "crop_pct", 0.5),
        ),
        (lambda v: v["preprocessing"].update(a=1), ("backbone mine", "a", None, 1)),
        (
            lambda v: v.update(weights_sha256="1" * 64),
            ("backbone mine", "1" * 64),
        ),
    ],
)
def test_a_backbone_that_computes_something_else_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: tuple[object, ...]
) -> None:
    model = {"family": "timm", "model": "test_resnet", "pretrained": False}
    folder = write_release(tmp_path / "bundle", model)
    assert Predictor.load_bundle(folder, device="cpu").classes == CLASSES
    edited = altered(folder, tmp_path / "edited", lambda values: change(values["backbone"]))
    with refuses(DataError, *message) as error:
        Predictor.load_bundle(edited, device="cpu")
    assert "\n" not in str(error.value)


def test_a_gpu_s_processes_predict_what_threads_do(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are files, one of them unreadable, and images in memory."""
    pictures = [picture(seed) for seed in range(40)]
    for seed, image in enumerate(pictures):
        image.save(tmp_path / f"{seed:02d}.png")
    (tmp_path / "07.png").write_bytes(b"none")

    def predict_all() -> tuple[Any, ...]:
        found = find_images([tmp_path])
        blocks = list(predictor.predict_blocks(found.read_images(), found.count, threads=3))
        faults = [fault for block in blocks for fault in block.faults]
        names = [row for block in blocks for row in block.rows]
        values = np.concatenate([block.values for block in blocks])
        return names, faults, values.tolist(), predictor.predict_images(pictures).tolist()

    wanted = predict_all()
    monkeypatch.setattr(devices, "find_accelerator", lambda _: StandIn())
    actual = predict_all()
    assert actual[:2] == wanted[:2]
    for one, other in zip(actual[2:], wanted[2:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert predictor.predict_images([]).shape == (0, len(CLASSES))


def altered(bundle: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copies a bundle with a changed bundle.json and correct hashes."""
    return edit_file(Path(shutil.copytree(bundle, folder)), FACTS_FILE, change)
