"""Makes one small bundle of each kind of release, as the dpprobe that is imported makes it.

    python -m tests.support.make_stored_releases FOLDER [KIND ...]

writes `FOLDER/<kind>.zip` for every kind, or for the kinds that are named. A zip that is there
stays as it is, because `tests/stored/releases` only grows, and `FOLDER/SHA256SUMS` has the hashes
of all zips. `PYTHONPATH=OTHER/src` in front makes the bundles of another checkout, and a kind that
its dpprobe does not know is skipped.

Each zip has the folder of the bundle and those of its predecessors, the public files that
`dpprobe predict` needs, what it predicted (`predictions.csv`), and `about.json`, which names them.

Data are the digits of scikit-learn or numbers from a fixed seed. Noise and keys are drawn anew, so
no run repeats another's bytes. Nothing but the public files of the zip is kept.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml
from PIL import Image

Options = dict[str, Any]

ABOUT, PREDICTIONS, INPUT = "about.json", "predictions.csv", "input"
SUMS_FILE = "SHA256SUMS"
CHECKPOINT, PUBLIC_KEY = "checkpoint.safetensors", "key.pub.pem"

ROWS, CLASSES, DIMENSION = 1500, ("asthma", "copd", "healthy"), 8
STILL_WAITING = 3  # exit status of `dpprobe site sums` while it waits for other sites


@dataclass(frozen=True)
class StoredFiles:
    """The files to store for a kind of release.

    Attributes:
      bundle: the folder of the bundle.
      earlier: the folders of the bundles that this bundle replaces.
      inputs: public images or vectors to predict.
    """

    bundle: Path
    inputs: Sequence[Path]
    earlier: Sequence[Path] = ()
    checkpoint: Path | None = None
    public_key: Path | None = None


class Unknown(Exception):
    """Raised if the imported dpprobe cannot make a kind of release."""


# public and made-up data


def draw_vectors(
    seed: int, rows: int = ROWS, classes: int = len(CLASSES)
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Returns random vectors around one axis per class, and their classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    vectors = generator.normal(size=(rows, DIMENSION))
    vectors[np.arange(rows), labels] += 2.5
    return vectors.astype(np.float32), labels


def draw_digits(rows: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.images[:rows] * 255 / 16).astype(np.uint8), digits.target[:rows]


def save_images(folder: Path, images: npt.NDArray[np.uint8]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{row:03d}.png" for row in range(len(images))]
    for path, pixels in zip(paths, images, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def save_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))


def save_vectors(path: Path, vectors: npt.NDArray[np.float32]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, vectors)
    return path


def ask_images() -> list[Path]:
    """Writes six noisy digits to predict, which are not in the dataset."""
    images = draw_digits(6)[0].astype(np.int64)
    noise = np.random.default_rng(6).integers(0, 40, size=images.shape)
    return save_images(Path(INPUT), np.clip(images + noise, 0, 255).astype(np.uint8))


def ask_vectors() -> list[Path]:
    return [save_vectors(Path(INPUT, "vectors.npy"), draw_vectors(99, rows=8)[0])]


# datasets of a study; each writes its files below the working directory

DIGITS: Options = {"source": "sklearn", "name": "digits", "split_by": "id"}


def patients_dataset() -> Options:
    """Returns the options of a dataset with 800 digits as images of 400 patients."""
    images, labels = draw_digits(800)
    paths = save_images(Path("files/images"), images)
    save_table(
        Path("files/patients.csv"),
        {
            "path": [f"images/{path.name}" for path in paths],
            "kind": labels.tolist(),
            "who": [f"person {row // 2}" for row in range(len(paths))],
        },
    )
    return {
        "source": "csv",
        "root": "files",
        "train": "patients.csv",
        "path_column": "path",
        "label_column": "kind",
        "class_names": [str(digit) for digit in range(10)],
        "unit_column": "who",
        "split_by": "id",
    }


def vectors_dataset(
    seed: int = 0, rows: int = ROWS, classes: Sequence[str] = CLASSES, called: str = "vectors"
) -> Options:
    vectors, labels = draw_vectors(seed, rows, len(classes))
    save_vectors(Path(f"files/{called}.npy"), vectors)
    save_table(
        Path(f"files/{called}.csv"),
        {
            "name": [f"{called} {row}" for row in range(rows)],
            "kind": [classes[label] for label in labels],
        },
    )
    return {
        "source": "embeddings",
        "train": f"files/{called}.npy",
        "table": f"files/{called}.csv",
        "id_column": "name",
        "label_column": "kind",
        "class_names": list(classes),
        "split_by": "id",
        "test_fraction": 0.3,
    }


def labels_dataset() -> Options:
    """Returns the options of a dataset of vectors with none, one or both of two labels."""
    generator = np.random.default_rng(3)
    marks = generator.integers(2, size=(ROWS, 2))
    vectors = generator.normal(size=(ROWS, DIMENSION))
    vectors[:, :2] += 2.0 * marks
    save_vectors(Path("files/labels.npy"), vectors.astype(np.float32))
    columns = {"oedema": marks[:, 0].tolist(), "effusion": marks[:, 1].tolist()}
    save_table(Path("files/labels.csv"), columns)
    return {
        "source": "embeddings",
        "train": "files/labels.npy",
        "table": "files/labels.csv",
        "label_columns": list(columns),
        "split_by": "id",
        "test_fraction": 0.3,
    }


WORDS = {
    "asthma": ("wheeze", "inhaler", "night"),
    "copd": ("smoker", "sputum", "oxygen"),
    "healthy": ("run", "clear", "check-up"),
}


def write_texts(seed: int, rows: int) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Writes short notes; returns vectors of 16 numbers, hashed from their words, and labels."""
    from sklearn.feature_extraction.text import HashingVectorizer

    generator = np.random.default_rng(seed)
    kinds = [CLASSES[number] for number in generator.integers(len(CLASSES), size=rows)]
    notes = [
        f"{' '.join(generator.choice(WORDS[kind], 4))} note {row}" for row, kind in enumerate(kinds)
    ]
    hashed = HashingVectorizer(n_features=16, alternate_sign=False).transform(notes)
    return hashed.toarray().astype(np.float32), kinds


def texts_dataset() -> Options:
    vectors, kinds = write_texts(4, ROWS)
    save_vectors(Path("files/notes.npy"), vectors)
    save_table(Path("files/notes.csv"), {"diagnosis": kinds})
    return {
        "source": "embeddings",
        "train": "files/notes.npy",
        "table": "files/notes.csv",
        "label_column": "diagnosis",
        "class_names": list(CLASSES),
        "split_by": "id",
        "duplicates": "warn",
    }


def ask_texts() -> list[Path]:
    return [save_vectors(Path(INPUT, "notes.npy"), write_texts(98, 8)[0])]


# studies

PIXELS: Options = {"family": "pixels", "size": 8}
EXTERNAL: Options = {
    "family": "external",
    "model": "made-up vectors",
    "version": "1",
    "each_by_itself": True,
}
HASHING: Options = {
    "family": "external",
    "model": "HashingVectorizer",
    "pretrained": False,
    "each_by_itself": True,
}
SCATTERING: Options = {"family": "scattering", "size": 8, "J": 2, "L": 2}
COVARIANCE: Options = {"head": "feature_covariance", "normalize": "l2", "steps": 2}
SUMS: Options = {"head": "least_squares", "normalize": "l2"}
PROTOTYPES: Options = {"head": "prototypes", "normalize": "l2"}
AUTO: Options = {"head": "auto"}
CARD = {"license": "cc-by-4.0", "intended_use": "Tests.", "limits": "Not a medical device."}


@dataclass(frozen=True, kw_only=True)
class StudyKind:
    """A kind of release from a study: one release, or several that replace each other.

    Attributes:
      dataset: returns the dataset's options, and writes the files that they name.
      changes: further options of the dataset.
      release: options of each release.
      chain: further options of each release, in order; all but the first replace the release
        before them.
      of_cohorts: True if each release of the chain has its own dataset.
    """

    dataset: Callable[..., Options] = vectors_dataset
    changes: Options = field(default_factory=dict)
    backbone: Options = field(default_factory=lambda: EXTERNAL)
    method: Options = field(default_factory=lambda: COVARIANCE)
    release: Options = field(default_factory=dict)
    chain: Mapping[str, Options] = field(default_factory=lambda: {"clinic_v1": {}})
    of_cohorts: bool = False
    asked: Callable[[], list[Path]] = ask_vectors

    def write_study(self) -> Options:
        datasets, releases = {}, {}
        before = None
        for number, (name, options) in enumerate(self.chain.items()):
            dataset = f"data_{number}" if self.of_cohorts else "data"
            if dataset not in datasets:
                more = {"seed": number, "called": dataset} if self.of_cohorts else {}
                datasets[dataset] = self.dataset(**more) | self.changes
            releases[name] = release_options(dataset, **self.release, **options)
            if before:
                releases[name]["predecessor"] = before
            before = name
        return make_study(datasets, self.backbone, self.method, releases)

    def __call__(self) -> StoredFiles:
        values = self.write_study()
        bundles = [make_release(values, name) for name in self.chain]
        return StoredFiles(bundles[-1], self.asked(), bundles[:-1])


def release_options(dataset: str, **options: Any) -> Options:
    return {
        "dataset": dataset,
        "backbone": "backbone",
        "method": "method",
        "epsilon": 1,
        "allow_useless": True,
        **options,
    }


def make_study(
    datasets: Options, backbone: Options, method: Options, releases: Options, **options: Any
) -> Options:
    return {
        "study": "stored",
        "datasets": datasets,
        "backbones": {"backbone": backbone},
        "methods": {"method": method},
        "epsilons": [1],
        "seeds": 1,
        "delta": 1e-5,
        "device": "cpu",
        "features": {"shards": 1},
        "releases": releases,
        **options,
    }


def make_release(values: Options, name: str) -> Path:
    """Makes a release of a study from features that this process extracts."""
    study = read_study(values)
    release = study.releases[name]
    make_features(study, release.dataset, release.backbone)
    task = open_release(study, name)
    task.run()
    return Path(task.output)


def read_study(values: Options) -> Any:
    """Reads a study; raises Unknown if it has keys or values that this dpprobe lacks."""
    from dpprobe.errors import ConfigError
    from dpprobe.study.study_file import load_study

    try:
        return load_study(values)
    except ConfigError as error:
        raise Unknown(str(error)) from error


def open_release(study: Any, name: str) -> Any:
    """Opens a release, also in versions without a function for that."""
    from dpprobe.release import commands

    if opened := getattr(commands, "open_release", None):
        return opened(study, name)
    from dpprobe.release.make import ReleaseTask

    release, files = study.releases[name], study_files(study)
    train, test = (
        Path(files.locate_manifest(release.dataset, release.backbone, split))
        for split in ("train", "test")
    )
    results = Path(study.results_dir)
    return ReleaseTask(
        study=study,
        name=name,
        train=train,
        test=test,
        output=results / "releases" / name,
        cache=results / "calibration",
    )


def study_files(study: Any) -> Any:
    from dpprobe.results.study_files import StudyFiles

    return StudyFiles(study, results=study.results_dir)


def make_features(study: Any, dataset: str, backbone: str) -> None:
    """Writes split tables and features like the jobs of a study, but in this process."""
    from dpprobe.data.dataset_preparation import prepare_dataset
    from dpprobe.data.table import read_info
    from dpprobe.features.extraction import extract_shard

    folder, files = Path(study.data_dir, dataset), study_files(study)
    if members := getattr(study.backbones[backbone], "of", ()):
        join_features(study, dataset, backbone, members)
        return
    if not (folder / "dataset.json").exists():
        prepare_dataset(study.datasets[dataset], folder)
    described = read_info(folder / "dataset.json")
    for split, rows in (("train", described.train_rows), ("test", described.test_rows)):
        manifest = Path(files.locate_manifest(dataset, backbone, split))
        if manifest.exists():
            continue
        shard = Path(files.list_shards(dataset, backbone, split)[0])
        shard.parent.mkdir(parents=True)
        extract_shard(
            table=folder / f"{split}.parquet",
            info=folder / "dataset.json",
            backbone=study.backbones[backbone],
            backbone_name=backbone,
            split=split,
            shard=0,
            shards=1,
            output=shard,
            batch_size=study.features.batch_size,
            dtype=study.features.dtype,
            device="cpu",
            precision=study.features.precision,
        )
        write_manifest(study, dataset, described, shard, manifest, rows)


def join_features(study: Any, dataset: str, backbone: str, members: Sequence[str]) -> None:
    from dpprobe.features.joined_manifest import write_joined_manifest

    for member in members:
        make_features(study, dataset, member)
    files = study_files(study)
    for split in ("train", "test"):
        paths = [Path(files.locate_manifest(dataset, member, split)) for member in members]
        joined = Path(files.locate_manifest(dataset, backbone, split))
        joined.parent.mkdir(parents=True)
        options = study.backbones[backbone]
        write_joined_manifest(paths, joined, backbone=backbone, options=options)


def write_manifest(
    study: Any, dataset: str, described: Any, shard: Path, manifest: Path, rows: int
) -> None:
    from dpprobe.data.promise_facts import promise_facts
    from dpprobe.features import shard_manifest

    first = getattr(described, "train_copies", None) or getattr(described, "copies", None)
    more: Options = {"copies": first if shard.parent.name == "train" else None}
    if "promise" in inspect.signature(shard_manifest.write_manifest).parameters:
        more["promise"] = promise_facts(study.datasets[dataset])
    shard_manifest.write_manifest(
        [shard], manifest, rows=rows, dataset_fingerprint=described.fingerprint, **more
    )


# commands


def run_dpprobe(*words: object, accept: Sequence[int] = (0,)) -> int:
    """Runs a command of dpprobe in this process; returns its exit status."""
    from dpprobe import __main__ as program

    said, before = StringIO(), sys.argv
    sys.argv = ["dpprobe", *map(str, words)]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            program.main()
        status: object = 0
    except SystemExit as ended:
        status = ended.code or 0
    finally:
        sys.argv = before
    if status not in accept:
        raise RuntimeError(f"dpprobe {' '.join(map(str, words))}: {status}\n{said.getvalue()}")
    assert isinstance(status, int)
    return status


def run_jobs(*targets: str) -> None:
    """Makes files of the study in this folder with Snakemake."""
    words = [sys.executable, "-m", "dpprobe", "run", *targets, "--configfile", "study.yaml"]
    words += ["--cores", "1", "--profile", "none"]
    root = Path(sys.modules["dpprobe"].__path__[0]).parent
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-4000:])


# kinds that need more than one release of a study


def make_network() -> StoredFiles:
    """Makes a head on a tiny network whose weights are in a file."""
    import timm
    import torch
    from safetensors.torch import save_file

    size: Options = {"embed_dim": 24, "num_heads": 2, "depth": 1, "img_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    network = timm.create_model("test_vit", pretrained=False, num_classes=0, **size)
    save_file(network.state_dict(), CHECKPOINT)
    del size["img_size"]
    made = StudyKind(
        dataset=lambda: DIGITS,
        backbone={
            "family": "timm",
            "model": "test_vit",
            "checkpoint": CHECKPOINT,
            "model_args": size,
            "preprocessing": {"size": 32},
        },
        asked=ask_images,
    )()
    return StoredFiles(made.bundle, made.inputs, checkpoint=Path(CHECKPOINT))


def make_joined() -> StoredFiles:
    """Makes a head on the concatenated features of two backbones."""
    releases = {"clinic_v1": release_options("data")}
    joined = {"family": "joined", "of": ["squares", "wavelets"]}
    values = make_study({"data": DIGITS}, joined, COVARIANCE, releases)
    values["backbones"] |= {"squares": PIXELS, "wavelets": SCATTERING}
    return StoredFiles(make_release(values, "clinic_v1"), ask_images())


def public_vectors_dataset() -> Options:
    save_vectors(Path("files/public.npy"), draw_vectors(77, rows=90)[0])
    return vectors_dataset()


def make_signed() -> StoredFiles:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = write_key(Path("key.pem")).public_key()
    named = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    Path(PUBLIC_KEY).write_bytes(named)
    made = StudyKind(release={"sign_key": "key.pem"})()
    return StoredFiles(made.bundle, made.inputs, public_key=Path(PUBLIC_KEY))


def write_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return key


def make_sites(**more: Any) -> StoredFiles:
    """Runs three sites, each with its own rows and study, in turn until all have the bundle."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    members = {}
    for name in ("east", "north", "south"):
        public = write_key(Path(name, "site.pem")).public_key()
        members[name] = public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    for number, name in enumerate(members):
        sites = {"name": name, "members": members, "key": f"{name}/site.pem"}
        release = release_options(
            "data",
            evaluate={"epsilon": 1},
            sites=sites | {"exchange": "exchange", **more},
        )
        dataset = vectors_dataset(number, 400 + 100 * number, called=f"of_{name}")
        values = make_study({"data": dataset}, EXTERNAL, COVARIANCE, {"chest": release})
        values |= {"data_dir": f"{name}/data", "results_dir": f"{name}/results"}
        make_features(read_study(values), "data", "backbone")
        Path(f"{name}.yaml").write_text(yaml.safe_dump(values))
    for name in members:
        run_dpprobe("site", "keys", "chest", "--configfile", f"{name}.yaml")
    waiting = [*members]
    for _ in range(40):
        waiting = [name for name in waiting if send_sums(name) == STILL_WAITING]
        if not waiting:
            return StoredFiles(Path("east/results/releases/chest"), ask_vectors())
    raise RuntimeError(f"still waiting: {waiting}")


def send_sums(name: str) -> int:
    study = f"{name}.yaml"
    return run_dpprobe("site", "sums", "chest", "--configfile", study, accept=(0, STILL_WAITING))


def fit_rows(unit: Literal["row", "group"]) -> StoredFiles:
    """Makes a bundle from a head that a Python program fitted on its own rows."""
    import dpprobe

    rows, labels = draw_vectors(5)
    names = np.array(CLASSES)[labels]
    people = [f"person {row // 3}" for row in range(len(rows))]
    head = dpprobe.PrivateClassifier(
        epsilon=1.0,
        head=COVARIANCE,
        classes=list(CLASSES),
        unit=unit,
        budget=dpprobe.Budget(max_epsilon=1.0, delta=1e-5),
    )
    head.fit(rows, names, groups=people if unit == "group" else None)
    head.save_bundle(
        "rows_v1", dataset="rows", model="made-up vectors", each_by_itself=True, pretrained=True
    )
    return StoredFiles(Path("rows_v1"), ask_vectors())


def make_choice() -> StoredFiles:
    """Makes a release of a study with three more cells, which the chooser may have compared."""
    release = {"clinic_v1": release_options("data", allow_useless=False)}
    values = make_study({"data": vectors_dataset()}, EXTERNAL, COVARIANCE, release, epsilons=[1, 2])
    values["methods"]["other"] = PROTOTYPES
    return StoredFiles(make_release(values, "clinic_v1"), ask_vectors())


def make_audited() -> StoredFiles:
    """Makes a release after an audit of its method and noise, with Snakemake's jobs."""
    values = make_study(
        {"data": vectors_dataset()},
        EXTERNAL,
        COVARIANCE,
        {"clinic_v1": release_options("data")},
        audit={"methods": ["method"], "runs": 40, "controls": False},
    )
    read_study(values)
    Path("study.yaml").write_text(yaml.safe_dump(values))
    bundle = Path("results/releases/clinic_v1")
    run_jobs(f"{bundle}/bundle.json")
    return StoredFiles(bundle, ask_vectors())


TESTED = {"evaluate": {"epsilon": 1}, "calibrate": {"epsilon": 1}, "monitor": {"epsilon": 1}}
CHAIN: dict[str, Options] = {"clinic_v1": {}, "clinic_v2": {}}
MONTHS: dict[str, Options] = {
    "clinic_10": {"cohort": "2026-10"},
    "clinic_11": {"cohort": "2026-11"},
}

KINDS: dict[str, Callable[[], StoredFiles]] = {
    "images": StudyKind(
        dataset=lambda: DIGITS, backbone=PIXELS, release={"card": CARD}, asked=ask_images
    ),
    "scattering": StudyKind(dataset=lambda: DIGITS, backbone=SCATTERING, asked=ask_images),
    "network": make_network,
    "subsample": StudyKind(
        dataset=lambda: DIGITS,
        changes={"subsample": {"fraction": 0.5, "seed": 3}},
        backbone=PIXELS,
        asked=ask_images,
    ),
    "patients": StudyKind(dataset=patients_dataset, backbone=PIXELS, asked=ask_images),
    "patients_price": StudyKind(
        dataset=patients_dataset,
        changes={"unit": "image", "max_images_per_patient": 2},
        backbone=PIXELS,
        asked=ask_images,
    ),
    "vectors": StudyKind(),
    "texts": StudyKind(dataset=texts_dataset, backbone=HASHING, asked=ask_texts),
    "rows": lambda: fit_rows("row"),
    "groups": lambda: fit_rows("group"),
    "accuracy": StudyKind(release={"evaluate": {"epsilon": 1}}),
    "macro_accuracy": StudyKind(release={"evaluate": {"epsilon": 1, "metric": "macro_accuracy"}}),
    "auc": StudyKind(
        dataset=lambda: vectors_dataset(classes=CLASSES[:2]),
        release={"evaluate": {"epsilon": 1, "metric": "auc"}, "calibrate": {}},
    ),
    "calibration": StudyKind(release={"calibrate": {"epsilon": 1}}),
    "monitor": StudyKind(release={"monitor": {"epsilon": 1}}),
    "tested": StudyKind(release=TESTED),
    "labels": StudyKind(
        dataset=labels_dataset,
        method=AUTO,
        release={"evaluate": {"epsilon": 2, "metric": "auc"}},
    ),
    "auto": StudyKind(method=AUTO),
    "balanced": StudyKind(method=AUTO | {"balanced": True}),
    "priors": StudyKind(method=COVARIANCE | {"class_priors": "released"}),
    "public": StudyKind(
        dataset=public_vectors_dataset,
        method={
            "head": "momentum",
            "engine": "exact",
            "normalize": {"kind": "centred", "public": "files/public.npy"},
            "class_priors": "released",
            "offset_share": 0.1,
        },
    ),
    "joined": make_joined,
    "sums": StudyKind(method={"head": "least_squares"}),
    "batches": StudyKind(method={"head": "sgd", "engine": "exact", "batch_size": 60, "steps": 4}),
    "tuned": StudyKind(
        method={
            "head": "tuned",
            "base": PROTOTYPES,
            "search": {"max_row_norm": [0.5, 1.0]},
            "trials": 3,
        }
    ),
    "risk": StudyKind(release={"epsilon": {"advantage": 0.2}}),
    "successor": StudyKind(release={"evaluate": {"epsilon": 1}}, chain=CHAIN),
    "cohort": StudyKind(method=SUMS, chain=MONTHS, of_cohorts=True),
    "horizon": StudyKind(method=SUMS, release={"horizon": 3}, chain=MONTHS, of_cohorts=True),
    "sites": make_sites,
    "aggregator": lambda: make_sites(aggregator="north"),
    "signed": make_signed,
    "choice": make_choice,
    "audit": make_audited,
}


# zips


def pack(kind: str, made: StoredFiles, target: Path) -> None:
    """Copies the files of a kind into a new folder, predicts there, and writes the zip."""
    from dpprobe.code_version import code_version

    folder = Path("packed")
    shutil.rmtree(folder, ignore_errors=True)
    for bundle in (made.bundle, *made.earlier):
        shutil.copytree(bundle, folder / bundle.name)
    for file in (*made.inputs, made.checkpoint, made.public_key):
        if file:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file)
    about = {
        "kind": kind,
        "dpprobe": code_version(),
        "bundle": made.bundle.name,
        "predecessors": [each.name for each in made.earlier],
        "inputs": [path.as_posix() for path in made.inputs],
        "checkpoint": made.checkpoint and made.checkpoint.name,
        "public_key": made.public_key and made.public_key.name,
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    with chdir(folder):
        weights = ["--checkpoint", made.checkpoint.name] if made.checkpoint else []
        options = ["--output", PREDICTIONS, "--device", "cpu", *weights]
        run_dpprobe("predict", made.bundle.name, *made.inputs, *options)
    refuse_paths(folder)
    write_zip(folder, target)


def refuse_paths(folder: Path) -> None:
    """Raises RuntimeError if a file contains the path of a folder on this machine."""
    here = [str(Path.cwd()), str(Path.home()) + "/", tempfile.gettempdir()]
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        named = [place for place in here if place.encode() in content]
        if named:
            raise RuntimeError(f"{path}: contains {named[0]}")


def write_zip(folder: Path, target: Path) -> None:
    """Writes a folder's files in order of their names, without times and owners."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as file:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            named = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            named.external_attr = 0o644 << 16
            file.writestr(named, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    part.rename(target)


def make_kind(kind: str, target: Path) -> bool:
    """Makes the zip of a kind and prints a line about it; returns False if it failed."""
    if target.exists():
        print(f"{kind:16} kept", flush=True)
        return True
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            pack(kind, KINDS[kind](), target)
        told = f"made   {target.stat().st_size:7,} bytes"
    except Unknown as error:
        told = f"skipped: this dpprobe has no such release: {first_line(error)}"
    except Exception as error:
        traceback.print_exc()
        told = f"FAILED {type(error).__name__}: {first_line(error)}"
    print(f"{kind:16} {time.monotonic() - started:6.1f} s  {told}", flush=True)
    return not told.startswith("FAILED")


def write_sums(folder: Path) -> None:
    """Writes the hashes of all zips in the folder, for `sha256sum --check`."""
    zips = sorted(folder.glob("*.zip"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in zips]
    (folder / SUMS_FILE).write_text("".join(lines))


def first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:160]


def main(words: Sequence[str] | None = None) -> int:
    """Makes all kinds, or those in `words`; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    arguments = parser.parse_args(words)
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    folder = arguments.folder.absolute()
    made = [make_kind(kind, folder / f"{kind}.zip") for kind in arguments.kinds or KINDS]
    write_sums(folder)
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
