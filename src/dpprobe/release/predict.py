"""Predictions of a released head on new images or vectors.

Prediction decodes, preprocesses and batches images as feature extraction does, and rounds features
as in the feature store. An image therefore gets the probabilities of its stored features. Loading
fails for another backbone, or a backbone that computes other features on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices
from dpprobe.artifacts import sha256_file
from dpprobe.backbones import loading, local_folders
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import probes_agree, take_probe
from dpprobe.backbones.hub_files import HUB_PREFIXES
from dpprobe.backbones.joined_network import join_backbones
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.table import EncodedImage
from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError, DataError
from dpprobe.extras import OptionalModule
from dpprobe.features.decoding_workers import Fault, Row
from dpprobe.features.extraction import find_misfits
from dpprobe.features.extraction_pipeline import (
    PIECE_ROWS,
    TolerantDecoder,
    compute_rows,
)
from dpprobe.heads.fitted import Heads
from dpprobe.heads.scoring import compute_probabilities, one_head
from dpprobe.heads.training_set import LONGEST_ROW, find_unusable
from dpprobe.progress import Progress
from dpprobe.release.bundle import (
    BackboneFacts,
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
from dpprobe.release.parts.monitor.compare_images import Report, Watch, read_groups
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
from dpprobe.release.vector_sources import VectorSource, find_vectors, is_vector_file
from dpprobe.versions import code_version

if TYPE_CHECKING:
    from PIL import Image, ImageOps
else:
    ImageOps = OptionalModule("PIL.ImageOps")

Precision = Literal["float32", "bfloat16", "float16"]

# Images per forward pass on a GPU, as in feature extraction.
BATCH_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The number of rows that `predict` wrote, and the id and fault of each unusable image.

    `report` compares the images with the release's test images, if `monitor` was requested.
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
    """A bundle with its backbone, loaded once; `load_bundle` makes it."""

    bundle: Bundle
    backbone: Backbone
    heads: Heads
    device: str
    thresholds: Mapping[str, float]
    set_rule: SetRule | None = None

    def __new__(cls, *arguments: Any, **_: Any) -> Predictor:
        """Refuses a bundle's path, which `load_bundle` takes."""
        if arguments:
            raise TypeError(f"write Predictor.load_bundle({arguments[0]!r:.200})")
        return super().__new__(cls)

    @classmethod
    def load_bundle(
        cls,
        bundle: str | Path,
        *,
        checkpoint: str | Path | Sequence[str | Path] | None = None,
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
                f"threshold of {next(iter(thresholds))}: the operating point holds for its "
                "threshold alone; write one of the two"
            )
        given = read_operating_point(read.calibration) if operating_point else thresholds or {}
        checked = check_thresholds(given, read.facts, link=read.link)
        for one in read.facts.backbone.parts:
            _check_source(read.folder, one, hub=allow_hub, module=allow_module)
        files, where = _list_checkpoints(checkpoint), resolve_device(device)
        loaded = _load_backbone(read, files, device=where, precision=precision)
        if loaded.dimension is None:
            sized = partial(_transform_sized, loaded.transform, read.facts.dimension)
            loaded = replace(loaded, transform=sized)
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
        # Matrix products of equal size, so that a row's last digits depend on the row alone.
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
    monitor: bool = False,
    groups: Path | None = None,
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
      monitor: True to compare the images with the release's test images; see
        `compare_images.Watch`.
      groups: a CSV file with columns id and group, for `monitor`.
      prevalence: class frequencies to which probabilities are adapted, or "estimate"; see
        `prevalence.Prevalence`. An estimate needs all predictions in memory.
      loading: options of `Predictor.load_bundle`.

    Raises ConfigError, before any image is read, if `monitor` needs tables that the release lacks.
    """
    named = {"image_column": image_column, "id_column": id_column, "root": root}
    read = read_bundle(bundle)
    shares = None if prevalence is None else Prevalence.of_bundle(read, prevalence)
    sources = _find_sources(read.facts, images, **named)
    check_output(output, images)
    predictor = Predictor.load_bundle(bundle, **loading)
    watch = None
    if monitor:
        watch = Watch(predictor.bundle, predictor.heads.transforms[0], read_groups(groups))
    count = sources.count
    if isinstance(sources, VectorSource):
        unit, blocks = "vectors", predictor.predict_source(sources)
    else:
        unit, blocks = "images", predictor.predict_blocks(sources.read_images(), count)
    name = predictor.facts.name
    columns = value_columns(predictor.classes, predictor.bundle.link)
    with_sets = predictor.set_rule is not None
    with Progress(count, label=f"predict {name}", unit=unit) as progress, closing(blocks):
        counted: Iterable[Block] = _count_blocks(blocks, progress, watch)
        if shares and prevalence == "estimate":
            counted = list(counted)
            none = np.empty((0, len(columns)), np.float32)
            shares = shares.estimate(np.concatenate([none, *(one.values for one in counted)]))
        shown = shares.name_shares(predictor.classes) if shares else None
        thresholds = dict(predictor.thresholds)
        origin = Origin(name, bundle_digest(bundle), code_version(), thresholds, shown)
        with open_predictions(output, columns, origin, with_sets=with_sets) as write:
            unreadable = _write_blocks(predictor, counted, write, shares)
    report = None if watch is None else watch.compare()
    found = shown if prevalence == "estimate" else None
    return Summary(rows=count, unreadable=tuple(unreadable), report=report, prevalence=found)


def _find_sources(
    facts: BundleFacts, images: Sequence[Path], **columns: Any
) -> Source | VectorSource:
    """Finds the images, or for a head of vectors the vectors, that a user names."""
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
    """Yields the images of ascending ranges of positions."""
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


def _transform_sized(
    transform: Callable[[Image.Image], torch.Tensor], dimension: int, image: Image.Image
) -> torch.Tensor:
    """Transforms an image for a backbone that keeps image sizes; DataError unless the head fits."""
    values = transform(image)
    if values.numel() != dimension:
        raise DataError(
            f"an image of {image.width} x {image.height} gives {values.numel()} values, but the "
            f"head takes {dimension}; resize the image"
        )
    return values.flatten()


# the backbones of a bundle


def _load_backbone(
    read: Bundle, checkpoints: Sequence[Path], *, device: str, precision: Precision | None
) -> Backbone:
    """Loads and checks the backbone of a bundle, or all members of a joined backbone."""
    facts, folder = read.facts.backbone, read.folder
    files = _assign_checkpoints(folder, facts, checkpoints)
    options = {one.name: _backbone_options(folder, one, files.get(one.name)) for one in facts.parts}
    loaded = {}
    for one in facts.parts:
        runtime = Runtime(device=device, precision=precision or one.precision)
        loaded[one.name] = loading.load_backbone(options[one.name], runtime=runtime)
        dimension = None if facts.members else read.facts.dimension
        _check_backbone(folder, one, loaded[one.name], dimension)
    if not facts.members:
        return loaded[facts.name]
    backbone = join_backbones(loaded, [one.dtype for one in facts.members])
    _check_dimension(folder, facts, backbone, read.facts.dimension)
    return backbone


def _check_source(folder: Path, facts: BackboneFacts, *, hub: bool, module: bool) -> None:
    """Checks where an untrusted bundle loads weights and code from.

    Raises DataError for a file or folder, ConfigError for a repository or code without permission.
    """
    options = facts.options
    if options.get("family") == "imported" and not module:
        raise ConfigError(
            f"{folder}: the backbone is built by {options.get('module')}, a function that "
            "the bundle names; pass --allow-module if you trust this function"
        )
    model, tag = str(options.get("model", "")), options.get("pretrained")
    arguments = options.get("model_args") or {}
    places = [key for key in arguments if key.startswith("pretrained") or key == "cache_dir"]
    places += ["pretrained"] if isinstance(tag, str) and not re.fullmatch(r"[\w-]*", tag) else []
    # The user names such a folder, not the bundle.
    local = facts.checkpoint is not None and local_folders.is_hidden(model)
    places += [model] if ":" in model and not (local or model.startswith(HUB_PREFIXES)) else []
    if places:
        raise DataError(
            f"{folder}: {places[0]}: the bundle names a location to load weights from, "
            "which is not allowed; ask for a bundle with a checkpoint"
        )
    if ":" in model and not (local or hub):
        raise ConfigError(
            f"{folder}: the bundle takes the backbone's weights from the Hub repository "
            f"{model}; pass --allow-hub if you trust its owner"
        )


def _list_checkpoints(given: str | Path | Sequence[str | Path] | None) -> tuple[Path, ...]:
    if given is None:
        return ()
    return tuple(map(Path, [given] if isinstance(given, str | Path) else given))


def _assign_checkpoints(
    folder: Path, facts: BackboneFacts, checkpoints: Sequence[Path]
) -> dict[str, Path]:
    """Finds the weights of each backbone: a file by its SHA-256, a folder by its name."""
    wanting = [one for one in facts.parts if one.checkpoint is not None]
    if len(checkpoints) <= 1 and (len(wanting) == 1 or not facts.members):
        # the only file; later checks explain why it may be wrong
        return {one.name: path for one in (wanting or facts.parts) for path in checkpoints}
    found: dict[str, Path] = {}
    for path in checkpoints:
        sha256 = sha256_file(path) if path.is_file() else None
        names = [
            one.name
            for one in wanting
            if (sha256 is not None and sha256 == one.weights_sha256)
            or (path.is_dir() and _is_folder(one) and path.name == one.checkpoint)
        ]
        if not names:
            needed = "; ".join(
                f"{one.name}: {one.checkpoint}, SHA-256 {one.weights_sha256}" for one in wanting
            )
            raise ConfigError(
                f"--checkpoint {path}: not the weights of a backbone of {folder}; the bundle needs "
                f"{needed or 'no file of weights, so remove --checkpoint'}"
            )
        found |= dict.fromkeys(names, path)
    return found


def _is_folder(facts: BackboneFacts) -> bool:
    return local_folders.is_hidden(str(facts.options.get("model")))


def _backbone_options(
    bundle: Path, facts: BackboneFacts, checkpoint: Path | None
) -> BackboneOptions:
    """Returns the backbone's options in the study, with the path of weights on this machine."""
    if facts.checkpoint is None and checkpoint is not None:
        raise ConfigError(
            f"checkpoint {checkpoint}: backbone {facts.name} of {bundle} needs no file of "
            "weights; remove --checkpoint"
        )
    # A released head takes only the features of the backbone's last block.
    inner = {"layers": (), "token": None} if "layers" in facts.options else {}
    options = {**facts.options, **inner}
    if facts.checkpoint is None:
        return backbone_options(options)
    folder = _is_folder(facts)
    if checkpoint is None or not (checkpoint.is_dir() if folder else checkpoint.is_file()):
        kind = "folder" if folder else "file"
        absent = "" if checkpoint is None else f"{checkpoint} is not a {kind}; "
        sha256 = "" if folder else f" (SHA-256 {facts.weights_sha256})"
        raise ConfigError(
            f"--checkpoint: {absent}the bundle has no weights of its backbone {facts.name}; write "
            f"--checkpoint {kind.upper()}, where {kind.upper()} is {facts.checkpoint}{sha256} "
            "from whoever published the bundle"
        )
    if folder:  # loading compares the weights
        return backbone_options({**options, "model": f"{local_folders.PREFIX}{checkpoint}"})
    _check_weights(bundle, facts, sha256_file(checkpoint), str(checkpoint))
    return backbone_options({**options, "checkpoint": str(checkpoint)})


def _check_weights(bundle: Path, facts: BackboneFacts, sha256: str | None, named: str) -> None:
    wanted = facts.weights_sha256
    if sha256 != wanted:
        raise DataError(
            f"{named}: its weights have SHA-256 {sha256}, but {bundle} needs {wanted}; use "
            "those weights"
        )


def _check_backbone(
    bundle: Path, facts: BackboneFacts, loaded: Backbone, dimension: int | None
) -> None:
    """Compares a loaded backbone with the release; `dimension` is None for a joined member."""
    _check_weights(bundle, facts, loaded.weights_sha256, f"backbone {facts.name}")
    if dimension is not None:
        _check_dimension(bundle, facts, loaded, dimension)
    here = json.loads(json.dumps(dict(loaded.preprocessing)))  # with lists for tuples, like JSON
    there = facts.loaded_preprocessing
    if here != there:
        key = next(key for key in {**there, **here} if there.get(key) != here.get(key))
        fault = f"preprocessing has {key} {here.get(key)} here, but {there.get(key)} in the release"
        raise _unlike_release(bundle, facts, fault)
    if not probes_agree(probe := take_probe(loaded), facts.probe):
        fault = (
            f"its features of a test image have norm {probe['norm']:g} here instead of "
            f"{facts.probe['norm']:g}, or different values"
        )
        raise _unlike_release(bundle, facts, fault)


def _check_dimension(bundle: Path, facts: BackboneFacts, loaded: Backbone, dimension: int) -> None:
    if loaded.dimension not in (None, dimension):
        fault = f"gives {loaded.dimension} features here, but the head takes {dimension}"
        raise _unlike_release(bundle, facts, fault)


def _unlike_release(bundle: Path, facts: BackboneFacts, fault: str) -> DataError:
    named = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    remedy = f"the libraries of the release ({named})" if named else "the release's libraries"
    return DataError(f"{bundle}: backbone {facts.name}: {fault}; use {remedy}")
