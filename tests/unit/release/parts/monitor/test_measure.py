"""Noisy tables for monitoring new images: sensitivity, releases, epsilon, and whole bundles."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from safetensors.numpy import load, save

from dpprobe.errors import DataError, PrivacyError
from dpprobe.heads import scoring
from dpprobe.heads.fitted import TYPICAL
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import compute_probabilities, one_head
from dpprobe.heads.transform import Transform
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.statement import mechanism_values
from dpprobe.privacy.target import Target
from dpprobe.release import bundle
from dpprobe.release import image_monitor as monitor
from dpprobe.release.image_sources import find_images
from dpprobe.release.parts.monitor import measure
from dpprobe.release.parts.monitor.measure import READER, check_totals
from dpprobe.release.predict import Predictor, predict
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.results.unit_counts import row_weights
from tests.support import release_study
from tests.support.edited_bundles import edit_file, failed
from tests.support.mechanisms import best_of, made_plan
from tests.support.network_bundles import write_release
from tests.support.refusals import refuses
from tests.support.release_study import DIMENSION, release, study, write_features
from tests.support.shown_scores import draw_of, head, of_test_rows

CLASSES = 3
PROBE_NORM = 3.0


def planned(folder: Path, n: int, epsilon: float, *, unusual: bool = True) -> Plan:
    mechanisms = measure.monitor_mechanisms(unusual=unusual)
    target = Target(n=n, epsilon=epsilon, delta=1e-5)
    return calibrate(mechanisms, target, cache=folder / "calibration")


def watched_head(*, unusual: bool = True) -> Any:
    typical = np.eye(1, CLASSES, dtype=np.float32)[None] if unusual else None
    return replace(head(CLASSES), typical=typical)


def counts_of(
    scores: npt.NDArray[Any], weights: npt.NDArray[Any], *, n: int, unusual: bool
) -> npt.NDArray[np.float64]:
    rows = of_test_rows(scores, np.zeros(len(scores), np.int64))
    with np.errstate(all="ignore"):
        total = measure.count_bins(
            watched_head(unusual=unusual),
            rows,
            weights,
            n=n,
            calibration=None,
            link="softmax",
            edges=monitor.list_edges(PROBE_NORM, unusual=unusual),
        )
    assert n / total.step <= 2**53, "float64 adds all units, also of other sites"
    return total.values.numpy().ravel()


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0] * 6])
@pytest.mark.parametrize("unusual", [True, False])
def test_no_unit_moves_the_tables_by_more_than_their_sensitivity(
    units: list[int], unusual: bool
) -> None:
    generator, whose = np.random.default_rng(1), np.array(units)
    shares = row_weights(whose)
    weights = np.ones(6) if shares is None else shares
    (stated,) = measure.monitor_mechanisms(unusual=unusual)
    worst, n = 0.0, len(np.unique(whose)) + 1000
    for _ in range(30):
        scores = generator.normal(size=(6, CLASSES)) * generator.choice([0.01, 1, 1e6])
        if generator.random() < 0.3:  # equal rows give the longest sum
            scores[:] = scores[0]
        whole = counts_of(scores, weights, n=n, unusual=unusual)
        for unit in np.unique(whose):
            for null in (math.nan, math.inf):
                without = np.where((whose != unit)[:, None], scores, null)
                less = counts_of(without, weights, n=n, unusual=unusual)
                worst = max(worst, float(np.linalg.norm(whole - less)))
    assert stated.sensitivity * (1 - 1e-6) < worst <= stated.sensitivity


def test_the_monitor_counts_zero_scores_but_not_nonfinite_scores() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert not counts_of(np.full((4, CLASSES), bad), np.ones(4), n=1000, unusual=True).any()
    assert counts_of(np.zeros((4, CLASSES)), np.ones(4), n=2**30, unusual=True).sum() == 16


@pytest.mark.parametrize("block", [7, 1000])
def test_a_row_counts_in_the_cells_that_new_images_do(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release and `predict` place the same values with the same function."""
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 4 * CLASSES * block)
    scores = np.random.default_rng(2).normal(size=(40, CLASSES)).astype(np.float32)
    whole = counts_of(scores, np.ones(40), n=1000, unusual=True)
    values = torch.from_numpy(scores).softmax(dim=1).numpy()
    typical = watched_head().typical[0]
    unusual = monitor.measure_unusualness(scores, Transform(NoNormalisation()), typical)
    edges = monitor.list_edges(PROBE_NORM, unusual=True)
    bins = monitor.place_rows(values, monitor.measure_norms(scores), unusual, edges)
    sizes = [CLASSES, *(len(each) + 1 for each in edges.values())]
    for part, name, size in zip(np.split(whole, np.cumsum(sizes)[:-1]), bins, sizes, strict=True):
        np.testing.assert_allclose(part, np.bincount(bins[name], minlength=size))


def test_noise_has_the_deviation_of_the_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, 1000, 1.0)
    rows = of_test_rows(np.zeros((1000, CLASSES)), np.zeros(1000, np.int64))
    block = measure.monitor_head(
        draw_of(watched_head(), rows, SystemEntropy()),
        plan,
        probe_norm=PROBE_NORM,
        calibration=None,
        link="softmax",
        together=None,
    )
    noise = np.concatenate(
        [np.sort(np.array(each))[:-1] for each in block["tables"].values()]
    )  # without the one full bin
    wanted = plan.mechanisms[0].noise_multiplier * 2
    assert block["mechanisms"][0]["noise_standard_deviation"] == pytest.approx(wanted)
    assert noise.std() == pytest.approx(wanted, rel=5 / math.sqrt(2 * len(noise)))
    assert {name: len(each) for name, each in block["tables"].items()} == {
        "predicted_class": 3,
        "largest_value": 11,
        "feature_norm": 21,
        "unusualness": 19,
    }
    releases = Releases(plan, (1,), torch.device("cpu"), entropy=SEEDED)
    with pytest.raises(PrivacyError, match="epsilon covers 1"):
        releases.count_releases(measure.COUNTS, 2)


def make_release(folder: Path, **options: Any) -> Path:
    grouped = options.pop("images_per_patient", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
        write_features(folder, images_per_patient=grouped)
    made = study(folder, monitor={"epsilon": 2}, of_patients=grouped is not None, **options)
    return release(folder, made)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a release with all measurements on test units and returns its bundle."""
    everything = {"calibrate": {"epsilon": 2}, "evaluate": {"epsilon": 1}}
    return make_release(tmp_path_factory.mktemp("watched"), **everything)


@pytest.fixture
def output(shared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared, tmp_path / "bundle"))


def features_like_test(rows: int, seed: int) -> npt.NDArray[np.float32]:
    features = np.random.default_rng(seed).normal(size=(rows, DIMENSION))
    features[np.arange(rows), np.arange(rows) % 3] += 4.0
    return features.astype(np.float32)


def watch(output: Path, features: npt.NDArray[np.float32], groups: Any = None) -> Any:
    read = bundle.read_bundle(output)
    heads = one_head(read.weights, read.arrays, method_options(read.facts.head.options).normalize)
    watched = monitor.Watch(read, heads.transforms[0], groups or {})
    rounded = features.astype(np.float16).astype(np.float32)
    rescale = read.calibration.rescale if read.calibration else None
    for start in range(0, len(rounded), 64):
        block = rounded[start : start + 64]
        values = compute_probabilities(heads, block, read.link, rescale)
        watched.add_rows([f"{start + row}.png" for row in range(len(block))], values, block)
    return watched.compare()


@pytest.mark.parametrize("calibrate", [None, {"epsilon": 2}])
def test_scores_that_a_calibration_makes_probabilities_are_watched_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrate: Any
) -> None:
    links, count = [], measure.count_bins

    def count_with(*words: Any, link: Any, **options: Any) -> Any:
        links.append(link)
        return count(*words, link=link, **options)

    monkeypatch.setattr(measure, "count_bins", count_with)
    output = make_release(tmp_path, method="sums", calibrate=calibrate)
    assert links == [bundle.read_bundle(output).link] == ["softmax" if calibrate else "none"]


def test_images_of_one_patient_count_once(tmp_path: Path) -> None:
    output = make_release(tmp_path, images_per_patient=2)
    assert bundle.read_bundle(output).statement["monitor"]["n"] == 300
    assert verify_bundle(output).passed
    same = np.repeat(features_like_test(10, 7), [200, *[1] * 9], axis=0)
    groups = {f"{row}.png": "p" for row in range(200)}
    report = watch(output, same, groups)
    assert (report.images, report.units) == (209, 10)
    assert report.verdict != monitor.DIFFERENT
    assert watch(output, same).verdict == monitor.DIFFERENT


def test_streamed_images_are_compared_with_the_tables(tmp_path: Path) -> None:
    """Features of streamed images are compared with noisy counts of other images."""
    typical = np.eye(2, 64, dtype=np.float32)
    output = write_release(
        tmp_path / "release", {"family": "pixels", "size": 8}, arrays={TYPICAL: typical}
    )
    generator, names = np.random.default_rng(0), [tmp_path / f"{place}.png" for place in range(70)]
    for name in names:
        Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8)).save(name)
    predictor = Predictor.load_bundle(output, device="cpu")
    edges = monitor.list_edges(predictor.facts.backbone.probe["norm"], unusual=True)
    blocks = list(predictor.predict_blocks(find_images(names[:60]).read_images(), 60))
    features, values = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("features", "values")
    )
    unusual = monitor.measure_unusualness(features, predictor.heads.transforms[0], typical)
    bins = monitor.place_rows(values, monitor.measure_norms(features), unusual, edges)
    sizes = {"predicted_class": 3, **{name: len(each) + 1 for name, each in edges.items()}}
    tables = {
        name: (100.0 * np.bincount(bins[name], minlength=size)).tolist()
        for name, size in sizes.items()
    }
    plan = planned(tmp_path, 6000, 2.0)
    mechanisms = [mechanism_values(item, plan) for item in plan.mechanisms]
    watched = {"tables": tables, "edges": edges, "n": 6000, "mechanisms": mechanisms}
    edit_file(output, bundle.STATEMENT_FILE, lambda values: values.update(monitor=watched))
    groups, black = tmp_path / "groups.csv", tmp_path / "black.png"
    groups.write_text("id,group\n" + "".join(f"{name},{name}\n" for name in names))
    Image.new("L", (8, 8), 1).save(black)
    blacks = [*names[:20], *[black] * 50]
    for images, file, verdict in (
        (names, groups, monitor.SIMILAR),
        (blacks, None, monitor.DIFFERENT),
    ):
        table, watch = tmp_path / "table.csv", partial(monitor.open_watch, file)
        report = predict(output, images, output=table, watch=watch).report
        assert isinstance(report, monitor.Report)
        assert (report.verdict, report.units) == (verdict, 70)
        assert monitor.UNUSUAL not in table.read_text()


@pytest.mark.parametrize("fault", ["removed", "not orthonormal"])
def test_missing_or_non_orthonormal_monitor_directions_fail_verification(
    output: Path, fault: str
) -> None:
    path = output / bundle.HEAD_FILE
    content = path.read_bytes()
    tensors = load(content)
    if fault == "removed":
        del tensors[TYPICAL]
    else:
        tensors[TYPICAL] = tensors[TYPICAL] * 2
    path.write_bytes(save(tensors))
    bundle.write_sums(output)
    assert "head" in failed(verify_bundle(output))
    if fault == "removed":
        with refuses(DataError, "monitor"):
            monitor.Watch(bundle.read_bundle(output), Transform(NoNormalisation()), {})


# A monitor's tables count equally many rows; directions are orthonormal and contain the centre.


FOUR = measure.monitor_mechanisms(unusual=True)
THREE = measure.monitor_mechanisms(unusual=False)


def check(first: float, second: list[float], *, n: int, deviation: float) -> None:
    """Checks the totals of two tables, of which the first has one bin."""
    plan = made_plan(FOUR, n, noise=deviation / made_plan(FOUR, n).mechanisms[0].noise_scale)
    sizes = {"a": 1, "b": len(second)}
    check_totals({"a": [first], "b": second}, sizes, plan)


def test_a_total_exceeds_n_only_by_noise() -> None:
    """The limit is eight deviations of a sum of bins."""
    check(300.0, [299.0, 1.0, 0.0], n=300, deviation=0.1)
    check(5.0, [5.0, 0.0], n=300, deviation=0.1)  # null rows are not counted
    check(300 + 0.79, [300.0, 0, 0], n=300, deviation=0.1)
    with refuses(DataError, "a", "301 test units"):
        check(300 + 0.81, [300.0, 0, 0], n=300, deviation=0.1)
    reach = 8 * 0.1 * math.sqrt(3)
    check(300.0, [300 + 0.99 * reach, 0, 0], n=300, deviation=0.1)
    with refuses(DataError, "b", "301 test units"):
        check(300.0, [300 + 1.01 * reach, 0, 0], n=300, deviation=0.1)


def test_a_total_exceeds_another_table_by_the_noise_of_both() -> None:
    reach = 8 * 0.1 * math.sqrt(1 + 3)
    for more, right in ((0.99 * reach, True), (1.01 * reach, False)):
        for first, second in ((200 + more, 200.0), (200.0, 200 + more)):
            if right:
                check(first, [second, 0, 0], n=300, deviation=0.1)
            else:
                with refuses(DataError, "a" if first > second else "b", "test units"):
                    check(first, [second, 0, 0], n=300, deviation=0.1)


def test_another_number_of_cells_is_named() -> None:
    plan = made_plan(FOUR, 300)
    with refuses(DataError, "b", "2 bins", 3):
        check_totals({"a": [1.0], "b": [1.0, 1.0]}, {"a": 1, "b": 3}, plan)
    for bad in (math.nan, "1", True):
        with refuses(DataError, "a"):
            check_totals({"a": [bad]}, {"a": 1}, plan)


def test_a_monitor_of_too_few_test_units_is_refused_whatever_trains_the_head(
    tmp_path: Path,
) -> None:
    write_features(tmp_path)
    with refuses(PrivacyError, "monitor", "epsilon 0.05"):
        release(tmp_path, study(tmp_path, monitor={"epsilon": 0.05}))


def test_directions_are_orthonormal_and_hold_the_centre() -> None:
    rows = np.eye(2, 4, dtype=np.float32)
    inside, outside = np.array([3.0, 4, 0, 0]), np.array([3.0, 0, 4, 0])
    READER.check_arrays({})
    READER.check_arrays({"typical_directions": rows})
    READER.check_arrays({"typical_directions": rows, "centre": inside})
    with refuses(DataError, "typical_directions", "centre"):
        READER.check_arrays({"typical_directions": rows, "centre": outside})
    for wrong in (2 * rows, rows + 0.01, np.ones((2, 4), np.float32)):
        with refuses(DataError, "typical_directions", "orthonormal"):
            READER.check_arrays({"typical_directions": wrong})


@pytest.mark.parametrize(
    ("options", "dimension", "expected"),
    [
        ({"head": "feature_covariance", "normalize": "l2"}, 100, 25),
        ({"head": "feature_covariance", "normalize": "centred"}, 100, 26),
        ({"head": "least_squares", "normalize": "centred"}, 999, 65),
        ({"head": "least_squares", "normalize": "l2"}, 1, 1),
        ({"head": "prototypes", "normalize": "centred"}, 100, 1),
        ({"head": "prototypes", "normalize": "l2"}, 100, 0),
        ({"head": "prototypes", "normalize": "whitened"}, 100, 26),
    ],
    ids=str,
)
def test_heads_publish_a_centre_and_a_quarter_of_the_directions(
    options: dict[str, Any], dimension: int, expected: int
) -> None:
    """Only released centres and second moments are used; of a moment, at most 64 directions."""
    method = method_options(options)
    plan = made_plan(method.list_mechanisms(100), 100)
    count = measure.count_typical(plan, method.normalize, dimension)
    assert count == expected
    facts: Any = type("Facts", (), {"dimension": dimension})
    shapes = {"typical_directions": (expected, dimension)} if expected else {}
    assert READER.list_arrays({"monitor": {}}, plan, method, facts) == shapes
    assert READER.list_arrays({}, plan, method, facts) == {}


def test_moments_of_a_search_give_no_directions() -> None:
    """Each trial of a search releases a moment, but epsilon covers only the best trial."""
    method = method_options({"head": "feature_covariance", "normalize": "l2"})
    mechanisms = method.list_mechanisms(100)
    searched = made_plan(mechanisms, 100, selection=best_of(3.0, mechanisms[0].name))
    assert measure.count_typical(searched, method.normalize, 100) == 0


def test_a_monitor_needs_twenty_deviations_of_test_units() -> None:
    """The noise of a count is the noise multiplier times the root of the number of tables."""
    assert FOUR[0].sensitivity == pytest.approx(2)
    assert THREE[0].sensitivity == pytest.approx(math.sqrt(3))
    assert "unusualness" in FOUR[0].released
    assert "unusualness" not in THREE[0].released
    fewest = math.ceil(20 * made_plan(FOUR, 9).mechanisms[0].noise_scale)
    measure.check_monitor_size(made_plan(FOUR, fewest))
    with refuses(PrivacyError, "monitor", fewest - 1, "epsilon 1", fewest):
        measure.check_monitor_size(made_plan(FOUR, fewest - 1))
