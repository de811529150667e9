"""Predicts the classes of new images or vectors with a released head.

Prediction decodes, preprocesses and batches images as feature extraction does, and rounds features
as in the feature store. An image therefore gets the probabilities of its stored features. Loading
fails for another backbone, or a backbone that computes other features on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices
from dpprobe.backbones.backbone import Backbone
from dpprobe.code_version import code_version
from dpprobe.data.table import EncodedImage
from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError, DataError
from dpprobe.extras import OptionalModule
from dpprobe.features.decoding_workers import Fault, Row
from dpprobe.features.extraction_pipeline import (
    PIECE_ROWS,
    TolerantDecoder,
    compute_rows,
    find_misfits,
)
from dpprobe.heads.fitted import Heads
from dpprobe.heads.row_norms import LONGEST_ROW, find_unusable
from dpprobe.heads.scoring import compute_probabilities, one_head
from dpprobe.progress import Progress
from dpprobe.release.bundle import (
    Bundle,
    BundleFacts,
    bundle_digest,
    read_bundle,
)
from dpprobe.release.image_sources import (
    Source,
    find_images,
    open_encoded,
)
from dpprobe.release.prediction_table import (
    Origin,
    Prediction,
    Write,
    check_output,
    check_thresholds,
    label_of,
    name_set,
    open_predictions,
    value_columns,
)
from dpprobe.release.prevalence import Asked, Prevalence
from dpprobe.release.probabilities import SetRule, read_operating_point
from dpprobe.release.released_backbone import Checkpoint, Precision, load_released_backbone
from dpprobe.release.vector_sources import VectorSource, find_vectors, is_vector_file

if TYPE_CHECKING:
    from PIL import Image, ImageOps
else:
    ImageOps = OptionalModule("PIL.ImageOps")

# Images per forward pass on a GPU, as in feature extraction.
BATCH_SIZE = 256


class Report(Protocol):
    """The result of a `Watch` of all images."""

    def list_lines(self) -> list[str]: ...

    def to_dict(self) -> dict[str, Any]: ...


class Watch(Protocol):
    """Receives all images with their predictions, such as `image_monitor.Watch`."""

    def add_rows(
        self, names: Sequence[str], values: npt.NDArray[Any], features: npt.NDArray[np.float32]
    ) -> None:
        """Adds rows, given by ids, probabilities [m, classes] and stored features [m, d]."""
        ...

    def compare(self) -> Report: ...


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The number of rows that `predict` wrote, and the id and fault of each unusable image.

    `report` is the report of the `watch`, if there is one.
    `prevalence` has the class frequencies that `prevalence="estimate"` found.
    """

    rows: int
    unreadable: tuple[tuple[str, str], ...]
    report: Report | None = None
    prevalence: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive images: probabilities [m, classes] of usable images, faults of unusable images.

    `features` [m, d] are the usable images' features, rounded as in the feature store.
    """

    rows: tuple[Row, ...]
    values: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A bundle with its backbone, loaded once; `load_bundle` makes it.

    Example:
      >>> from dpprobe import Predictor
      >>> Predictor.load_bundle("no_such_folder")
      Traceback (most recent call last):
          ...
      dpprobe.errors.DataError: no_such_folder: no bundle in this folder; name the folder that
      contains SHA256SUMS
    """

    bundle: Bundle
    backbone: Backbone
    heads: Heads
    device: str
    thresholds: Mapping[str, float]
    set_rule: SetRule | None = None

    def __new__(cls, *arguments: Any, **_: Any) -> Predictor:
        """Refuses a bundle's path, which must be passed to `load_bundle`."""
        if arguments:
            raise TypeError(f"write Predictor.load_bundle({arguments[0]!r:.200})")
        return super().__new__(cls)

    @classmethod
    def load_bundle(
        cls,
        bundle: str | Path,
        *,
        checkpoint: Checkpoint = None,
        device: str = "auto",
        allow_hub: bool = False,
        allow_module: bool = False,
        precision: Precision | None = None,
        thresholds: Mapping[str, float] | None = None,
        operating_point: bool = False,
        coverage: float | None = None,
        abstain_below: float | None = None,
    ) -> Predictor:
        """Reads a bundle and loads its backbone.

        Args:
          checkpoint: the file of the backbone's weights, if the bundle names a file; several files
            if the members of a joined backbone need them.
          allow_hub: fetch weights from the Hub repository that the bundle names.
          allow_module: import and call the function that the bundle names, of family imported.
          precision: the precision of the forward pass, instead of the release's.
          thresholds: maps a class to the probability from which `name_classes` names the class.
          operating_point: True to take the threshold that the release recommends.
          coverage, abstain_below: for a calibrated release; see `probabilities.SetRule`.

        Raises:
          DataError: for a damaged bundle, other weights, or a backbone that computes other features
            on this machine.
          ConfigError: if the checkpoint is missing or the backbone cannot be loaded; for
            thresholds, an operating point or a coverage that the head cannot have.
        """
        read = read_bundle(Path(bundle))
        rule = SetRule.choose_rule(read.calibration, coverage=coverage, abstain_below=abstain_below)
        if operating_point and thresholds:
            raise ConfigError(
                f"threshold of {next(iter(thresholds))}: an operating point has its own "
                "threshold; remove one of the two"
            )
        given = read_operating_point(read.calibration) if operating_point else thresholds or {}
        checked = check_thresholds(given, read.facts, link=read.link)
        where = resolve_device(device)
        loaded = load_released_backbone(
            read,
            checkpoint,
            device=where,
            precision=precision,
            allow_hub=allow_hub,
            allow_module=allow_module,
        )
        normalize = read.facts.head.read_options().normalize
        return cls(
            bundle=read,
            backbone=loaded,
            heads=one_head(read.weights, read.arrays, normalize),
            device=where,
            thresholds=checked,
            set_rule=rule,
        )

    @property
    def facts(self) -> BundleFacts:
        return self.bundle.facts

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.class_names

    def predict_images(self, images: Sequence[Image.Image]) -> npt.NDArray[np.float32]:
        """Returns the probabilities of images in memory; scores if the head has no probabilities.

        All their pixels are used, also for a backbone with `jpeg_decoding: scaled`.

        Returns:
          float32 [n, classes].

        Raises DataError, with the image's position, if an image cannot be used.
        """

        def turn_upright(row: EncodedImage) -> Image.Image:
            try:
                return ImageOps.exif_transpose(images[row.row])
            except Exception as error:  # PIL reads the file lazily, and may raise any error
                raise DataError(f"cannot be decoded ({error})") from error

        rows = (EncodedImage(row, None, None, str(row), b"") for row in range(len(images)))
        values = [np.empty((0, len(self.classes)), np.float32)]
        with closing(self.predict_blocks(rows, len(images), opened=turn_upright)) as blocks:
            for block in blocks:
                for fault in block.faults:
                    raise DataError(f"image {fault.row[0]}: {fault.reason}")
                values.append(block.values)
        return np.concatenate(values)

    def predict_vectors(self, vectors: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Returns the probabilities of vectors [m, d] of the release's model; see `predict_images`.

        Raises DataError for another dimension, or, with the position, for a vector not finite or
        longer than 1e18.
        """
        rows = np.asarray(vectors, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.facts.dimension:
            raise DataError(
                f"vectors {rows.shape}: the head takes [rows, {self.facts.dimension}]; pass "
                f"vectors of {self.facts.backbone.architecture}"
            )
        unusable = find_unusable(rows)
        if unusable.any():
            raise DataError(
                f"vector {unusable.argmax()}: holds NaN or infinity, or is longer than "
                f"{LONGEST_ROW:g}; leave it out"
            )
        return self.score_features(rows) if len(rows) else np.empty((0, len(self.classes)), "f4")

    def name_classes(self, values: npt.NDArray[np.float32]) -> list[str]:
        """Names the class, or the joined labels, of each row of probabilities [n, classes]."""
        return [label_of(row, self.facts, self.thresholds) for row in values]

    def predict_blocks(
        self,
        images: Iterable[EncodedImage],
        count: int,
        *,
        opened: Callable[[EncodedImage], Image.Image] | None = None,
        threads: int | None = None,
    ) -> Generator[Block]:
        """Yields the predictions of images in order; closing the generator stops all threads.

        Args:
          images: encoded images, numbered from 0.
          opened: decodes an image, or raises a DataError; by default as extraction does.
          threads: number of threads that decode and compute, or of decoding processes for a GPU; by
            default as many as torch has threads.
        """
        accelerator = devices.find_accelerator(self.device)
        parts = compute_rows(
            partial(_pick_ranges, images),
            count,
            TolerantDecoder(
                self.backbone, opened or partial(open_encoded, scaled=self.backbone.scaled)
            ),
            self.backbone,
            batch_size=BATCH_SIZE,
            threads=threads or torch.get_num_threads(),
            accelerator=accelerator,
        )
        with closing(parts):
            for part in parts:
                yield self._predict_block(part.rows, part.values, part.faults)

    def predict_source(self, source: VectorSource) -> Generator[Block]:
        """Yields the predictions of vectors in order; an id is an item's file, or FILE:NUMBER."""
        for rows, vectors, faults in source.read_blocks():
            yield self._predict_block(tuple(rows), vectors, tuple(faults))

    def _predict_block(
        self, rows: tuple[Row, ...], features: npt.NDArray[np.float32], faults: tuple[Fault, ...]
    ) -> Block:
        wrong = find_misfits(features, self.facts.backbone.dtype)
        for place in np.flatnonzero(find_unusable(features)).tolist():
            wrong.setdefault(place, f"the vector is longer than {LONGEST_ROW:g}")
        good = [position for position in range(len(rows)) if position not in wrong]
        values = np.empty((0, len(self.classes)), np.float32)
        if good:
            features = features.astype(self.facts.backbone.dtype).astype(np.float32)
            values = self.score_features(features[good])
            finite = np.isfinite(values).all(axis=1)
            overflow = "the head's scores for this input are not finite numbers"
            wrong |= {good[place]: overflow for place in np.flatnonzero(~finite)}
            good, values = [each for each in good if each not in wrong], values[finite]
        more = tuple(Fault(rows[position], reason) for position, reason in wrong.items())
        return Block(
            rows=tuple(rows[position] for position in good),
            values=values,
            features=features[good],
            faults=faults + more,
        )

    def score_features(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Rounds feature rows [m, d] as in the feature store, and returns their probabilities."""
        rounded = features.astype(self.facts.backbone.dtype).astype(np.float32)
        # Uses matrix products of equal size, so that a row's last digits depend only on the row.
        filled = np.pad(rounded, ((0, -len(rounded) % PIECE_ROWS), (0, 0)))
        pieces = filled.reshape(-1, PIECE_ROWS, filled.shape[1])
        link, calibration = self.bundle.link, self.bundle.calibration
        rescale = calibration.rescale if calibration else None
        values = [compute_probabilities(self.heads, piece, link, rescale) for piece in pieces]
        return np.concatenate(values)[: len(rounded)]


def predict(
    bundle: Path,
    images: Sequence[Path],
    *,
    output: Path | None,
    image_column: str | None = None,
    id_column: str | None = None,
    root: Path | None = None,
    watch: Callable[[Predictor], Watch] | None = None,
    prevalence: Asked | None = None,
    **loading: Any,
) -> Summary:
    """Writes the predictions of a release on images, one row per image, in the images' order.

    The columns are id, class, one probability per class (a score if the head has no probabilities),
    and error. A calibrated release adds the columns `set` and `abstain`. Unusable images have an
    error and no prediction. The table also states the bundle, the version of dpprobe and the
    thresholds (`prediction_table.Origin`).

    Args:
      images: files, folders, parquet files and CSV files; see `image_sources.find_images`. For a
        bundle of vectors, files of vectors or folders of items; see `vector_sources`.
      output: a CSV or parquet file; None for CSV on standard output.
      watch: opens a `Watch` of the images, before any image is read.
      prevalence: class frequencies to which probabilities are adapted, or "estimate"; see
        `prevalence.Prevalence`. An estimate needs all predictions in memory.
      loading: options of `Predictor.load_bundle`.
    """
    named = {"image_column": image_column, "id_column": id_column, "root": root}
    read = read_bundle(bundle)
    shares = None if prevalence is None else Prevalence.of_bundle(read, prevalence)
    sources = _find_sources(read.facts, images, **named)
    check_output(output, images)
    predictor = Predictor.load_bundle(bundle, **loading)
    watching = None if watch is None else watch(predictor)
    count = sources.count
    if isinstance(sources, VectorSource):
        unit, blocks = "vectors", predictor.predict_source(sources)
    else:
        unit, blocks = "images", predictor.predict_blocks(sources.read_images(), count)
    name = predictor.facts.name
    columns = value_columns(predictor.classes, predictor.bundle.link)
    with_sets = predictor.set_rule is not None
    with Progress(count, label=f"predict {name}", unit=unit) as progress, closing(blocks):
        counted: Iterable[Block] = _count_blocks(blocks, progress, watching)
        if shares and prevalence == "estimate":
            counted = list(counted)
            none = np.empty((0, len(columns)), np.float32)
            shares = shares.estimate(np.concatenate([none, *(one.values for one in counted)]))
        shown = shares.name_shares(predictor.classes) if shares else None
        thresholds = dict(predictor.thresholds)
        origin = Origin(name, bundle_digest(bundle), code_version(), thresholds, shown)
        with open_predictions(output, columns, origin, with_sets=with_sets) as write:
            unreadable = _write_blocks(predictor, counted, write, shares)
    report = None if watching is None else watching.compare()
    found = shown if prevalence == "estimate" else None
    return Summary(rows=count, unreadable=tuple(unreadable), report=report, prevalence=found)


def _find_sources(
    facts: BundleFacts, images: Sequence[Path], **columns: Any
) -> Source | VectorSource:
    """Finds the images (or, for a head of vectors, the vectors) that a user names."""
    if not facts.backbone.takes_vectors:
        for path in filter(is_vector_file, images):
            raise ConfigError(
                f"{path}: contains vectors, but {facts.name} classifies images; name images"
            )
        return find_images(images, **columns)
    for option, value in columns.items():
        if value is not None:
            raise ConfigError(
                f"{option} {value}: {facts.name} classifies vectors, which have no images; remove "
                f"{option}"
            )
    return find_vectors(images, facts)


def _count_blocks(
    blocks: Iterable[Block], progress: Progress, watch: Watch | None
) -> Iterator[Block]:
    """Yields blocks without their features, which only `watch` reads."""
    for block in blocks:
        if watch is not None:
            watch.add_rows([name for _, name in block.rows], block.values, block.features)
        progress.advance_by(len(block.rows) + len(block.faults))
        yield replace(block, features=block.features[:0])


def _write_blocks(
    predictor: Predictor, blocks: Iterable[Block], write: Write, shares: Prevalence | None
) -> list[tuple[str, str]]:
    """Writes all predictions; returns the faults of unusable inputs."""
    unreadable: list[tuple[str, str]] = []
    for block in blocks:
        values = shares.adapt(block.values) if shares else block.values
        write(_list_predictions(replace(block, values=values), predictor))
        unreadable += [(fault.row[1], fault.reason) for fault in block.faults]
    return unreadable


def _pick_ranges(images: Iterable[EncodedImage], ranges: Sequence[range]) -> Iterator[EncodedImage]:
    """Yields the images whose positions are in the ranges, which must be in ascending order."""
    left, position = iter(images), 0
    for one in ranges:
        yield from islice(left, one.start - position, one.stop - position)
        position = one.stop


def _list_predictions(block: Block, predictor: Predictor) -> list[Prediction]:
    labels, rule = predictor.name_classes(block.values), predictor.set_rule
    numbered: dict[int, Prediction] = {}
    for (number, name), label, values in zip(block.rows, labels, block.values, strict=True):
        held = name_set(values, rule, predictor.classes) if rule else None
        numbered[number] = Prediction(name, label, values, None, held)
    for fault in block.faults:
        number, name = fault.row
        numbered[number] = Prediction(name, None, None, fault.reason)
    return [numbered[number] for number in sorted(numbered)]
