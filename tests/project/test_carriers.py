"""Flower and NVFLARE transfer the files of sites, and write only into the exchange folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.promise_facts import promise_facts
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import read_info
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.training_set import TrainingSet
from dpprobe.release.bundle import read_bundle
from dpprobe.release.commands import open_release
from dpprobe.release.ledger.site_folder import site_folder
from dpprobe.release.make import ReleaseTask
from dpprobe.release.parts.sites.several_sites import make_site_key
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.site_exchange.agreement import name_public_key, offer_path
from dpprobe.site_exchange.messages import Secret, hash_totals, read_agreement, write_secret
from dpprobe.site_exchange.shared_sums import SharedSums, Sum, SumsMissing
from dpprobe.study.study_file import load_study
from tests.support.edited_bundles import failed
from tests.support.programs import run_program
from tests.support.script_modules import load_script
from tests.support.sources import write_table
from tests.unit.features.test_extraction import one_shard
from tests.unit.site_exchange.test_messages import open_exchange

NAMES, PATIENTS = ("east", "north", "south"), 80
UNI = {"family": "external", "model": "UNI2-h", "each_by_itself": True}


@pytest.fixture
def turns(repository: Path) -> ModuleType:
    return load_script(repository / "integrations/nvflare/dpprobe_nvflare/turns.py")


def test_only_messages_of_sites_are_carried(turns: ModuleType, tmp_path: Path) -> None:
    exchange = open_exchange(tmp_path, "east")
    exchange.folder.mkdir()
    names = {offer_path(exchange.folder, "east").name, exchange.message_path(12, "east").name}
    for name in (*names, "notes.txt", ".sums-1.east.safetensors.partial", "secret.json"):
        (exchange.folder / name).write_bytes(name.encode())
    read = turns.read_files(exchange.folder)
    assert set(read) == names
    assert set(turns.read_files(exchange.folder, without=names)) == set()
    turns.write_files(tmp_path / "other", read)
    assert {path.name for path in (tmp_path / "other").iterdir()} == names


def test_a_file_that_is_there_stays(turns: ModuleType, tmp_path: Path) -> None:
    turns.write_files(tmp_path, {"sums-1.east.safetensors": b"first"})
    turns.write_files(tmp_path, {"sums-1.east.safetensors": b"second"})
    assert (tmp_path / "sums-1.east.safetensors").read_bytes() == b"first"


@pytest.mark.parametrize(
    "name", ["../offer.east.json", "sums-1.a/../../b.safetensors", "secret.json"]
)
def test_no_other_name_is_written(turns: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a file of dpprobe's sites"):
        turns.write_files(tmp_path / "folder", {name: b"x"})
    assert not list((tmp_path / "folder").iterdir())


def test_a_turn_runs_the_command_of_the_site_and_answers_with_what_is_new(
    turns: ModuleType, tmp_path: Path
) -> None:
    program = tmp_path / "dpprobe"
    program.write_text('#!/bin/sh\necho "$@" > asked; echo x > m/offer.east.json; exit 3\n')
    program.chmod(0o700)
    site = {"command": str(program), "folder": str(tmp_path), "exchange": "m"}
    site |= {"study": "s.yaml", "release": "r"}
    other = {"offer.north.json": b"n"}
    assert turns.take_turn(site, "keys", other, other) == (3, {"offer.east.json": b"x\n"})
    assert (tmp_path / "asked").read_text() == "site keys r --configfile s.yaml\n"
    assert turns.read_files(tmp_path / "m").keys() == {"offer.east.json", "offer.north.json"}
    with pytest.raises(ValueError, match="a turn is keys or sums"):
        turns.take_turn(site, "combine", {}, ())


def test_the_server_stops_for_a_site_that_failed_and_for_sites_that_wait_for_each_other(
    turns: ModuleType,
) -> None:
    files = {"offer.east.json": b"1"}
    assert not turns.add_answers(
        files, {"east": (3, {"offer.east.json": b"2"}), "north": (0, {"s": b""})}
    )
    assert files == {"offer.east.json": b"1", "s": b""}
    assert turns.add_answers(files, {"east": (0, {}), "north": (0, {})})
    with pytest.raises(RuntimeError, match="site north: .* status 1"):
        turns.add_answers(files, {"east": (3, {}), "north": (1, {})})
    with pytest.raises(RuntimeError, match="still wait: north"):
        turns.add_answers(files, {"east": (0, {}), "north": (3, {})})


def extract_slides(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Writes slides as `extract_` of KatherLab/STAMP 01b5ac6c does, and extracts both splits.

    Each patient of the sites `names` has two slides. Returns the dataset's options.
    """
    (folder / "uni").mkdir(parents=True)
    lines = []
    for name, row, number in product(names, range(PATIENTS), range(2)):
        slide, label = f"{name}{row}-{number}", row % 2
        draw = np.random.default_rng([*slide.encode()])
        tiles = draw.normal(label, 2, size=(5 + number, 8))
        with h5py.File(folder / f"uni/{slide}.h5", "w") as file:
            file["coords"] = draw.uniform(0, 5000, size=(len(tiles), 2)).astype(np.float32)
            file["feats"] = tiles.astype(np.float16)
            file.attrs.update({"extractor": "uni2", "unit": "um", "feat_type": "tile"})
        lines.append({"FILENAME": slide, "PATIENT": f"{name}{row}", "MSI": ("no", "yes")[label]})
    write_table(folder / "slides.csv", lines)
    options: dict[str, Any] = {"source": "embeddings", "root": str(folder), "train": "uni"}
    options |= {"table": "slides.csv"}
    options |= {"id_column": "FILENAME", "unit_column": "PATIENT", "label_column": "MSI"}
    options |= {"class_names": ["no", "yes"], "pool": "mean", "split_by": "id"}
    made, tables = dataset_options(options), folder / "data/slides"
    prepare_dataset(made, tables)
    info = read_info(tables / "dataset.json")
    facts = replace(promise_facts(made), copies_across=info.duplicates_across_splits)
    for split, rows in (("train", info.train_rows), ("test", info.test_rows)):
        output = folder / "results/features/slides/uni" / split
        given: dict[str, Any] = {"backbone": UNI, "backbone_name": "uni", "shard": 0, "shards": 1}
        shard = one_shard(tables, output, split=split, **given)
        known: dict[str, Any] = {"dataset_fingerprint": info.fingerprint, "promise": facts}
        write_manifest([shard], output / "manifest.json", rows=rows, **known)
    return options


def open_site(folder: Path, members: dict[str, str]) -> ReleaseTask:
    """Writes the study of a site, with the folder's name as its name."""
    sites = {"name": folder.name, "members": members, "key": str(folder / "site.pem")}
    sites |= {"exchange": str(folder / "exchange"), "aggregator": "north"}
    asked = {"dataset": "slides", "backbone": "uni", "method": "squares", "epsilon": 2}
    values: dict[str, Any] = {
        "study": "swarm",
        "datasets": {"slides": extract_slides(folder, [folder.name])},
        "backbones": {"uni": UNI},
        "methods": {"squares": {"head": "least_squares", "normalize": "l2"}},
        "epsilons": [2],
        "delta": 1e-3,
        "releases": {"msi": {**asked, "allow_useless": True, "sites": sites}},
        "data_dir": str(folder / "data"),
        "results_dir": str(folder / "results"),
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(values))
    return open_release(load_study(values), "msi")


def share_sums(
    task: ReleaseTask, totals: Sequence[Sum] = (), secret: Secret | None = None
) -> SharedSums:
    """Returns the sums for a release's fit: exact, or with noise from an aggregator's secret."""
    agreement = read_agreement(site_folder(task.ledger.path.parent, "msi"))
    assert agreement is not None
    return SharedSums(
        totals,
        open_noise=partial((secret or Secret.draw()).open_noise, hash_totals(agreement, [])),
        share=lambda deviation: deviation if secret else 0.0,
        together=task.plan_release().method.running_sums or (),
    )


def list_sums(task: ReleaseTask, rows: TrainingSet, secret: Secret | None = None) -> Sequence[Sum]:
    shared, planned = share_sums(task, secret=secret), task.plan_release()
    with pytest.raises(SumsMissing) as missing:
        fit_heads(planned.method, rows, planned.plan, [0], shared=shared)
    return missing.value.sums


def read_rows(folder: Path, task: ReleaseTask) -> TrainingSet:
    store = FeatureStore(folder / "results/features/slides/uni/train/manifest.json")
    return replace(task.plan_release().inputs, store=store).read_rows(device="cpu", memory_mb=100)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs nvflare")
def test_a_job_in_the_simulator_of_nvflare_trains_the_bits_of_one_place(
    repository: Path, tmp_path: Path
) -> None:
    members = {name: name_public_key(make_site_key(tmp_path / name / "site.pem")) for name in NAMES}
    tasks = {name: open_site(tmp_path / name, members) for name in NAMES}
    aggregator, secret = tasks["north"], Secret.draw()
    write_secret(site_folder(aggregator.ledger.path.parent, "msi"), secret)

    local, program = tmp_path / "simulated/dpprobe/local", tmp_path / "dpprobe"
    local.mkdir(parents=True)
    (local / "resources.json").write_text('{"class_allow_list": ["dpprobe_nvflare."]}')
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpprobe "$@"\n')
    program.chmod(0o700)
    site = {"command": str(program), "study": "study.yaml", "release": "msi"}
    site["exchange"] = "exchange/msi"
    for name in NAMES:
        values = {**site, "folder": str(tmp_path / name)}
        (local / f"dpprobe-{name}.json").write_text(json.dumps(values))
    paths = (repository / "integrations/nvflare", repository / "src")
    run_program(
        [sys.executable, "-m", "dpprobe_nvflare.job", *NAMES, "--workspace", "simulated"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )

    bundles = [read_bundle(task.output) for task in tasks.values()]
    assert [failed(verify_bundle(each.folder)) for each in bundles] == [[], [], []]
    extract_slides(tmp_path / "pooled", NAMES)
    own, pooled = (read_rows(tmp_path / name, aggregator) for name in ("north", "pooled"))
    noisy, exact = list_sums(aggregator, own, secret), list_sums(aggregator, own)
    totals = [
        each.replace_numbers(each.numbers + after.numbers - before.numbers)
        for each, after, before in zip(list_sums(aggregator, pooled), noisy, exact, strict=True)
    ]
    known, planned = share_sums(aggregator, totals), aggregator.plan_release()
    head = fit_heads(planned.method, pooled, planned.plan, [0], shared=known)
    assert {each.weights.tobytes() for each in bundles} == {head.weights.tobytes()}
