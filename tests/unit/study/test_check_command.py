"""`dpprobe check` checks a study, and names line numbers, which Snakemake does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from dpprobe.data.options import ClassUnits
from dpprobe.study import check_command
from dpprobe.study.check_command import list_limits, list_tested
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support import release_study as toy
from tests.support.command_line import run_main
from tests.support.refusals import check_tokens
from tests.support.small_study import STUDY
from tests.support.sources import write_parquet

RARE_CLASSES = """\
study: rare
datasets:
  scans:
    source: parquet
    train: a/*.parquet
    class_names: [x, y]
backbones: {{pixels: {{family: pixels}}}}
methods: {{sgd: {{head: sgd, loss: sigmoid}}}}
epsilons: [2]
imbalance: {{datasets: [scans], classes: [x], fractions: [0.1, 0.01]}}
{more}
"""


def check(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    sys.exit(run_main(monkeypatch, "check", *files))


def test_a_good_study_is_counted_and_its_command_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    networks: list[bool] = []

    def ask(_: Study, *, network: bool) -> list[str]:
        networks.append(network)
        return []

    monkeypatch.setattr(check_command, "check_dimensions", ask)
    monkeypatch.setattr(check_command, "list_tested", lambda _: ["few test images"])
    first, second = Path("first.yaml"), Path("second.yaml")
    first.write_text(yaml.safe_dump(STUDY))
    second.write_text("epsilons: [1]\nmethods: {sgd: {epochs: 3}}\n")
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch, first)
    counted, unread, tested = capsys.readouterr().out.splitlines()
    assert counted == "first.yaml: 4 cells; run: dpprobe run --cores all --configfile first.yaml"
    assert unread.startswith("Not read yet: images, and labels row by row. The first job")
    assert tested == "few test images"
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch, first, second)
    assert "first.yaml second.yaml: 2 cells" in capsys.readouterr().out
    first.rename("config.yaml")
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch)
    assert "config.yaml: 4 cells; run: dpprobe run --cores all\n" in capsys.readouterr().out
    check_command.read_study([Path("config.yaml")])
    assert networks == [True, True, True, False], "only a check asks the Hub"


def test_a_fault_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("study: x\n\tseeds: 1\n")
    with pytest.raises(SystemExit, match=r"dpprobe: .*study.yaml:2: a tab, .* spaces"):
        check(monkeypatch, path)
    path.write_text(yaml.safe_dump(STUDY | {"seedz": 1}))
    with pytest.raises(SystemExit, match=r"dpprobe: .*study.yaml:\d+: seedz: unknown key"):
        check(monkeypatch, path)


@pytest.mark.parametrize("typed", [[], ["lesion.yaml"], ["lesions"]])
def test_the_study_that_was_meant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lesions.yaml").write_text(yaml.safe_dump(STUDY))
    name = (typed or ["config.yaml"])[0]
    with pytest.raises(SystemExit) as ended:
        check(monkeypatch, *map(Path, typed))
    assert ended.value.code == (
        f"dpprobe: {name}: no such file; name the file of a study, as in lesions.yaml"
    )


def test_only_readers_that_check_a_study_read_it(repository: Path) -> None:
    """`init` checks its draft except for the classes, which `init` lists itself."""
    places = ("src/dpprobe/**/*.py", "scripts/*.py", "workflow/**/*.smk")
    callers = {
        f"{path.relative_to(repository)}: {line.strip()}"
        for place in places
        for path in repository.glob(place)
        for line in path.read_text(encoding="utf-8").splitlines()
        if "load_study(" in line and "def " not in line
    }
    assert callers == {
        "src/dpprobe/draft/init_command.py: study = load_study(values)",
        "src/dpprobe/study/check_command.py: study = load_study(values)",
        "src/dpprobe/study/snapshot.py: study = load_study(values)",  # of a checked run
        "workflow/rules/common.smk: STUDY = load_study(config)",  # in a job of the same run
    }


def test_faults_of_lines_are_reported_before_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset's files are missing too, and `imbalance` derives two more datasets from them."""
    monkeypatch.chdir(tmp_path)
    path = Path("study.yaml")
    text = RARE_CLASSES.format(more="overlap: {public: [nowhere]}")
    path.write_text(text)
    place = len(text.splitlines())
    with pytest.raises(SystemExit) as told:
        check(monkeypatch, path)
    assert told.value.args == (
        f"dpprobe: study.yaml:{place}: overlap.public: 'nowhere' is not under public_datasets; add "
        "it",
    )
    path.write_text(RARE_CLASSES.format(more="fairness: {reference: nobody}"))
    with pytest.raises(SystemExit) as told:
        check(monkeypatch, path)
    missing, reference = str(told.value).splitlines()
    assert missing.startswith("dpprobe: study.yaml:5: datasets.scans: train: no file a/*.parquet;")
    assert reference.startswith(f"study.yaml:{place}: fairness: reference: no cell trains nobody")
    Path("a").mkdir()
    write_parquet(Path("a/b.parquet"), [[1, 0], [0, 1]], None)
    path.write_text(RARE_CLASSES.format(more="seeds: 2"))
    with pytest.raises(SystemExit) as told:
        check(monkeypatch, path)
    several, *_ = str(told.value).splitlines()
    assert several.startswith(f"dpprobe: study.yaml:{place - 1}: imbalance.datasets: rows of scans")


# Every kind of dataset, with files below raw/, used as private and as public dataset.
KINDS: dict[str, dict[str, Any]] = {
    "parquet": {"train": "raw/a.parquet", "test": "raw/*.parquet"},
    "csv": {
        "root": "raw",
        "train": "a.csv",
        "path_column": "file",
        "label_column": "kind",
        "class_names": ["x", "y"],
        "unit_column": "who",
        "group_columns": ["sex"],
    },
    "imagefolder": {"path": "raw"},
    "webdataset": {"train": "raw/*.tar", "class_names": ["x", "y"]},
    "huggingface": {
        "repo": "a/b",
        "train": "*.parquet",
        "revision": "0" * 40,
        "class_names": ["x", "y"],
        "expect": {"train": 9, "test": 9},
    },
    "url": {
        "files": [{"url": "http://h/x.zip", "sha256": "0" * 64}],
        "layout": {"source": "imagefolder", "path": "x"},
    },
    "torchvision": {"name": "CIFAR10"},
    "sklearn": {"name": "digits"},
    "embeddings": {
        "train": "raw/a.parquet",
        "test": "raw/b.parquet",
        "label_column": "kind",
        "class_names": ["x", "y"],
        "unit_column": "who",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_validation_opens_no_file_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, watched: list[str]
) -> None:
    """The files may be missing, or unreadable by every reader."""
    monkeypatch.chdir(tmp_path)
    dataset = {"source": kind} | KINDS[kind]
    backbone: dict[str, Any] = {"family": "pixels"}
    if kind == "embeddings":
        backbone = {"family": "external", "model": "m", "each_by_itself": True}
    values = {
        "datasets": {"scans": dataset, "others": dataset | {"metric": "macro_accuracy"}},
        "public_datasets": {"public": dataset},
        "backbones": {"pixels": backbone},
        "methods": {"exact": {"head": "sgd", "engine": "exact"}, "full": {"head": "nonprivate"}},
        "epsilons": [1, "inf"],
        "imbalance": {"datasets": ["scans"], "classes": ["x"], "fractions": [0.1]},
        "releases": {
            "one": {
                "dataset": "scans",
                "backbone": "pixels",
                "method": "exact",
                "epsilon": 1.0,
                "evaluate": {"epsilon": 1},
            }
        },
        "overlap": {"public": ["public"]},
        "fairness": {},
        "audit": {},
        "long_tail": {},
        "papers": {"datasets": {"scans": "cifar10"}},
    }
    for there in (False, True):
        if there:
            for name in ("a.parquet", "b.parquet", "a.csv", "a.tar", "x/1.png"):
                Path("raw", name).parent.mkdir(parents=True, exist_ok=True)
                Path("raw", name).write_bytes(b"what no reader takes")
        watched[:] = [str(Path("raw").absolute()), "raw"]
        study = load_study(values)
        assert [*study.datasets] == ["scans", "others", "scans_x_0p1"]
        assert watched == watched[:2], "opened"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields two folders, absolute and relative; each path opened below either is appended."""
    WATCHED.clear()
    if not HOOKED:
        HOOKED.append(True)
        sys.addaudithook(_watch)  # this hook cannot be removed
    for name in ("ParquetFile", "read_schema", "read_metadata", "read_table"):
        monkeypatch.setattr(pq, name, lambda path, *_, **__: WATCHED.append(str(path)))
    yield WATCHED
    WATCHED.clear()


WATCHED: list[str] = []
HOOKED: list[bool] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHED and event in {"open", "os.listdir", "os.scandir"}:
        path = str(arguments[0])
        if path.startswith(tuple(WATCHED[:2])):
            WATCHED.append(path)


def release_study(units: dict[str, ClassUnits | None], metrics: dict[str, str | None]) -> Any:
    """Returns the parts of a study that determine which test units a release counts."""
    return SimpleNamespace(
        releases={
            name: SimpleNamespace(dataset=name, test_metric=metric)
            for name, metric in metrics.items()
        },
        datasets={
            name: SimpleNamespace(count_class_units=lambda each=each: each)
            for name, each in units.items()
        },
        dataset_unit=lambda name: "patient" if name == "shares" else "image",
    )


def test_classes_with_the_fewest_test_units_are_listed() -> None:
    """With equal counts the first classes are named; a patient may count partly for two classes."""
    counts = dict.fromkeys(("d", "c", "b", "a"), 7) | {"few": 2, "most": 1234}
    parts = {"most": 9.0, "b": 1.5, "a": 1.25, "c": 2.0}
    units: dict[str, ClassUnits | None] = {
        "ties": ClassUnits(train={}, test=counts, test_at={}),
        "shares": ClassUnits(train={}, test=counts, test_at={}, test_shares=parts),
        "unknown": None,
        "of_accuracy": ClassUnits(train={}, test=counts, test_at={}),
        "of_none": ClassUnits(train={}, test=counts, test_at={}),
    }
    metrics = {"ties": "auc", "shares": "macro_accuracy", "unknown": "auc"}
    study = release_study(units, {**metrics, "of_accuracy": "accuracy", "of_none": None})
    shares, ties = list_tested(study)
    first_three = ", ".join(("few 2", "a 7", "b 7"))
    assert ties.startswith("ties: fewest test images that count in a release: ")
    assert f": {first_three}. " in ties
    assert shares.startswith("shares: fewest test patients that count in a release: ")
    assert ": a 1.25, b 1.5, c 2 (patients with images of several classes" in shares
    assert all(line.endswith("Do not publish these numbers.") for line in (ties, shares))


@pytest.mark.parametrize(
    ("privacy", "tokens"),
    [
        ({}, ["toy", "no limit", "privacy.max_epsilon"]),
        ({"max_epsilon": 3}, ["toy", "epsilon 3", "delta 0.0001", "max_epsilon"]),
        ({"max_epsilon": {"other": 3}}, ["toy", "no limit"]),
        ({"max_risk": {"advantage": 0.1}}, ["toy", "advantage 0.1", "max_risk"]),
    ],
)
def test_the_check_states_the_limit_on_all_releases_or_that_there_is_none(
    tmp_path: Path, privacy: dict[str, Any], tokens: list[str]
) -> None:
    made = toy.study(tmp_path)
    options = made.privacy.model_validate(privacy)
    (line,) = list_limits(made.model_copy(update={"privacy": options}))
    check_tokens(line, *tokens)
