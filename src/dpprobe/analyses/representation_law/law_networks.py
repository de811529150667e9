"""Reads the networks and rows that a job of representation laws measures, from a study's files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from dpprobe.analyses.representation_law.block_features import read_images, tap_blocks
from dpprobe.analyses.representation_law.law_record import LawRecord, Split, law_path
from dpprobe.analyses.representation_law.measure import SPLITS, Rows, Subject, law_job
from dpprobe.analyses.representation_law.measured_networks import describe_tuning
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.artifacts import hash_value, sha256_file
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.network_forward import Graph, Tapped, Token
from dpprobe.backbones.options import BackboneOptions
from dpprobe.data.table import SplitTable
from dpprobe.devices import identity_device, limit_threads, resolve_device
from dpprobe.errors import ConfigError, DataError
from dpprobe.finetune.options import Options as FineTune
from dpprobe.finetune.prepared import frozen_model, network_graph
from dpprobe.finetune.tuned_network import split_state, whole_network
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.rows import Transform
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.results.network_record import (
    NETWORKS_FOLDER,
    RECORD_FILE,
    STATE_FILE,
    NetworkRecord,
    network_folder,
)
from dpprobe.study.network_methods import network_options
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True, kw_only=True)
class TunedFiles:
    """The files of a cell's network for the first seed: a folder with weights and record."""

    method: str
    epsilon: str
    folder: Path

    @classmethod
    def find_all(
        cls, results: Path, networks: Iterable[Sequence[str]], *, dataset: str, backbone: str
    ) -> list[TunedFiles]:
        return [
            cls(
                method=method,
                epsilon=epsilon,
                folder=network_folder(
                    results / NETWORKS_FOLDER, (dataset, backbone, method, epsilon), 0
                ),
            )
            for method, epsilon in networks
        ]


def measure_laws(
    tuned: Sequence[TunedFiles],
    tables: Mapping[Split, Path],
    folder: Path,
    *,
    dataset: str,
    backbone_name: str,
    backbone: BackboneOptions,
    methods: Mapping[str, MethodOptions],
    options: RepresentationLawOptions,
    seed: int,
    device: str,
    threads: int,
) -> None:
    """Measures the laws of the frozen and the tuned networks of one (dataset, backbone).

    Raises:
      ConfigError: if the backbone gives no access to its blocks.
      DataError: naming an image that cannot be read.
    """
    wanted = _hash_inputs(
        tuned, tables, dataset=dataset, backbone=(backbone_name, backbone), methods=methods,
        options=options, seed=seed, device=device,
    )  # fmt: skip
    if keep_laws(folder, dataset=dataset, backbone=backbone_name, wanted=wanted):
        return
    limit_threads(threads)
    place = resolve_device(device)
    # Inner features that the study may store are left out, because other hooks collect them.
    loaded = loading.load_backbone(
        backbone.model_copy(update={"layers": (), "token": None}),
        runtime=Runtime(device="cpu", precision="float32"),
    )
    if loaded.graph is None:
        raise ConfigError(
            f"backbones.{backbone_name}: not a network, but laws are measured at the blocks of a "
            "network; remove the backbone from this list"
        )
    identity = {"use": "rows of laws", "dataset": dataset, "study_seed": seed}
    opened = {split: SplitTable(tables[split]) for split in SPLITS}
    rows = {
        split: _read_images(opened[split], loaded, options.rows, seed=cell_seed(identity, 0))
        for split in SPLITS
    }
    classes = len(opened["train"].class_names)
    frozen = Subject(
        make=partial(_make_frozen_network, loaded, backbone_name, token=options.token, device=place)
    )
    subjects = [
        Subject(
            method=files.method,
            epsilon=files.epsilon,
            tuning=describe_tuning(methods[files.method]),
            make=partial(
                _make_tuned_network, loaded, backbone_name, files, methods[files.method],
                classes=classes,
                token=options.token, device=place,
            ),
        )
        for files in tuned
    ]  # fmt: skip
    law_job(
        [frozen, *subjects],
        rows,
        folder,
        dataset=dataset,
        backbone=backbone_name,
        shuffles=options.shuffles,
        seed=seed,
        device=place,
        fingerprint=wanted,
    )


def keep_laws(folder: Path, *, dataset: str, backbone: str, wanted: str) -> bool:
    """Returns True if the laws are up to date, and marks their record as seen by this run."""
    path = law_path(folder, dataset, backbone)
    try:
        record = LawRecord.read(path)
    except DataError:
        return False
    if record.fingerprint != wanted:
        return False
    logger.info(
        "laws of %s, %s: reused, because nothing that they depend on has changed", dataset, backbone
    )
    path.touch()
    return True


def _hash_inputs(
    tuned: Sequence[TunedFiles],
    tables: Mapping[Split, Path],
    *,
    dataset: str,
    backbone: tuple[str, BackboneOptions],
    methods: Mapping[str, MethodOptions],
    options: RepresentationLawOptions,
    seed: int,
    device: str,
) -> str:
    """Returns the fingerprint of everything that determines the laws."""
    name, backbone_options = backbone
    networks = [
        {
            "method": files.method,
            "epsilon": files.epsilon,
            "options": methods[files.method].identity_options(),
            "chosen": dict(NetworkRecord.read(files.folder / RECORD_FILE).chosen),
            "state": sha256_file(files.folder / STATE_FILE),
        }
        for files in tuned
    ]
    return hash_value(
        {
            "version": VERSIONS["representation_law"],
            "options": options.model_dump(mode="json"),
            "seed": seed,
            "device": identity_device(device),
            "dataset": dataset,
            "tables": {split: SplitTable(tables[split]).fingerprint for split in SPLITS},
            "backbone": {
                "name": name,
                "options": backbone_options.extraction_params(),
                "files": [sha256_file(Path(path)) for path in backbone_options.input_files()],
            },
            "networks": networks,
        }
    )


def _read_images(table: SplitTable, backbone: Backbone, most: int, *, seed: int) -> Rows:
    """Reads the images of a split, or of a seeded sample of `most` rows if it has more."""
    chosen = np.arange(table.rows)
    if table.rows > most:
        chosen = np.sort(open_stream(seed, table.split).permutation(table.rows)[:most])
    return Rows(images=read_images(table, backbone, chosen), labels=table.read_labels()[chosen])


def _make_frozen_network(backbone: Backbone, name: str, *, token: Token, device: str) -> Tapped:
    """Makes the frozen network in fine-tuning's form, with the tuned networks' arithmetic."""
    graph = network_graph(backbone)
    network = Graph(
        frozen_model(backbone),
        mean=graph.mean.flatten().tolist(),
        std=graph.std.flatten().tolist(),
        flip=graph.flip,
    )
    return tap_blocks(network.to(device).eval(), network.model, name, token=token)


def _make_tuned_network(
    backbone: Backbone,
    name: str,
    files: TunedFiles,
    method: MethodOptions,
    *,
    classes: int,
    token: Token,
    device: str,
) -> Tapped:
    # The features of blocks depend neither on the head nor on the normalisation before the head.
    network = whole_network(
        backbone,
        trained_options(method, NetworkRecord.read(files.folder / RECORD_FILE).chosen),
        split_state(load_file(files.folder / STATE_FILE))[0],
        classes=classes,
        device=device,
        transform=Transform(spec=NoNormalisation()),
    )
    return tap_blocks(network.eval(), network, name, token=token)


def trained_options(method: MethodOptions, chosen: Mapping[str, Any]) -> FineTune:
    """Returns a network's training options; `chosen` has the values that a search chose."""
    options = network_options(method)
    assert options is not None, "list_law_networks names methods that tune networks"
    return options.make_trial(chosen)
