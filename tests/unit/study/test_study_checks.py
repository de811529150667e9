"""A study's files, sizes, delta and folders are checked on this machine before any job."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpprobe.errors import ConfigError
from dpprobe.study.dimension_checks import check_dimensions
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.backbones import describe_here
from tests.support.programs import run_program
from tests.support.refusals import check_lines, read_refusals, write_files
from tests.support.small_study import STUDY

OPTION = "allow_delta_above_one_over_n"
DIGITS = {"source": "sklearn", "name": "digits"}
BY_ID = DIGITS | {"split_by": "id"}
OPACUS = {"theirs": {"head": "sgd", "engine": "opacus", "batch_size": "full"}}
EXACT = {"head": "sgd", "engine": "exact"}
RELEASE = {"dataset": "digits", "backbone": "pixels", "method": "exact", "epsilon": 1.0}
URL: dict[str, Any] = {
    "source": "url",
    "files": [{"url": "http://h/x.zip", "sha256": "0" * 64}],
    "layout": {"source": "imagefolder", "path": "x"},
    "expect": {"train": 9_000, "test": 90},
}
SCANS = {"datasets": {"scans": {"source": "imagefolder", "path": "images"}}}
PATIENTS = {
    "source": "csv",
    "root": ".",
    "train": "tables/a.csv",
    "path_column": "file",
    "unit": "image",
    "label_column": "kind",
    "class_names": ["a", "b"],
    "split_by": "id",
    "unit_column": "who",
}

DROPS = {"p": PATIENTS | {"missing": "drop", "unit": "patient"}}


def releases(*changes: dict[str, Any], digits: Any = BY_ID, **more: Any) -> dict[str, Any]:
    made = {f"r{number}": RELEASE | each for number, each in enumerate(changes)}
    methods = {"exact": EXACT, "float": {"head": "sgd"}, "ceiling": {"head": "nonprivate"}}
    return {"datasets": {"digits": digits}, "methods": methods, "releases": made} | more


def folders(data: str = "data", results: str = "results", **more: Any) -> dict[str, Any]:
    methods = {"squares": {"head": "least_squares"}}
    return SCANS | {"data_dir": data, "results_dir": results, "methods": methods} | more


def digits(**options: Any) -> dict[str, Any]:
    return {"datasets": {"digits": DIGITS | options}}


SEVERAL = {
    "sgd": {"head": "sgd"},
    "dpfc": {"head": "feature_covariance"},
    "auto": {"head": "auto"},
    "tuned": {"head": "tuned", "base": {"head": "sgd"}},
    "balanced": {"head": "auto"} | {"balanced": True},
    "squares": {"head": "least_squares"},
    "weights": {"head": "sgd", "loss": "sigmoid", "class_weights": [1.0] * 10},
    "good": {"head": "sgd", "loss": "sigmoid"},
    "tuned_good": {"head": "tuned", "base": {"head": "sgd", "loss": "sigmoid"}},
}
STUDIES: dict[str, dict[str, Any]] = {
    "small": {},
    "delta 0.1": {"delta": 0.1},
    "delta 1/n": {"delta": 1 / 1438},
    "just above": {"delta": 7e-4},
    "delta 0.99/n": {"delta": 0.99 / 1438},
    "delta 0.11/n": {"delta": 0.11 / 1438},
    "delta 0.1/n": {"delta": 0.1 / 1438},
    "allowed": {"delta": 0.1, OPTION: True},
    "allowed 1/n": {"delta": 1 / 1438, OPTION: True},
    "own delta": digits(delta=0.1),
    "own delta, allowed": digits(delta=0.1, **{OPTION: True}),
    "allowed for nothing": {OPTION: True},
    "metrics": releases(
        *(
            {"evaluate": each}
            for each in (
                None,
                {"epsilon": 1},
                {"epsilon": 1, "metric": "accuracy"},
                {"epsilon": 1, "metric": "macro_accuracy"},
            )
        )
    ),
    "the dataset's metric": releases(
        {"evaluate": {"epsilon": 1}}, digits=BY_ID | {"metric": "macro_accuracy"}
    ),
    "methods": releases({"method": "float"}, {"method": "ceiling"}, {"epsilon": 7.5}),
    "unmeasured": releases({"epsilon": 7.5}, {"epsilon": {"advantage": 0.1}}),
    "limit": releases(
        {"epsilon": 2.0},
        {"epsilon": 3.0},
        {"epsilon": {"advantage": 0.9}},
        privacy={"max_epsilon": 2},
    ),
    "splits": releases({}, digits=DIGITS),
    "of parts": releases({}, digits=BY_ID | {"subsample": {"per_class": 50}}),
    "labels of n": releases({"dataset": "p"}, datasets=DROPS, methods={"exact": {"head": "auto"}}),
    "labels of n, no release": {"datasets": DROPS, "methods": {"exact": {"head": "auto"}}},
    "same images": releases({}, datasets={"digits": BY_ID, "two": BY_ID}),
    "told": releases({}, datasets={"digits": BY_ID, "two": BY_ID | {"same_units_as": "digits"}}),
    "told there": releases({}, datasets={"digits": BY_ID | {"same_units_as": "two"}, "two": BY_ID}),
    "same as itself": releases({}, digits=BY_ID | {"same_units_as": "digits"}),
    "same as none": releases({}, digits=BY_ID | {"same_units_as": "none"}),
    "same as released": releases({}, digits=BY_ID | {"same_units_as": "old"}),
    "a release's delta": releases({}, {"delta": 0.5 / 1402}),
    "a release's delta is its dataset's": releases({"delta": 0.5 / 1402}, delta=0.5 / 1402),
    "a release's delta above 1/n": releases({"delta": 0.1}),
    "allowed, a release": releases({"delta": 1e-5}, delta=0.1, **{OPTION: True}),
    "allowed, no release": releases({}, delta=0.1, **{OPTION: True}),
    "allowed, max_epsilon": releases(
        {"delta": 1e-5}, delta=0.1, privacy={"max_epsilon": 3}, **{OPTION: True}
    ),
    "allowed, max_risk": releases(
        {"delta": 1e-5}, delta=0.1, privacy={"max_risk": {"advantage": 0.5}}, **{OPTION: True}
    ),
    "several labels": {"methods": SEVERAL},
    "several, a part": {"methods": {"ok": SEVERAL["good"]}, **digits(subsample={"per_class": 50})},
    "several, a share": {"methods": {"ok": SEVERAL["good"]}, **digits(subsample={"fraction": 0.5})},
    "several, a release": releases({}),
    "several, a good release": releases({}) | {"methods": {"exact": EXACT | {"loss": "sigmoid"}}},
    "balanced": {"methods": {"balanced": SEVERAL["balanced"]}},
    "texts": {
        "backbones": {
            "siglip": {"family": "open_clip", "model": "ViT-B-16-SigLIP.webli"},
            "clip": {"family": "open_clip", "model": "ViT-B-32-quickgelu.openai"},
        }
    },
    "sizes": digits(expect={"train": 1, "test": 2, "classes": 3}),
    "right sizes": digits(expect={"train": 1438, "test": 359, "classes": 10}),
    "tables": {"datasets": {"scans": URL}},
    "other tables": {"datasets": {"scans": URL | {"layout": URL["layout"] | {"split_seed": 1}}}},
    "no tables": {"datasets": {"other": URL}},
    "public tables": {"public_datasets": {"scans": URL}},
    "public": {"public_datasets": {"other": DIGITS | {"split_seed": 4, "expect": {"train": 3}}}},
    "its test": {"public_datasets": {"other": DIGITS | {"split_seed": 4, "expect": {"test": 3}}}},
    "shards": {"features": {"shards": 360}},
    "all shards": {"features": {"shards": 359}},
    "many shards": {"features": {"shards": 1439}},
    "patients": {"methods": OPACUS, "datasets": {"p": PATIENTS}},
    "few images of patients": {
        "datasets": {"p": PATIENTS | {"max_images_per_patient": 2, "delta": 1e-3}},
        "methods": {"squares": {"head": "least_squares"}},
        "epsilons": [1, {"advantage": 0.1}, "inf"],
    },
    "units": {"datasets": {"p": PATIENTS | {"unit": "patient"}}, "delta": 0.2},
    "units of a part": {
        "datasets": {"p": PATIENTS | {"unit": "patient", "subsample": {"fraction": 0.5}}},
        "delta": 0.2,
    },
    "Opacus": {"methods": OPACUS, "datasets": {"p": PATIENTS | {"unit": "patient"}}},
    "one folder": folders("same", "same"),
    "results of images": folders(results="images/out"),
    "tables of images": folders("images"),
    "tables below": folders("images/a"),
    "results of tables": folders("out", "out/scans"),
    "downloads": folders("out", "out/downloads"),
    "results of cells": folders(results="results/cells"),
    "results of releases": folders(results="results/mine/releases"),
    "results beside": folders("out", "out/results"),
    "mine": folders(results="results/mine"),
    "elsewhere": folders(results="elsewhere/cells"),
    "data below": folders("out/data", "out"),
    "a file": folders("tables/a.csv/b"),
    "a long name": folders(results="a" * 256),
    "a name": folders(results="a" * 255),
    "tables beside": folders("."),
    "tables in the way": folders(".", datasets={"images": SCANS["datasets"]["scans"]}),
    "public tables in the way": folders(".", public_datasets={"images": DIGITS}),
    "results of public tables": folders("out", "out/other/a", public_datasets={"other": DIGITS}),
    "results of public images": folders(
        results="public/a",
        datasets={"digits": DIGITS},
        public_datasets={"other": {"source": "imagefolder", "path": "public"}},
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with 20 images of ten patients, the table of a download, and a ledger."""
    monkeypatch.chdir(tmp_path)
    rows = [f"images/{n % 2}/{n}.png,{'ab'[n % 2]},p{n // 2}" for n in range(20)]
    Path("tables").mkdir()
    Path("tables/a.csv").write_text("\n".join(["file,kind,who", *rows]))
    for n in range(20):
        path = Path(f"images/{n % 2}/{n}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    for name in ("scans", "old"):
        Path("data", name).mkdir(parents=True)
    Path("data/old/ledger.jsonl").touch()
    info = {
        "source": load_study(STUDY | {"datasets": {"scans": URL}})
        .datasets["scans"]
        .preparation_params(),
        "splits": {"train": {"rows": 9_000}, "test": {"rows": 80}},
        "class_names": ["a", "b"],
    }
    Path("data/scans/dataset.json").write_text(json.dumps(info))
    return tmp_path


ABOVE = "delta 0.1 is above 1/n = 0.000695 (n = 1438 training rows)"  # a fifth of 1,797 is tested
ABOVE_BY_ID = "delta 0.1 is above 1/n = 0.000713 (n = 1402 training rows)"
NOT_RELEASED = ": this delta would allow a mechanism that publishes a random row. No result with"
ONE_OVER_N = "datasets.digits: delta 0.00069541 is 1/n (n = 1438 training rows)"
FEW_TESTED = "2 classes have fewer than 5 test "
OVERWRITTEN = "files written there would lie in images, where dataset "
# The start of each line that is printed about a study above: errors begin with `config: `, others
# are warnings. The other studies cause no line.
SAID: dict[str, list[str]] = {
    "delta 0.1": [f"config: delta on datasets.digits: {ABOVE}; set a smaller delta, or `allow_"],
    "delta 1/n": [ONE_OVER_N],
    "just above": ["config: delta on datasets.digits: delta 0.0007 is above 1/n = 0.000695"],
    "delta 0.99/n": ["on average 0.99 rows of 1438. Prefer 1e-05"],
    "delta 0.11/n": ["on average 0.11 rows of 1438. Prefer 1e-05"],
    "allowed": [f"datasets.digits: {ABOVE}{NOT_RELEASED}"],
    "allowed 1/n": [ONE_OVER_N],
    "own delta": [f"config: datasets.digits: {ABOVE}; set"],
    "own delta, allowed": [f"datasets.digits: {ABOVE}{NOT_RELEASED}"],
    "the dataset's metric": [
        "config: releases.r0: evaluate: tables show macro_accuracy of digits, but the release "
        "would measure accuracy; write the `metric` in `evaluate`"
    ],
    "methods": [
        "config: releases.r0: method float: its noise is not exact, so it is only for benchmarks",
        "config: releases.r1: method ceiling: it is not private; choose a private method",
    ],
    "unmeasured": [
        "releases.r0: epsilon 7.5 is not in `epsilons`",
        "releases.r1: epsilon advantage 0.1 is not in `epsilons`",
    ],
    "limit": ["config: releases.r1: epsilon 3 is above privacy.max_epsilon 2 of digits; set"],
    "splits": ["config: releases.r0: dataset digits: split_by: class chooses test rows by their"],
    "of parts": ["config: releases.r0: dataset digits: subsample: per_class ranks the units of a"],
    "labels of n": ["config: releases.r0: dataset p: missing: drop: rows are left out by their"],
    "labels of n, no release": [FEW_TESTED],
    "same images": [
        "config: releases.r0: dataset digits: it has the images of two too, and each of the two "
        "has its own ledger, so the costs of their releases would not be added up"
    ],
    "same as itself": [
        "config: releases.r0: dataset digits: same_units_as: digits: write the name"
    ],
    "same as none": ["config: releases.r0: dataset digits: same_units_as: none: write the name of"],
    "a release's delta": ["releases.r1: delta 0.000356633 is 0.5 * 1/n (n = 1402 training rows)"],
    "a release's delta is its dataset's": ["datasets.digits: delta 0.000356633 is 0.5 * 1/n"],
    "a release's delta above 1/n": [f"config: releases.r0: {ABOVE_BY_ID}; set a smaller delta"],
    "allowed, a release": [f"datasets.digits: {ABOVE_BY_ID}{NOT_RELEASED}"],
    "allowed, no release": [f"config: releases.r0: {ABOVE_BY_ID}; set a smaller delta"],
    **{
        f"allowed, {limit}": [
            f"config: releases.r0: privacy.{limit} of digits uses the dataset's delta: "
            f"{ABOVE_BY_ID}"
        ]
        for limit in ("max_epsilon", "max_risk")
    },
    "several labels": [
        *(
            f"config: methods.{name} on datasets.digits: the rows have several labels, but head "
            f"{head} with these options takes one; write `loss: sigmoid` in the method{where}"
            for name, head, where in (
                ("sgd", "sgd", ""),
                ("dpfc", "feature_covariance", ""),
                ("tuned", "tuned", "'s base"),
            )
        ),
        "config: methods.balanced on datasets.digits: balanced needs one label per row",
        "config: methods.weights on datasets.digits: class_weights need one label per row",
    ],
    "several, a part": [
        "config: datasets.digits: subsample: fractions and per_class need one label per row, but "
        "these rows have several; write fraction"
    ],
    "several, a release": [
        "config: methods.exact on datasets.digits: the rows have several labels",
        "config: methods.float on datasets.digits: the rows have several labels",
        "config: releases.r0: method exact: it takes one label per row; write `loss: sigmoid`",
    ],
    "texts": ["backbones.siglip: reading text with ViT-B-16-SigLIP needs the package transformers"],
    "sizes": [
        "config: datasets.digits: expect.train: 1, but there are 1438 train rows; complete the",
        "config: datasets.digits: expect.test: 2, but there are 359 test rows; complete the source",
        "config: datasets.digits: expect.classes: 3, but there are 10 classes; complete the source",
    ],
    "tables": [
        "config: datasets.scans: expect.test: 90, but there are 80 test rows; correct `expect`, or "
        "delete data/scans/dataset.json to recreate the tables"
    ],
    "public tables": ["config: public_datasets.scans: expect.test: 90, but there are 80 test rows"],
    "public": [
        "config: public_datasets.other: it has the images of the private dataset digits, even if",
        "config: public_datasets.other: expect.train: 3, but there are 1438 train rows",
    ],
    "its test": [
        "config: public_datasets.other: it has the images of the private dataset digits, even if",
        "config: public_datasets.other: expect.test: 3, but there are 359 test rows",
    ],
    "shards": ["config: features.shards: 360 is above the 359 test rows of digits; use at most"],
    "many shards": [
        "config: features.shards: 1439 is above the 1438 train rows of digits; use at most 1438",
        "config: features.shards: 1439 is above the 359 test rows of digits; use at most 359",
    ],
    "patients": [
        "datasets.p: unit: image, and patients may have several: patients have no guarantee; write",
        f"datasets.p: {FEW_TESTED}patients, too few for any conclusion: a (7 train, 3 test), b (7",
    ],
    "few images of patients": [
        "for a patient with 2 images the epsilon is 2.302 in place of 1, 1.361 in place of "
        "advantage 0.1 (for steps on all rows;",
        FEW_TESTED,
    ],
    "units": [
        "config: methods.sgd on datasets.p: batch_size 32 is above the 7 training rows",
        "config: delta on datasets.p: delta 0.2 is above 1/n = 0.143 (n = 7 training patients)",
    ],
    "units of a part": [FEW_TESTED],
    "Opacus": ["config: methods.theirs on datasets.p: engine opacus clips gradients of images"],
    "one folder": ["config: results_dir: same: it is also the data_dir; choose two folders"],
    "results of images": [f"config: results_dir: images/out: {OVERWRITTEN}scans looks for images"],
    "tables of images": [f"config: data_dir: images: {OVERWRITTEN}scans looks for images"],
    "tables below": [f"config: data_dir: images/a: {OVERWRITTEN}scans looks for images"],
    "results of tables": [
        "config: results_dir: out/scans: in out/scans, where the split tables of"
    ],
    "downloads": ["config: results_dir: out/downloads: in out/downloads, where downloads go"],
    "results of cells": [
        "config: results_dir: results/cells: cells is a name that the default study writes in "
        "results; choose another, such as results/cells_study"
    ],
    "results of releases": ["config: results_dir: results/mine/releases: releases is a name that"],
    **{
        name: [f"datasets.scans: {FEW_TESTED}images"]
        for name in ("results beside", "mine", "elsewhere", "data below", "a name", "tables beside")
    },
    "a file": ["config: data_dir: tables/a.csv/b: FOLDER/tables/a.csv is not a folder; choose"],
    "a long name": ["a...: this name is too long; choose a shorter one"],
    "tables in the way": [f"config: data_dir: .: {OVERWRITTEN}images looks for images"],
    "public tables in the way": [f"config: data_dir: .: {OVERWRITTEN}scans looks for images"],
    "results of public tables": ["config: results_dir: out/other/a: in out/other, where the split"],
    "results of public images": [
        "config: results_dir: public/a: files written there would lie in public, where dataset "
        "other looks for images, and would be read as images",
        "config: public_datasets.other: path: no folder public; correct the path or put the images",
    ],
}


def test_every_outcome_is_of_a_study() -> None:
    assert SAID.keys() <= STUDIES.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_what_checks_say(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    study = load_study(STUDY | STUDIES[name])
    for dataset in study.datasets.values() if name.startswith("several") else ():
        monkeypatch.setattr(type(dataset), "multi_label", lambda _: True)
    try:
        lines = check_study(study)
        assert not [line for line in lines if line.startswith("config: ")]
    except ConfigError as error:
        lines = str(error).splitlines()
        assert all(line.startswith("config: ") for line in lines)
    lines = [line.replace(str(folder), "FOLDER") for line in lines]
    parts = SAID.get(name, [])
    assert len(lines) == len(parts), lines
    for line, part in zip(lines, parts, strict=True):
        assert part in line


@pytest.mark.parametrize(
    "wrong", [None, {"splits": {"train": {}}}, {"splits": {"train": {"rows": None}}}]
)
def test_tables_that_cannot_be_read_are_left_to_the_job_that_reads_them(
    folder: Path, wrong: dict[str, Any] | None
) -> None:
    path = folder / "data/scans/dataset.json"
    info = json.loads(path.read_text())
    path.write_text("no JSON" if wrong is None else json.dumps(info | wrong))
    assert check_study(load_study(STUDY | STUDIES["tables"])) == []


def test_a_patient_s_epsilon_equals_that_of_a_group(folder: Path) -> None:
    """With steps on all rows, k images act like one row of k times the norm: mu becomes k mu.

    Dong, Roth and Su 2022, Theorem 2.14 and equation (2.13): delta of mu-GDP at epsilon.
    """
    assert folder.exists()

    def delta_of(mu: float, epsilon: float) -> float:
        return float(
            norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        )

    mu = brentq(lambda each: delta_of(each, 1) - 1e-3, 1e-3, 10)
    epsilon = brentq(lambda each: delta_of(2 * mu, each) - 1e-3, 1e-3, 50)
    line, _ = check_study(load_study(STUDY | STUDIES["few images of patients"]))
    found = float(re.findall(r"epsilon is ([\d.]+) in place of 1,", line)[0])
    assert found == pytest.approx(epsilon, abs=1e-3)


def test_a_release_never_takes_the_metric_of_its_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """`init` chooses the dataset's metric from the labels; an AUC requires two classes."""
    monkeypatch.setattr("dpprobe.data.sources.sklearn_datasets.Options.count_classes", lambda _: 2)
    auc = BY_ID | {"metric": "auc"}
    for metric in ("accuracy", "auc"):
        chosen = {"evaluate": {"epsilon": 1, "metric": metric}}
        check_study(load_study(STUDY | releases(chosen, digits=auc)))
    with pytest.raises(ConfigError, match="^config: releases.r0: evaluate: .*auc"):
        check_study(load_study(STUDY | releases({"evaluate": {"epsilon": 1}}, digits=auc)))


def test_planning_a_study_imports_no_heavy_package(repository: Path) -> None:
    code = (
        "import sys, yaml; from dpprobe.study.study_checks import check_study;"
        "from dpprobe.study.cuts import study_cuts;"
        "from dpprobe.study.dimension_checks import check_dimensions;"
        "from dpprobe.study.study_file import load_study;"
        "study = load_study(yaml.safe_load(open('config.yaml')));"
        "check_study(study), check_dimensions(study), study_cuts(study);"
        "from dpprobe.backbones import loading;"
        "from dpprobe.backbones.registry import FAMILIES;"
        "from dpprobe.data import dataset_preparation;"
        "from dpprobe.data.downloads import addresses;"
        "from dpprobe.data.registry import SOURCES;"
        "from dpprobe.options import options_class;"
        "[options_class(every, name) for every in (SOURCES, FAMILIES) for name in every];"
        "heavy = {'torch','numpy','pandas','pyarrow','sklearn','timm','mlflow','PIL','h5py'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = run_program([sys.executable, "-c", code], cwd=repository)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("key", ["datasets", "public_datasets"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_source_in_the_place_of_its_split_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, linked: bool
) -> None:
    """Snakemake deletes files before it makes them: this would be the user's only copy."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data/mine"
    folder.mkdir(parents=True)
    images = [{"bytes": b"", "path": None}] * 2
    table = folder / ("test.parquet" if linked else "train.parquet")
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), table)
    source = tmp_path / "elsewhere.parquet" if linked else table
    if linked:
        source.symlink_to(table)
    dataset = {
        "source": "parquet",
        "train": str(source),
        "test": str(source),
        "class_names": ["a", "b"],
        "duplicates": "warn",
    }
    others = STUDY.get(key, {})
    study = load_study(STUDY | {key: {**others, "mine": dataset}})
    with pytest.raises(ConfigError, match=rf"{key}\.mine: .*overwrite"):
        check_study(study)
    assert table.exists()


# The table of refused studies, one case per line.
TABLE = Path(__file__).with_name("refused.yaml")


@pytest.fixture
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    describe_here(monkeypatch)


def check_all(study: Study) -> None:
    check_study(study)
    check_dimensions(study)


@pytest.mark.usefixtures("described_here")
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
        check_all(load_study(study))
    check_lines(str(caught.value), says)


@pytest.mark.parametrize("group", ["datasets", "public_datasets"])
def test_missing_files_that_a_person_downloads_name_the_command_with_the_steps(
    group: str, tmp_path: Path
) -> None:
    """A missing copy from another source is not downloaded, so its error names no command."""
    eyes = {"catalog": "eyepacs", "root": str(tmp_path)}
    with pytest.raises(ConfigError) as refused:
        check_study(load_study(STUDY | {group: {"eyes": eyes}}))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"config: {group}.eyes: train: no file trainLabels.csv")
    assert line.endswith("; `dpprobe catalog eyepacs` says how to get the files")
    copy = {"catalog": "cifar10", "source": "parquet", "train": "none.parquet"}
    with pytest.raises(ConfigError) as refused:
        check_study(load_study(STUDY | {group: {"images": copy}}))
    assert "dpprobe catalog" not in str(refused.value)
