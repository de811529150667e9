"""Each release is one MLflow model version: complete, loadable for images, separate from heads."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient, pyfunc
from mlflow.entities import Run
from PIL import Image

from dpprobe.errors import ConfigError, DataError, TrackingError
from dpprobe.files.json_files import read_json
from dpprobe.release import bundle as bundles
from dpprobe.release.bundle import BUNDLE_FILES, SIGNATURE_FILE, bundle_digest, read_bundle
from dpprobe.release.predict import Predictor
from dpprobe.tracking import release_registry, served_release
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.tracking.release_aliases import DIGEST, PREDECESSOR, RELEASE, ReleaseModel, roll_back
from dpprobe.tracking.release_registry import register_release
from dpprobe.tracking.served_release import ServedRelease
from dpprobe.tracking.writer import Writer
from tests.support.bundles import CLASSES, write_example
from tests.support.mlflow_server import serve
from tests.support.network_bundles import CALIBRATED
from tests.support.releases import measured
from tests.support.tracked_study import Study

MODEL = "study.release.lesions_v1"
TAG = "bundle_digest"
CARD = "---\nlicense: mit\n---\n\n# Lesions\n\n(1, 1e-05)-differentially private.\n"
EVALUATION = measured() | {"interval": [0.75, 0.875], "n": 431}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("release") / "lesions_v1", evaluation=EVALUATION)


@pytest.fixture
def bundle(example: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "releases/lesions_v1"
    shutil.copytree(example, folder)
    return rewritten(folder, card=CARD)


def rewritten(folder: Path, *, card: str | None = None, **facts: Any) -> Path:
    """Changes a bundle, and updates its checksums."""
    if card is not None:
        (folder / "README.md").write_text(card)
    path = folder / "bundle.json"
    path.write_text(json.dumps(read_json(path) | facts))
    bundles.write_sums(folder)
    return folder


def register(study: Study, bundle: Path, *, name: str = "study") -> dict[str, Any]:
    to = study.destination(f"tracking/releases/{bundle.name}.json", {}, study=name)
    register_release(bundle, to)
    return read_json(to.receipt)


def run_of(study: Study, receipt: dict[str, Any]) -> Run:
    (run_id,) = receipt["runs"].values()
    return study.client.get_run(run_id)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def registered(study: Study, receipt: dict[str, Any]) -> Path:
    """Returns the folder of the bundle within a run's artifacts."""
    uri = run_of(study, receipt).info.artifact_uri
    return Path(uri.removeprefix("file://"), "model/data/bundle")


def check_whole(study: Study, bundle: Path, receipt: dict[str, Any]) -> None:
    """Checks that a bundle has one run, one version with the alias, and all its files."""
    client = study.client
    digest = bundle_digest(bundle)
    runs = [run for run in study.all_runs("all releases") if run.data.tags[TAG] == digest]
    assert [run.info.status for run in runs] == ["FINISHED"]
    versions = client.search_model_versions(f"name = '{MODEL}'")
    (version,) = [version for version in versions if version.tags[TAG] == digest]
    assert version.run_id == runs[0].info.run_id
    assert receipt["models"] == {MODEL: str(version.version)}
    alias = client.get_model_version_by_alias(MODEL, "released")
    assert str(alias.version) == str(version.version)
    assert content(registered(study, receipt)) == content(bundle)


def test_a_release_is_a_version_with_its_card_its_bundle_and_its_alias(
    study: Study, bundle: Path
) -> None:
    receipt = register(study, bundle)
    check_whole(study, bundle, receipt)
    version = study.client.get_model_version_by_alias(MODEL, "released")
    assert version.description == "# Lesions\n\n(1, 1e-05)-differentially private."
    assert receipt["pages"]["model"] == f"#/models/{MODEL}/versions/1"
    assert receipt == read_json(study.root / "tracking/releases/lesions_v1.json")
    assert not find_store_fault(study.root / "tracking/releases/lesions_v1.json")


def test_a_registered_run_shows_only_what_the_bundle_states(study: Study, bundle: Path) -> None:
    run = run_of(study, register(study, bundle))
    named = {
        "study": "study",
        "release": "lesions_v1",
        "dataset": "lesions",
        "backbone": "pixels",
        "method": "covariance",
        "epsilon": "1",
        "delta": "1e-05",
        "unit": "image",
    }
    options = read_json(bundle / "bundle.json")["head"]["options"]
    written = {key for key, value in options.items() if value is not None}
    assert set(run.data.params) == {*named, *written}
    assert named.items() <= run.data.params.items()
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    assert {key: tags.pop(key) for key in ("result_key", "content_hash", "rows_hash", "current")}
    digest = bundle_digest(bundle)
    assert tags == {**named, "private": "true", "guarantee": "(1, 1e-05)-DP", TAG: digest}
    assert run.data.metrics == {
        "privacy/epsilon_target": 1.0,
        "privacy/epsilon_realised": 1.0,
        "allows/balanced_accuracy": 0.5534,
        "allows/tpr_at_fpr_0.001": 0.002385,
        "allows/tpr_at_fpr_0.01": 0.01979,
        "evaluation/accuracy": 0.8125,
        "evaluation/accuracy_low": 0.75,
        "evaluation/accuracy_high": 0.875,
    }
    assert run.info.start_time == run.info.end_time, "the time of training is nobody's business"
    assert run.inputs is None or run.inputs.dataset_inputs == []


def test_a_second_registration_creates_no_run_and_no_model(study: Study, bundle: Path) -> None:
    first = register(study, bundle)
    second = register(study, bundle)
    assert (second["created"], second["replaced"], second["kept"]) == (0, 0, 1)
    assert (second["runs"], second["models"]) == (first["runs"], first["models"])
    check_whole(study, bundle, second)


STEPS = (
    "create_run",
    "log_batch",
    "set_terminated",
    "create_registered_model",
    "log_artifacts",
    "create_model_version",
    "set_registered_model_alias",
)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_any_step_is_mended(
    study: Study, bundle: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    real: Callable[..., Any] = getattr(MlflowClient, step)

    def crash(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, step, crash)
        with pytest.raises(KeyboardInterrupt):
            register(study, bundle)
    assert not (study.root / "tracking/releases/lesions_v1.json").exists()
    check_whole(study, bundle, register(study, bundle))


def test_a_new_bundle_is_a_new_version_and_the_old_one_stays(study: Study, bundle: Path) -> None:
    first = register(study, bundle)
    old = content(bundle)
    rewritten(bundle, card=CARD + "\nAnother release.\n")
    second = register(study, bundle)
    assert (first["models"], second["models"]) == ({MODEL: "1"}, {MODEL: "2"})
    check_whole(study, bundle, second)
    versions = study.client.search_model_versions(f"name='{MODEL}'")
    assert {str(version.version) for version in versions} == {"1", "2"}
    assert content(registered(study, first)) == old
    tags = [run_of(study, receipt).data.tags["current"] for receipt in (first, second)]
    assert tags == ["false", "true"]
    for name, data in old.items():
        (bundle / name).write_bytes(data)
    check_whole(study, bundle, register(study, bundle))
    assert run_of(study, first).data.tags["current"] == "true"


def test_files_that_were_lost_are_written_again(study: Study, bundle: Path) -> None:
    folder = registered(study, register(study, bundle))
    (folder / "release.html").write_bytes(b"cut")
    check_whole(study, bundle, register(study, bundle))
    (folder / "head.safetensors").unlink()
    check_whole(study, bundle, register(study, bundle))
    shutil.rmtree(folder.parent.parent)
    check_whole(study, bundle, register(study, bundle))


def test_a_signature_that_came_later_is_added(study: Study, bundle: Path) -> None:
    register(study, bundle)
    (bundle / SIGNATURE_FILE).write_bytes(b"signed")
    receipt = register(study, bundle)
    assert receipt["models"] == {MODEL: "1"}
    check_whole(study, bundle, receipt)


def test_a_run_that_somebody_deleted_is_made_again_with_its_version(
    study: Study, bundle: Path
) -> None:
    (run_id,) = register(study, bundle)["runs"].values()
    study.client.delete_run(run_id)
    receipt = register(study, bundle)
    assert run_id not in receipt["runs"].values()
    check_whole(study, bundle, receipt)


def test_only_the_files_of_the_bundle_are_registered(study: Study, bundle: Path) -> None:
    receipt = register(study, bundle)
    assert set(content(registered(study, receipt))) == set(BUNDLE_FILES)
    (bundle / "predictions.parquet").write_text("private")
    with pytest.raises(DataError, match=r"predictions\.parquet: not part of a bundle"):
        register(study, bundle)


def test_a_damaged_bundle_is_not_registered(study: Study, bundle: Path) -> None:
    (bundle / "README.md").write_text("another promise")
    with pytest.raises(DataError, match=r"README\.md"):
        register(study, bundle)
    assert study.client.get_experiment_by_name("all releases") is None


def test_a_release_needs_the_versions_that_computed_it(bundle: Path, tmp_path: Path) -> None:
    backbone = read_json(bundle / "bundle.json")["backbone"]
    versions = {"torch": "0.0.1", "dpprobe": "1", "zlib": "2", "abc": "3"}
    external = {"options": {"family": "external", "model": "m", "each_by_itself": True}}
    for changes in ({}, external):
        read = read_bundle(rewritten(bundle, backbone=backbone | {"versions": versions} | changes))
        for calibration in (None, CALIBRATED):
            read = replace(read, statement={**read.statement, "calibration": calibration})
            folder = tmp_path / f"{len(changes)} {calibration is None}"
            folder.mkdir()
            model = release_registry.write_bundle(read, folder)
            needed, signature = model["pip_requirements"], model["signature"].to_dict()
            names = [each["name"] for each in json.loads(signature["outputs"])]
            assert {"torch==0.0.1", "zlib==2", "abc==3"} < {*needed}
            assert needed == sorted(needed)
            assert not any(line.startswith("dpprobe") for line in needed)
            (column,) = [each["name"] for each in json.loads(signature["inputs"])]
            assert column == ("vector" if changes else "image")
            assert names[:2] == ["class", f"probability_{CLASSES[0]}"]
            assert names[4:] == ([] if calibration is None else ["set", "abstain"])


def test_releases_stay_current_next_to_each_other_and_the_study(
    study: Study, bundle: Path, tmp_path: Path
) -> None:
    first = register(study, bundle)
    other = shutil.copytree(bundle, tmp_path / "releases/lesions_v2")
    second = register(study, rewritten(other, name="lesions_v2"))
    third = register(study, bundle, name="another")
    study.ingest()
    study.ingest_whole()
    assert Writer(study.client, study="study").retire_datasets(["letters"]) == {"digits"}
    for receipt in (first, second, third):
        assert run_of(study, receipt).data.tags["current"] == "true"
        assert Path(study.root, "tracking/releases", f"{receipt['release']}.json").exists()
        (model,) = receipt["models"]
        assert study.client.get_model_version_by_alias(model, "released")


# Serving the model.


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "new images"
    folder.mkdir()
    paths = [folder / f"{seed}.png" for seed in range(5)]
    for seed, path in enumerate(paths):
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 10), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return paths


def check_scores(result: pd.DataFrame, bundle: Path, paths: list[Path]) -> None:
    predictor = Predictor.load_bundle(bundle)
    probabilities = predictor.predict_images([Image.open(path) for path in paths])
    assert list(result.columns) == ["class", *(f"probability_{name}" for name in CLASSES)]
    np.testing.assert_allclose(result.iloc[:, 1:].to_numpy(float), probabilities, atol=1e-6)
    assert list(result["class"]) == [CLASSES[index] for index in probabilities.argmax(axis=1)]


@pytest.mark.parametrize(
    "given",
    [str, Path.read_bytes, lambda path: base64.b64encode(path.read_bytes()).decode()],
    ids=["path", "bytes", "base64"],
)
def test_a_registered_release_classifies_images(
    study: Study,
    bundle: Path,
    images: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    given: Callable[[Path], Any],
) -> None:
    register(study, bundle)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", study.uri)
    model = pyfunc.load_model(f"models:/{MODEL}@released")
    check_scores(model.predict(pd.DataFrame({"image": map(given, images)})), bundle, images)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("lost.png", "row 1: 'lost.png': not a file on this machine, and not an image in base64"),
        ("/data/lost", "row 1: '/data/lost': not a file on this machine"),
        ("x" * 40, f"row 1: '{'x' * 40}': not"),
        ("x" * 41, rf"row 1: '{'x' * 40}\.\.\.': not"),
        ("QUJD" * 100, r"row 1: 'QUJD.*\.\.\.': not a file on this machine, and not an image"),
        (b"no image", "image row 1 .*cannot be decoded"),
        (__file__, r"row 1 .*test_release_registry\.py.*cannot be decoded"),
        (None, "row 1: None; pass a path, bytes, or text in base64"),
        (7, "row 1: 7; pass a path"),
    ],
)
def test_an_error_names_a_served_value_that_is_not_an_image(
    bundle: Path, images: list[Path], value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_release, "CHUNK", 1)  # row numbers continue over all chunks
    values = pd.DataFrame({"image": pd.Series([str(images[0]), value], dtype=object)})
    with pytest.raises(DataError, match=words) as caught:
        ServedRelease(bundle).predict(values)
    assert "\n" not in str(caught.value)


def with_checkpoint(bundle: Path) -> Path:
    backbone = read_json(bundle / "bundle.json")["backbone"]
    values = {"checkpoint": "net.safetensors", "weights_sha256": "ab" * 32, "trained": True}
    return rewritten(bundle, backbone=backbone | values)


def test_an_error_asks_for_weights_that_are_not_in_the_bundle(
    bundle: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPPROBE_CHECKPOINT", raising=False)
    model = ServedRelease(with_checkpoint(bundle))
    values = pd.DataFrame({"image": [str(images[0])]})
    for params in (None, {}, {"checkpoint": ""}):
        with pytest.raises(ConfigError, match=f"net.safetensors of SHA-256 {'ab' * 32}") as caught:
            model.predict(values, params)
        assert "set DPPROBE_CHECKPOINT, or the parameter checkpoint" in str(caught.value)


class Registry:
    """An in-memory registered model; the change with number `crash_at` fails."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self.versions: list[Any] = []
        self.crash_at = 0

    def add(self, digest: str, predecessor: str | None = None) -> None:
        """Registers a bundle like `register_release`."""
        tags = {DIGEST: digest, RELEASE: digest}
        tags |= {PREDECESSOR: predecessor} if predecessor else {}
        self.versions.append(SimpleNamespace(version=len(self.versions) + 1, tags=tags))
        self.track(digest)

    def track(self, digest: str) -> None:
        """Tracks a registered bundle again."""
        model = self.model()
        model.release(next(each for each in model.versions if each.tags.get(DIGEST) == digest))

    def model(self) -> ReleaseModel:
        return ReleaseModel.read(self, MODEL)  # type: ignore[arg-type]

    def roll_back(self, digest: str, *, undo: bool = False) -> str:
        return self.model().roll_back(digest, undo=undo)

    # Methods of MLflow's client

    def search_model_versions(self, _condition: str, **_page: Any) -> Any:
        class Page(list[Any]):
            token = None

        return Page(reversed(self.versions))

    def get_registered_model(self, _name: str) -> Any:
        return SimpleNamespace(aliases=dict(self.aliases))

    def set_registered_model_alias(self, _name: str, alias: str, version: Any) -> None:
        self._count_change()
        self.aliases[alias] = str(version)

    def delete_registered_model_alias(self, _name: str, alias: str) -> None:
        self._count_change()
        del self.aliases[alias]

    def set_model_version_tag(self, _name: str, version: str, key: str, value: str) -> None:
        self._count_change()
        self.versions[int(version) - 1].tags[key] = value

    def delete_model_version_tag(self, _name: str, version: str, key: str) -> None:
        self._count_change()
        del self.versions[int(version) - 1].tags[key]

    def _count_change(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            raise KeyboardInterrupt


@pytest.fixture
def registry() -> Registry:
    """Returns a registry with three releases, each of which replaces the release before."""
    made = Registry()
    for digest, predecessor in (("a", None), ("b", "a"), ("c", "b")):
        made.add(digest, predecessor)
    return made


def test_the_newest_is_released_whatever_is_tracked_again(registry: Registry) -> None:
    for digest in "bacab":
        registry.track(digest)
        assert registry.aliases == {"released": "3", "previous": "2"}


def test_a_rollback_stays_until_it_is_undone(registry: Registry) -> None:
    for _ in range(2):
        said = registry.roll_back("c")
        assert said == f"{MODEL}@released: version 2, b\n{MODEL}@previous: version 1, a"
    for digest in "cba":
        registry.track(digest)
        assert registry.aliases == {"released": "2", "previous": "1"}
    for _ in range(2):
        registry.roll_back("c", undo=True)
        assert registry.aliases == {"released": "3", "previous": "2"}
    registry.track("b")
    assert registry.aliases == {"released": "3", "previous": "2"}


def test_two_rollbacks_lead_to_the_first_and_a_newer_release_is_released(
    registry: Registry,
) -> None:
    registry.roll_back("c")
    registry.roll_back("b")
    assert registry.aliases == {"released": "1"}
    registry.add("d", "c")
    assert registry.aliases == {"released": "4", "previous": "1"}
    registry.roll_back("d")
    registry.roll_back("b", undo=True)
    assert registry.aliases == {"released": "2", "previous": "1"}


def test_a_release_that_others_replaced_is_skipped_once_rolled_back(registry: Registry) -> None:
    registry.roll_back("b")
    assert registry.aliases == {"released": "3", "previous": "1"}
    registry.roll_back("b", undo=True)
    assert registry.aliases == {"released": "3", "previous": "2"}


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("change", [1, 2, 3])
def test_a_crash_at_any_change_is_mended(registry: Registry, change: int, undo: bool) -> None:
    if undo:
        registry.roll_back("c")
    registry.crash_at = change
    with pytest.raises(KeyboardInterrupt):
        registry.roll_back("c", undo=undo)
    registry.roll_back("c", undo=undo)
    registry.track("c")
    expected = {"released": "3", "previous": "2"} if undo else {"released": "2", "previous": "1"}
    assert registry.aliases == expected


def test_rolling_back_the_first_release_raises_an_error(registry: Registry) -> None:
    with pytest.raises(TrackingError, match=f"{MODEL}, version 1: MLflow has no predecessor"):
        registry.roll_back("a")
    with pytest.raises(TrackingError, match="no version of this bundle"):
        registry.roll_back("unknown")
    assert registry.aliases == {"released": "3", "previous": "2"}


def test_a_bundle_is_rolled_back_in_mlflow(study: Study) -> None:
    first = write_example(study.root / "releases/lesions_v1")
    second = write_example(study.root / "releases/lesions_v2", name="lesions_v2", predecessor=first)
    with pytest.raises(DataError, match="MLflow has no record of this bundle"):
        roll_back(second)
    assert register(study, first)["models"] == {MODEL: "1"}
    assert register(study, second)["models"] == {MODEL: "2"}
    client = study.client
    assert client.get_model_version_by_alias(MODEL, "previous").tags[RELEASE] == "lesions_v1"
    said = roll_back(second)
    assert said == f"{MODEL}@released: version 1, lesions_v1\n{MODEL}@previous: none"
    assert client.get_registered_model(MODEL).aliases.keys() == {"released"}
    assert "@released: version 2, lesions_v2" in roll_back(second, undo=True)
    # if two studies have the same bundle, each has its own version
    register(study, first, name="other")
    assert register(study, second, name="other")["models"] == {"other.release.lesions_v1": "2"}
    (study.root / "mlflow.db").unlink()
    with pytest.raises(DataError, match="MLflow has no record of this bundle"):
        roll_back(second)
    assert not (study.root / "mlflow.db").exists()


@pytest.mark.slow
def test_a_server_keeps_the_bundle(study: Study, bundle: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    shutil.copyfile(study.root / "mlflow.db", store / "mlflow.db")
    with serve(store) as study.uri:
        first, second = register(study, bundle), register(study, bundle)
        assert (first["created"], second["created"], second["kept"]) == (1, 0, 1)
        assert first["models"] == second["models"] == {MODEL: "1"}
        assert first["artifact_root"] is None
        client = study.client
        version = client.get_model_version_by_alias(MODEL, "released")
        run_id = str(version.run_id)
        folder = client.download_artifacts(run_id, "model/data/bundle", str(tmp_path))
        assert content(Path(folder)) == content(bundle)
