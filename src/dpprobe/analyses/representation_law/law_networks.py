"""Reads a study's networks and images for the job of representation laws."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dpprobe.analyses.representation_law import describe_tuning
from dpprobe.analyses.representation_law.law_record import (
    LAW_FILE,
    LAYERS,
    LawRecord,
    Split,
    law_path,
)
from dpprobe.analyses.representation_law.measure import SPLITS, Rows, Subject, law_job, tap_blocks
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.network_forward import Graph, Tapped
from dpprobe.backbones.options import BackboneOptions
from dpprobe.data.table import SplitTable, decode_image
from dpprobe.devices import identity_device, limit_threads, resolve_device
from dpprobe.errors import ConfigError, DataError
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.result_store import locate_stored, publish_files
from dpprobe.finetune.fine_tuned_network import split_state, whole_network
from dpprobe.finetune.options import Options as FineTune
from dpprobe.finetune.trained_parameters import frozen_model, network_graph
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.transform import Transform
from dpprobe.json_values import hash_value
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
class LawTask:
    """The networks of one (dataset, backbone), and the rows on which their laws are measured.

    Attributes:
      networks: the (method, epsilon) of cells; the tuned network of the first seed is measured.
      tables: the paths of the tables of images, by split.
    """

    networks: Sequence[Sequence[str]]
    results: Path
    tables: Mapping[Split, Path]
    dataset: str
    backbone_name: str
    backbone: BackboneOptions
    methods: Mapping[str, MethodOptions]
    options: RepresentationLawOptions
    seed: int
    device: str

    def measure_law(self, *, threads: int) -> None:
        """Measures the laws of the frozen and fine-tuned networks, unless they are up to date.

        Raises:
          ConfigError: if the backbone gives no access to its blocks.
          DataError: if an image cannot be read.
        """
        fingerprint = self.hash_inputs()
        stored = locate_stored(self.results, fingerprint) / LAW_FILE
        if not self._is_stored(stored, fingerprint):
            self._measure_networks(stored, fingerprint, threads=threads)
        published = law_path(self.results / LAYERS, self.dataset, self.backbone_name)
        publish_files(stored.parent, published.parent, [LAW_FILE])

    def _measure_networks(self, stored: Path, fingerprint: str, *, threads: int) -> None:
        limit_threads(threads)
        # The options `layers` and `token` are cleared, because `tap_blocks` adds its own hooks.
        loaded = loading.load_backbone(
            self.backbone.model_copy(update={"layers": (), "token": None}),
            runtime=Runtime(device="cpu", precision="float32"),
        )
        if loaded.graph is None:
            raise ConfigError(
                f"backbones.{self.backbone_name}: not a network, but laws are measured at the "
                "blocks of a network; remove the backbone from this list"
            )
        tables = {split: SplitTable(self.tables[split]) for split in SPLITS}
        classes, place = len(tables["train"].class_names), resolve_device(self.device)
        subjects = [Subject(make=partial(self._make_frozen_network, loaded, place))]
        subjects += [
            Subject(
                method=method,
                epsilon=epsilon,
                tuning=describe_tuning(self.methods[method]),
                make=partial(
                    self._make_tuned_network, loaded, place, method, epsilon, classes=classes
                ),
            )
            for method, epsilon in self.networks
        ]
        law_job(
            subjects,
            {split: self.read_rows(tables[split], loaded) for split in SPLITS},
            stored,
            dataset=self.dataset,
            backbone=self.backbone_name,
            shuffles=self.options.shuffles,
            seed=self.seed,
            device=place,
            fingerprint=fingerprint,
        )

    def _is_stored(self, stored: Path, fingerprint: str) -> bool:
        """Returns True if the store has the record of the laws."""
        try:
            if LawRecord.read(stored).fingerprint != fingerprint:
                return False
        except DataError:
            return False
        logger.info(
            "laws of %s, %s: reused, because no input has changed",
            self.dataset,
            self.backbone_name,
        )
        return True

    def _folder_of(self, method: str, epsilon: str) -> Path:
        cell = (self.dataset, self.backbone_name, method, epsilon)
        return network_folder(self.results / NETWORKS_FOLDER, cell, 0)

    def _read_chosen(self, method: str, epsilon: str) -> dict[str, Any]:
        """Returns the options that a search chose for a network."""
        return dict(NetworkRecord.read(self._folder_of(method, epsilon) / RECORD_FILE).chosen)

    def hash_inputs(self) -> str:
        """Hashes everything that determines the results."""
        networks = [
            {
                "method": method,
                "epsilon": epsilon,
                "options": self.methods[method].identity_options(),
                "chosen": self._read_chosen(method, epsilon),
                "state": sha256_file(self._folder_of(method, epsilon) / STATE_FILE),
            }
            for method, epsilon in self.networks
        ]
        return hash_value(
            {
                "version": VERSIONS["representation_law"],
                "options": self.options.model_dump(mode="json"),
                "seed": self.seed,
                "device": identity_device(self.device),
                "dataset": self.dataset,
                "tables": {split: SplitTable(self.tables[split]).fingerprint for split in SPLITS},
                "backbone": {
                    "name": self.backbone_name,
                    "options": self.backbone.extraction_params(),
                    "files": [sha256_file(Path(path)) for path in self.backbone.input_files()],
                },
                "networks": networks,
            }
        )

    def read_rows(self, table: SplitTable, backbone: Backbone) -> Rows:
        """Reads the images of a split; of more than `rows` images, a seeded random sample.

        Training examples are preprocessed like test examples, without random crops.
        """
        identity = {"use": "rows of laws", "dataset": self.dataset, "study_seed": self.seed}
        chosen = np.setdiff1d(np.arange(table.rows), table.nulls)
        if len(chosen) > self.options.rows:
            stream = open_stream(cell_seed(identity, 0), table.split)
            chosen = np.sort(stream.permutation(chosen)[: self.options.rows])
        wanted = set(chosen.tolist())
        images = [
            backbone.transform(decode_image(image, split=table.split, scaled=backbone.scaled))
            for image in table.read_images(0, table.rows)
            if image.row in wanted
        ]
        # Backbones with blocks resize all images to one size, so images can be stacked.
        return Rows(images=torch.stack(images), labels=table.read_labels()[chosen])

    def _make_frozen_network(self, backbone: Backbone, device: str) -> Tapped:
        """Makes the frozen network with fine-tuning's code, so that rounding is comparable."""
        graph = network_graph(backbone)
        network = Graph(
            frozen_model(backbone),
            mean=graph.mean.flatten().tolist(),
            std=graph.std.flatten().tolist(),
            flip=graph.flip,
        )
        return self._tap_blocks(network.to(device).eval(), network.model)

    def _make_tuned_network(
        self, backbone: Backbone, device: str, method: str, epsilon: str, *, classes: int
    ) -> Tapped:
        # Blocks' features depend neither on the head nor on the normalisation of the head's input.
        network = whole_network(
            backbone,
            trained_options(self.methods[method], self._read_chosen(method, epsilon)),
            split_state(load_file(self._folder_of(method, epsilon) / STATE_FILE))[0],
            classes=classes,
            device=device,
            transform=Transform(spec=NoNormalisation()),
        )
        return self._tap_blocks(network.eval(), network)

    def _tap_blocks(self, network: torch.nn.Module, body: torch.nn.Module) -> Tapped:
        return tap_blocks(network, body, self.backbone_name, token=self.options.token)


def trained_options(method: MethodOptions, chosen: Mapping[str, Any]) -> FineTune:
    """Returns a network's training options; `chosen` has the option values from a search."""
    options = network_options(method)
    assert options is not None, "list_law_networks names methods that tune networks"
    return options.make_trial(chosen)
