"""A study is checked whole before any job: every mistake gives one line that names it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.backbones.registry import backbone_options
from dpprobe.data.options import headline_metric
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.heads.registry import method_options
from dpprobe.options import FOLDER_PATTERN
from dpprobe.privacy.limits import epsilon_token, epsilon_value
from dpprobe.study.check import check_study
from dpprobe.study.load import check_yaml, load_study
from dpprobe.study.schema import study_schema
from dpprobe.study.study import Study

STUDY: dict[str, Any] = {
    "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {
        "sgd": {"head": "sgd"},
        "ceiling": {"head": "nonprivate"},
    },
    "epsilons": [0.5, 1, "inf"],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """STUDY with one value set, by dotted path; the value `...` removes the key."""
    study = copy.deepcopy(STUDY)
    *parents, last = path.split(".")
    place = study
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return study


def test_a_study_has_one_cell_for_each_combination() -> None:
    study = load_study(STUDY)
    cells = [(cell.method, cell.epsilon) for cell in study.cells()]
    assert cells == [("sgd", "0.5"), ("sgd", "1"), ("sgd", "inf"), ("ceiling", "inf")]


def test_public_datasets_have_features_and_no_cells() -> None:
    own = {"other": {"source": "sklearn", "name": "digits"}}
    study = load_study(STUDY | {"public_datasets": own})
    assert {cell.dataset for cell in study.cells()} == {"digits"}
    assert list(study.all_datasets()) == ["digits", "other"]
    with pytest.raises(ConfigError, match=r"public_datasets\.digits: also the name of a private"):
        load_study(STUDY | {"public_datasets": STUDY["datasets"]})


def test_public_files_are_named_for_each_dataset_and_backbone() -> None:
    method = {"head": "sgd", "init": "file", "init_file": "{dataset}/{backbone}.safetensors"}
    options = load_study(changed("methods.sgd", method)).methods["sgd"]
    located = options.located(dataset="digits", backbone="pixels")
    assert located.input_files() == ("digits/pixels.safetensors",)
    wrong = load_study(changed("methods.sgd", method | {"init_file": "{other}.safetensors"}))
    with pytest.raises(ConfigError, match="only {dataset} and {backbone} may stand in braces"):
        check_study(wrong)


def test_a_priced_normalisation_takes_its_share_of_the_budget() -> None:
    method = {"head": "sgd", "batch_size": "full", "steps": 8, "normalize": "centred"}
    options = load_study(changed("methods.sgd", method)).methods["sgd"]
    centre, gradients = options.mechanisms(1000)
    costs = [item.count / item.noise_multiplier**2 for item in (centre, gradients)]
    assert costs[0] / sum(costs) == pytest.approx(0.04)
    assert gradients.noise_multiplier == 1
    ceiling = {"head": "nonprivate", "normalize": "centred"}
    with pytest.raises(ConfigError, match="normalize: centred takes a share of a privacy budget"):
        load_study(changed("methods.ceiling", ceiling))
    free = load_study(changed("methods.sgd.normalize", "l2")).methods["sgd"]
    assert [item.name for item in free.mechanisms(1000)] == ["gradients"]


def test_non_private_methods_train_once_also_where_inf_is_not_listed() -> None:
    study = load_study(changed("epsilons", [1]))
    assert study.job_epsilons() == ("1", "inf")
    assert study.job_methods("inf") == ("ceiling",)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("epsilonss", [1], ["epsilonss", "unknown key"]),
        ("methods.sgd.batchsize", 3, ["methods.sgd.batchsize", "unknown key"]),
        ("methods.sgd.head", "sdg", ["methods.sgd", "'sdg'", "prototypes, sgd, tuned"]),
        ("datasets.digits.source", "sklaern", ["datasets.digits", "'sklaern'", "parquet"]),
        ("backbones.pixels.family", "resnet", ["backbones.pixels", "'resnet'", "timm"]),
        ("methods.sgd.batch_size", -3, ["methods.sgd.batch_size", "-3"]),
        ("methods.sgd.learning_rate", 0, ["methods.sgd.learning_rate", "0"]),
        ("epsilons", [0.5, 0], ["epsilons", "0"]),
        ("epsilons", [-1], ["epsilons", "-1"]),
        ("epsilons", ["half"], ["epsilons", "'half'"]),
        ("epsilons", [True], ["epsilons", "True"]),
        ("epsilons", [10**400], ["epsilons", "positive number"]),
        ("epsilons", [1, 1.0], ["epsilons", "twice"]),
        ("epsilons", ["inf", float("inf")], ["epsilons", "inf", "twice"]),
        ("epsilons", "0.5", ["epsilons", "list"]),
        ("epsilons", 0.5, ["epsilons", "0.5", "write a list"]),
        ("epsilons", {"a": 1}, ["epsilons", "write a list"]),
        ("epsilons", [1, 0.009], ["epsilons", "0.009", "0.01 to 100", "larger"]),
        ("epsilons", [1, 101], ["epsilons", "101", "0.01 to 100", "inf for no privacy"]),
        ("delta", 1e-11, ["delta", "1e-11", "0.0000000001"]),
        ("datasets.digits.delta", 1e-11, ["datasets.digits.delta", "0.0000000001"]),
        ("methods.sgd.batch_size", "fulll", ["methods.sgd.batch_size: 'fulll'", "'full'"]),
        ("methods.sgd.batch_size", [1], ["methods.sgd.batch_size: [1]", "integer or 'full'"]),
        ("datasets.digits.source", ["x"], ["datasets.digits", "['x']", "parquet"]),
        ("methods.sgd.head", {"a": 1}, ["methods.sgd", "unknown head"]),
        ("study", "my study", ["study", "lower-case"]),
        ("results_dir", "my results", ["results_dir", "'my results'", "spaces"]),
        ("results_dir", "results/{study}", ["results_dir", "braces"]),
        ("data_dir", "data//x", ["data_dir", "'data//x'"]),
        ("data_dir", "~/data", ["data_dir", "~"]),
        ("data_dir", "", ["data_dir"]),
        ("tracking", {"uri": "postgresql://h/db"}, ["tracking.uri", "'postgresql'"]),
        ("tracking", {"uri": "results/mlruns"}, ["tracking.uri", "sqlite:///", "mlflow server"]),
        ("tracking", {"uri": "sqlite:///"}, ["tracking.uri", "sqlite:///path"]),
        ("tracking", {"uri": "http://"}, ["tracking.uri"]),
        ("tracking", {"uri": "https://me:geheim@h"}, ["tracking.uri", "MLFLOW_TRACKING_PASSWORD"]),
        ("epsilons", [], ["epsilons"]),
        ("epsilons", ..., ["epsilons", "missing"]),
        ("datasets", {}, ["datasets"]),
        ("seeds", 0, ["seeds", "0"]),
        ("delta", 1.5, ["delta", "1.5"]),
        ("accountant", "gdp", ["accountant", "'gdp'"]),
        ("methods.Bad-Name", {"head": "sgd"}, ["methods.Bad-Name", "lower-case"]),
        ("datasets.digits", "digits", ["datasets.digits"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named(path: str, value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(changed(path, value))
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    for word in words:
        assert word in message


def test_a_password_is_not_repeated() -> None:
    for uri in ("https://me:geheim@host", "postgresql://me:geheim@host/db", "http://me:geheim@["):
        with pytest.raises(ConfigError) as caught:
            load_study(STUDY | {"tracking": {"uri": uri}})
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["sqlite:///results/mlflow.db", "sqlite:////abs/a.db", "http://h:5000", "https://h/x"]
)
def test_stores_that_are_known(uri: str) -> None:
    study = STUDY | {"study": "mine", "tracking": {"uri": uri}}
    assert load_study(study).tracking.uri == uri


def test_on_a_server_a_study_has_a_name_of_its_own() -> None:
    unnamed = {key: value for key, value in STUDY.items() if key != "study"}
    load_study(unnamed)
    with pytest.raises(ConfigError, match="study: 'study' is every unnamed study's name"):
        load_study(unnamed | {"tracking": {"uri": "http://server:5000"}})


@pytest.mark.parametrize(
    ("written", "folder"),
    [
        ("results", "results"),
        ("results/", "results"),
        ("./a/b", "a/b"),
        ("/scratch/jürgen/x-1",) * 2,
    ],
)
def test_folders_are_written_one_way(written: str, folder: str) -> None:
    import re

    assert load_study(STUDY | {"results_dir": written}).results_dir == folder
    assert re.search(f"^{FOLDER_PATTERN}$", written)


def test_each_alternative_of_a_list_is_named_where_it_is() -> None:
    parquet = {"source": "parquet", "train": ["a", 1], "test": 5}
    with pytest.raises(ConfigError) as caught:
        load_study(changed("datasets.digits", parquet))
    lines = sorted(str(caught.value).splitlines())
    assert lines[0].startswith("config: datasets.digits.test: 5: write a valid string or")
    assert lines[1].startswith("config: datasets.digits.train.1: 1: input should be a valid string")
    assert len(lines) == 2


@pytest.mark.parametrize("uri", ["sqlite:///?x", "sqlite:////some/folder/", "http://h:99999/"])
def test_a_tracking_uri_that_cannot_work_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        load_study({**STUDY, "tracking": {"uri": uri}})


@pytest.mark.parametrize("channels", ["x", [1], 0, True])
def test_channels_that_are_no_number_are_refused(channels: Any) -> None:
    net = {"family": "timm", "model": "resnet50", "model_args": {"in_chans": channels}}
    with pytest.raises(ConfigError, match="in_chans"):
        load_study({**STUDY, "backbones": {"net": net}})


def test_all_mistakes_are_named_at_once() -> None:
    study = changed("seeds", 0) | {"delta": 2.0}
    with pytest.raises(ConfigError) as caught:
        load_study(study)
    assert {line.split(":")[1].strip() for line in str(caught.value).splitlines()} == {
        "seeds",
        "delta",
    }


def test_delta_above_one_over_n_is_refused_and_one_over_n_warned_of() -> None:
    counted = load_study(STUDY).datasets["digits"].count_rows()
    assert counted is not None
    rows = counted[0]
    assert check_study(load_study(STUDY)) == []
    with pytest.raises(ConfigError, match="above 1/n"):
        check_study(load_study(changed("delta", 1.01 / rows)))
    assert "1/n" in check_study(load_study(changed("delta", 1 / rows)))[0]
    own = changed("datasets.digits.delta", 0.1)
    with pytest.raises(ConfigError, match="datasets.digits"):
        check_study(load_study(own))


def test_a_batch_larger_than_the_dataset_is_refused_before_any_job() -> None:
    study = load_study(changed("methods.sgd.batch_size", 100_000))
    with pytest.raises(ConfigError, match="methods.sgd on datasets.digits"):
        check_study(study)


def test_more_shards_than_the_smaller_split_has_rows_are_refused() -> None:
    dataset = load_study(STUDY).datasets["digits"]
    counted = dataset.count_rows()
    assert counted is not None
    train, test = counted
    assert dataset.count_rows() == (train, test) == (1438, 359)
    assert check_study(load_study(STUDY | {"features": {"shards": test}})) == []
    with pytest.raises(ConfigError) as caught:
        check_study(load_study(STUDY | {"features": {"shards": test + 1}}))
    assert str(caught.value) == (
        "config: features.shards: 360 is above the 359 test rows of digits; write at most 359"
    )


def test_a_multi_label_dataset_is_refused_by_heads_of_one_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = load_study(STUDY)
    monkeypatch.setattr(type(study.datasets["digits"]), "multi_label", lambda _: True)
    monkeypatch.setattr(type(study.methods["ceiling"]), "multi_label", True)
    with pytest.raises(ConfigError) as caught:
        check_study(study)
    assert str(caught.value).startswith(
        "config: methods.sgd on datasets.digits: the dataset is multi-label and head sgd"
    )
    assert len(str(caught.value).splitlines()) == 1


def test_delta_does_not_decide_the_split_tables() -> None:
    own = load_study(changed("datasets.digits.delta", 1e-6)).datasets["digits"]
    params = load_study(STUDY).datasets["digits"].preparation_params()
    assert own.preparation_params() == params
    assert dataset_options(params).preparation_params() == params
    assert own.source_state() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- a\n- b\n", "no mapping"),
        ("seeds: 1\nseeds: 2\n", r"line 2: key 'seeds' stands twice, first in line 1"),
        ("methods:\n  sgd: {head: sgd}\n  b: {}\n  'sgd': {}\n", r"line 4: key 'sgd' .* line 2"),
        ("a: {b: 1, c: 2, b: 3}\n", r"line 1: key 'b' stands twice"),
        ("a:\n  - x: 1\n    x: 1\n", r"line 3: key 'x'"),
        ("a: [1\n", "not YAML"),
        ("a: 1\n---\na: 2\n", "not YAML"),
    ],
)
def test_a_file_that_yaml_readers_would_bend_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"study.yaml: .*{message}") as caught:
        check_yaml(path)
    assert "\n" not in str(caught.value)


def test_a_good_file_passes(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nlist: [{x: 1}, {x: 2}]\n")
    check_yaml(path)
    check_yaml(repository / "config.yaml")
    with pytest.raises(ConfigError, match="no.yaml: cannot be read"):
        check_yaml(tmp_path / "no.yaml")


def test_missing_files_are_all_named(tmp_path: Path) -> None:
    study = copy.deepcopy(STUDY)
    study["datasets"]["gone"] = {
        "source": "parquet",
        "train": str(tmp_path / "no.parquet"),
        "test": str(tmp_path / "no.parquet"),
    }
    study["backbones"]["net"] = {
        "family": "timm",
        "model": "mobilenetv2_100",
        "checkpoint": str(tmp_path / "no.safetensors"),
    }
    with pytest.raises(ConfigError) as caught:
        check_study(load_study(study))
    message = str(caught.value)
    assert "datasets.gone" in message
    assert "no.parquet" in message
    assert "backbones.net" in message
    assert "no.safetensors" in message


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_an_epsilon_token_is_stable_and_stands_for_its_number(value: float) -> None:
    token = epsilon_token(value)
    assert epsilon_token(token) == token
    assert epsilon_value(token) == pytest.approx(value, rel=1e-11)


def test_serialised_options_read_back_the_same() -> None:
    study = load_study(STUDY)
    for options, read in (
        (study.datasets["digits"], dataset_options),
        (study.backbones["pixels"], backbone_options),
        (study.methods["sgd"], method_options),
    ):
        values = json.loads(json.dumps(options.model_dump(mode="json")))
        assert read(values) == options


@pytest.mark.parametrize(
    ("block", "value", "where"),
    [
        ("papers", {"datasets": {"nowhere": "cifar10"}}, r"papers\.datasets: 'nowhere'"),
        ("papers", {"methods": ["sgd", "sgdd"]}, r"papers\.methods: 'sgdd'"),
        ("papers", {"base": "sgdd"}, r"papers\.base: 'sgdd'"),
        ("few_shot", {"backbones": ["clip"]}, r"few_shot\.backbones: 'clip'"),
        ("few_shot", {"shots": [1, 1]}, r"few_shot\.shots: 1 stands twice"),
        ("few_shot", {"shots": [0]}, r"few_shot\.shots"),
    ],
)
def test_blocks_that_name_other_parts_are_checked(block: str, value: Any, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        load_study(STUDY | {block: value})


def test_published_results_know_a_dataset_by_its_catalog_name_unless_told() -> None:
    own = {"mine": {"catalog": "cifar10"}, "other": {"catalog": "mnist"}, **STUDY["datasets"]}
    study = load_study(
        STUDY | {"datasets": own, "papers": {"datasets": {"other": "fashion_mnist"}}}
    )
    assert study.published_names() == {
        "mine": "cifar10", "other": "fashion_mnist", "digits": "digits",
    }  # fmt: skip


def test_few_shot_probes_are_of_backbones_that_read_text_unless_told() -> None:
    clip = {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}
    both = STUDY | {"backbones": {**STUDY["backbones"], "clip": clip}}
    assert load_study(both).few_shot_backbones() == ()
    assert load_study(both).text_backbones() == ("clip",)
    assert load_study(both | {"few_shot": {}}).few_shot_backbones() == ("clip",)
    told = load_study(both | {"few_shot": {"backbones": ["pixels"]}})
    assert told.few_shot_backbones() == ("pixels",)


def test_the_schema_in_the_repository_is_the_code_s(repository: Path) -> None:
    written = json.loads((repository / "workflow/schemas/study.schema.json").read_text())
    assert written == study_schema(), "run `make schema`"


def test_the_studies_in_the_repository_validate(repository: Path) -> None:
    import jsonschema

    schema = study_schema()
    files = [repository / "config.yaml", *sorted((repository / "config").glob("*.yaml"))]
    assert len(files) >= 2
    for file in files:
        values = yaml.safe_load(file.read_text())
        load_study(values)
        jsonschema.validate(values, schema)


def test_the_schema_refuses_what_the_code_refuses() -> None:
    import jsonschema

    schema = study_schema()
    jsonschema.validate(STUDY, schema)
    for path, value in (
        ("methods.sgd.batchsize", 3),
        ("methods.sgd.head", "sdg"),
        ("epsilons", [0]),
        ("epsilons", [0.001]),
        ("delta", 1e-12),
        ("results_dir", "a b"),
        ("tracking", {"uri": "postgresql://h/db"}),
        ("unknown", 1),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(path, value), schema)


def test_checking_a_study_imports_nothing_heavy(repository: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, yaml; from dpprobe.study.check import check_study;"
        "from dpprobe.study.load import load_study;"
        "check_study(load_study(yaml.safe_load(open('config.yaml'))));"
        "print([m for m in ('torch','numpy','pandas','pyarrow','sklearn','timm','mlflow') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_metric_of_a_dataset_fits_its_labels() -> None:
    def found(metric: str | None, classes: int | None, *, multi_label: bool = False) -> str:
        return headline_metric(metric, num_classes=classes, multi_label=multi_label)

    assert found(None, 2) == "accuracy"
    assert found(None, 14, multi_label=True) == "auc"
    assert found("auc", 2) == found("auc", 14, multi_label=True) == found("auc", None) == "auc"
    assert found("accuracy", 14, multi_label=True) == "accuracy"
    study = load_study(changed("datasets.digits.metric", "auc"))
    with pytest.raises(
        ConfigError, match=r"datasets\.digits: metric: auc with 10 classes .* write accuracy"
    ):
        check_study(study)
    with pytest.raises(ConfigError, match=r"datasets\.digits\.metric"):
        load_study(changed("datasets.digits.metric", "f1"))


def test_the_metric_does_not_decide_the_split_tables() -> None:
    own = load_study(changed("datasets.digits.metric", "accuracy")).datasets["digits"]
    assert own.preparation_params() == load_study(STUDY).datasets["digits"].preparation_params()


def test_random_crops_would_hide_near_duplicates() -> None:
    backbone = {"family": "timm", "model": "test_vit", "preprocessing": {"crop": "inception"}}
    seen = {"source": "sklearn", "split_seed": 1}
    study = STUDY | {"public_datasets": {"seen": seen}, "overlap": {"public": ["seen"]}}
    load_study(study)
    with pytest.raises(ConfigError, match="overlap: backbone random crops training images"):
        load_study(study | {"backbones": {"random": backbone}})


def test_public_datasets_must_fill_their_shards_too() -> None:
    seen = {"source": "sklearn", "test_fraction": 0.01}
    study = STUDY | {"public_datasets": {"seen": seen}, "features": {"shards": 30}}
    with pytest.raises(ConfigError, match="30 is above the 20 test rows of seen"):
        check_study(load_study(study))


def test_a_text_encoder_that_cannot_run_is_warned_of() -> None:
    siglip = {"family": "open_clip", "model": "ViT-B-16-SigLIP.webli"}
    clip = {"family": "open_clip", "model": "ViT-B-32-quickgelu.openai"}
    study = load_study(STUDY | {"backbones": {"siglip": siglip, "clip": clip}})
    assert [backbone.reads_text for backbone in study.backbones.values()] == [False, True]
    (warning,) = check_study(study)
    assert warning.startswith("backbones.siglip: ViT-B-16-SigLIP reads text through the package")


def test_sizes_that_can_be_counted_are_held_against_what_is_expected() -> None:
    own = load_study(changed("datasets.digits.expect", {"train": 1, "test": 2, "classes": 3}))
    with pytest.raises(ConfigError) as caught:
        check_study(own)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    rows = own.datasets["digits"].count_rows()
    assert rows is not None
    assert lines[0].startswith(
        f"config: datasets.digits: expect.train: 1, where there are {rows[0]} train rows; complete"
    )
    assert "where there are 10 classes" in lines[2]
    right = {"train": rows[0], "test": rows[1], "classes": 10}
    assert check_study(load_study(changed("datasets.digits.expect", right))) == []
    public = {"other": {"source": "sklearn", "name": "digits", "expect": {"classes": 3}}}
    with pytest.raises(ConfigError, match=r"public_datasets\.other: expect\.classes: 3"):
        check_study(load_study(STUDY | {"public_datasets": public}))


def test_tables_that_are_there_are_held_against_what_is_expected(tmp_path: Path) -> None:
    """Of a download only the tables tell; what they were made of must be the same."""
    files = [{"url": "http://h/x.zip", "sha256": "0" * 64}]
    layout = {"source": "imagefolder", "path": "x"}
    scans: dict[str, Any] = {"source": "url", "files": files, "layout": layout}
    sizes = {"train": 9_000, "test": 90}

    def load(**values: Any) -> Study:
        return load_study(
            STUDY | {"data_dir": str(tmp_path), "datasets": {"scans": scans | values}}
        )

    path = tmp_path / "scans/dataset.json"
    path.parent.mkdir()
    info = {
        "source": load().datasets["scans"].preparation_params(),
        "splits": {"train": {"rows": 9_000}, "test": {"rows": 80}},
        "class_names": ["a", "b"],
    }
    path.write_text(json.dumps(info))
    with pytest.raises(ConfigError) as caught:
        check_study(load(expect=sizes))
    assert str(caught.value) == (
        "config: datasets.scans: expect.test: 90, where there are 80 test rows; correct `expect`, "
        f"or delete {path}, so that the tables are made again"
    )
    # Of other options the tables are made again.
    other = load(expect=sizes, layout=layout | {"split_seed": 1})
    assert all("expect" not in line for line in check_study(other))
    path.unlink()
    check_study(load(expect=sizes))


@pytest.mark.parametrize("key", ["datasets", "public_datasets"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_source_in_the_place_of_its_split_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, linked: bool
) -> None:
    """Snakemake deletes what it is about to make: the user's only copy."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data/mine"
    folder.mkdir(parents=True)
    images = [{"bytes": b"", "path": None}] * 2
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), folder / "train.parquet")
    source = folder / "train.parquet"
    if linked:
        source = tmp_path / "elsewhere.parquet"
        source.symlink_to(folder / "train.parquet")
    dataset = {
        "source": "parquet", "train": str(source), "test": str(source), "class_names": ["a", "b"],
        "duplicates": "warn",
    }  # fmt: skip
    others = STUDY.get(key, {})
    study = load_study(STUDY | {key: {**others, "mine": dataset}})
    with pytest.raises(ConfigError, match=rf"{key}.mine: .*over this file; move it elsewhere"):
        check_study(study)
    assert (folder / "train.parquet").exists()
