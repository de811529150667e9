"""The networks and rows that a job of representation laws measures, read from a study's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dpprobe.analysis.block_features import Tap, Token, read_images, tap
from dpprobe.analysis.law_job import SPLITS, Rows, Subject, law_job
from dpprobe.analysis.law_record import Split
from dpprobe.artifacts import read_json
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.data.table import SplitTable
from dpprobe.devices import limit_threads, resolve_device
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.network import whole_network
from dpprobe.finetune.options import Options as FineTune
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.rows import Transform
from dpprobe.privacy.randomness import cell_seed, stream
from dpprobe.study.options import RepresentationLawOptions
from dpprobe.study.representation_law import tuning

NETWORK_FILE, RESULT_FILE = "network.safetensors", "result.json"


@dataclass(frozen=True, kw_only=True)
class TunedFiles:
    """The first seed's network of a cell: its folder has its weights and its record."""

    method: str
    epsilon: str
    folder: Path


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
    """Measures the laws of the frozen network of one (dataset, backbone) and of tuned ones.

    Args:
      tables: of both splits.
      folder: of all layers.
      methods: those of `tuned`, by name.
      seed: of the study.

    Raises:
      ConfigError: for a backbone whose blocks cannot be told apart.
      DataError: naming an image that cannot be read.
    """
    limit_threads(threads)
    place = resolve_device(device)
    # Without the features inside that the study may ask of the store: hooks of their own take them.
    loaded = loading.load(
        backbone.model_copy(update={"layers": (), "token": None}),
        runtime=Runtime(device="cpu", precision="float32"),
    )
    if loaded.graph is None:
        raise ConfigError(f"backbones.{backbone_name}: not a network; laws are of blocks")
    identity = {"use": "rows of laws", "dataset": dataset, "study_seed": seed}
    opened = {split: SplitTable(tables[split]) for split in SPLITS}
    rows = {
        split: _rows(opened[split], loaded, options.rows, seed=cell_seed(identity, 0))
        for split in SPLITS
    }
    classes = len(opened["train"].class_names)
    frozen = Subject(
        make=partial(_frozen, loaded, backbone_name, token=options.token, device=place)
    )
    subjects = [
        Subject(
            method=files.method,
            epsilon=files.epsilon,
            tuning=tuning(methods[files.method]),
            make=partial(
                _tuned, loaded, backbone_name, files, methods[files.method], classes=classes,
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
    )


def _rows(table: SplitTable, backbone: Backbone, most: int, *, seed: int) -> Rows:
    """Reads the images of at most `most` rows of a split, a seeded sample where it has more."""
    chosen = np.arange(table.rows)
    if table.rows > most:
        chosen = np.sort(stream(seed, table.split).permutation(table.rows)[:most])
    return Rows(images=read_images(table, backbone, chosen), labels=table.labels()[chosen])


def _frozen(
    backbone: Backbone, name: str, *, token: Token, device: str
) -> tuple[torch.nn.Module, Tap]:
    graph: Any = backbone.graph
    graph = graph.to(device).eval()
    return graph, tap(graph.model, blocks_of(graph.model, name), token=token)


def _tuned(
    backbone: Backbone,
    name: str,
    files: TunedFiles,
    method: MethodOptions,
    *,
    classes: int,
    token: Token,
    device: str,
) -> tuple[torch.nn.Module, Tap]:
    graph: Any = backbone.graph
    # The head has no part in the features of blocks, so neither has what normalises its rows.
    network = whole_network(
        backbone,
        trained_options(method, files.folder / RESULT_FILE),
        load_file(files.folder / NETWORK_FILE),
        classes=classes,
        device=device,
        transform=Transform(spec=method.normalize),
    ).eval()
    trunk = next(part for part in network.modules() if type(part) is type(graph.model))
    return network, tap(trunk, blocks_of(trunk, name), token=token)


def trained_options(method: MethodOptions, result: Path) -> FineTune:
    """Returns the options of a network: the base's where a head searches over them.

    What a search has chosen stands in the network's record.
    """
    options: Any = getattr(method, "base", method)
    chosen = read_json(result).get("chosen") or {}
    trained: FineTune = options.trial(chosen)
    return trained
