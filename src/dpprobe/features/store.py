"""The feature store: immutable HDF5 shards, a manifest that proves they fit, a checking reader.

A shard holds the rows start..stop of one split: `features` [n, d], `labels` [n] (or [n, k]),
`ids` [n], and where there are any `layers/<name>` [n, w], `groups/<name>` [n] and `accepted` [n].
It is written under a temporary name, read back, and renamed. The manifest records every shard's
size and hashes; a reader refuses, by name, a file that differs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from dpprobe import artifacts
from dpprobe.backbones.probe import probes_agree
from dpprobe.errors import ConfigError, StoreError

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-features"
MANIFEST_FORMAT = "dpprobe-manifest"
FORMAT_VERSION = 2
# A chunk is what HDF5 reads, checks and caches at once.
CHUNK_ROWS = 1024
CHUNK_BYTES = 2 << 20
READ_BYTES = 16 << 20
CACHE_BYTES = 16 << 20

REMEDY = "delete it and run again"


def row_range(rows: int, shard: int, shards: int) -> tuple[int, int]:
    """The rows start..stop of one shard; all of them tile 0..rows, sizes differing by one at most.

    Raises:
      ConfigError: when a shard would hold no row.
    """
    if not 0 <= shard < shards:
        raise ValueError(f"shard {shard} of {shards}")
    if shards > rows:
        raise ConfigError(
            f"features.shards: {shards} shards for a split of {rows} rows; write at most {rows}"
        )
    return rows * shard // shards, rows * (shard + 1) // shards


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """What a shard says about itself; all but `shard` and `versions` is common to a manifest.

    Attributes:
      split: "train" or "test".
      rows: of the whole split.
      shard, shards: which part of how many.
      class_names: one a class.
      multi_label: whether labels are rows of 0 and 1.
      dtype: of the features on disk, "float16" or "float32".
      dataset_fingerprint: of the content of both split tables.
      backbone: its name in the study.
      backbone_options: its options, as the study gives them.
      backbone_fingerprint: of all that decides the features.
      weights_sha256: None for a backbone without weights.
      architecture, pretrained_tag: as the library resolves the backbone's name; None where there
        is none.
      preprocessing: resolved.
      versions: of the libraries used.
    """

    split: str
    rows: int
    shard: int
    shards: int
    class_names: tuple[str, ...]
    multi_label: bool
    dtype: str
    dataset_fingerprint: str
    backbone: str
    backbone_options: Mapping[str, Any]
    backbone_fingerprint: str
    weights_sha256: str | None
    preprocessing: Mapping[str, Any]
    architecture: str | None = None
    pretrained_tag: str | None = None
    trained: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def start(self) -> int:
        return row_range(self.rows, self.shard, self.shards)[0]

    @property
    def stop(self) -> int:
        return row_range(self.rows, self.shard, self.shards)[1]

    def common(self) -> dict[str, Any]:
        """What all shards of a split must agree on, JSON-compatible."""
        return {
            "split": self.split,
            "rows": self.rows,
            "class_names": list(self.class_names),
            "multi_label": self.multi_label,
            "dtype": self.dtype,
            "dataset_fingerprint": self.dataset_fingerprint,
            "backbone": self.backbone,
            "backbone_options": dict(self.backbone_options),
            "backbone_fingerprint": self.backbone_fingerprint,
            "weights_sha256": self.weights_sha256,
            "architecture": self.architecture,
            "pretrained_tag": self.pretrained_tag,
            "trained": self.trained,
            "preprocessing": dict(self.preprocessing),
        }


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard as its manifest lists it."""

    file: str
    start: int
    stop: int
    bytes: int
    sha256: str
    features_sha256: str
    rows_sha256: str
    versions: Mapping[str, str]
    layers_sha256: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None


class RowColumns(NamedTuple):
    """What stands beside the features of some rows."""

    labels: npt.NDArray[Any]
    ids: list[str]
    groups: dict[str, list[str]]
    accepted: list[list[int]] | None = None

    @classmethod
    def of(
        cls,
        labels: npt.NDArray[Any],
        ids: Sequence[str],
        groups: Mapping[str, Sequence[str]],
        accepted: Sequence[Sequence[int]] | None,
    ) -> RowColumns:
        return cls(
            labels,
            list(ids),
            {name: list(values) for name, values in groups.items()},
            None if accepted is None else [list(row) for row in accepted],
        )

    def texts(self) -> dict[str, list[str]]:
        """All but the labels, as the strings that a shard holds: name -> one a row."""
        texts = {"ids": self.ids, **{f"groups/{name}": self.groups[name] for name in self.groups}}
        if self.accepted is not None:
            texts["accepted"] = [artifacts.canonical_json(row) for row in self.accepted]
        return texts


class ShardWriter:
    """Receives the feature rows of one shard, in order, in blocks of any size."""

    def __init__(self, file: h5py.File, header: ShardHeader) -> None:
        self._file = file
        self._header = header
        self._features = _ArrayWriter(file, "features", header)
        self._layers: dict[str, _ArrayWriter] | None = None

    @property
    def written(self) -> int:
        """Rows that are in the file."""
        return self._features.written

    def append(
        self, block: npt.NDArray[Any], *, layers: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Adds rows [m, d], and [m, w] of each layer; the first block fixes names and widths.

        Values are converted to the dtype.
        """
        layers = layers or {}
        if self._layers is None:
            self._layers = {
                name: _ArrayWriter(self._file, _layer_path(name), self._header) for name in layers
            }
        if layers.keys() != self._layers.keys():
            raise StoreError(
                f"shard {self._header.shard}: layers {', '.join(layers) or '(none)'} after "
                f"{', '.join(self._layers) or '(none)'}"
            )
        self._features.append(block)
        for name, values in layers.items():
            self._layers[name].append(values)

    def finish(self) -> None:
        """Writes what is buffered and the hashes of all features."""
        self._file.attrs["features_sha256"] = self._features.finish()
        if self._layers:
            digests = {name: writer.finish() for name, writer in self._layers.items()}
            self._file.attrs["layers_sha256"] = json.dumps(digests)  # in the layers' order


def _layer_path(name: str) -> str:
    return f"layers/{name}"


class _ArrayWriter:
    """Writes one array of a shard, a row an image, by whole chunks."""

    def __init__(self, file: h5py.File, name: str, header: ShardHeader) -> None:
        self.written = 0
        self._file = file
        self._name = name
        self._header = header
        self._expected = header.stop - header.start
        self._hash = hashlib.sha256()
        self._dataset: h5py.Dataset | None = None
        self._buffer = np.empty((0, 0), dtype=header.dtype)
        self._filled = 0

    def append(self, block: npt.NDArray[Any]) -> None:
        if self._dataset is None:
            self._create(block.shape[1])
        taken = 0
        while taken < len(block):
            room = len(self._buffer) - self._filled
            part = block[taken : taken + room]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            taken += len(part)
            if self._filled == len(self._buffer):
                self._flush()

    def finish(self) -> str:
        """Writes what is buffered; the SHA-256 of all rows."""
        self._flush()
        if self.written != self._expected:
            raise StoreError(
                f"shard {self._header.shard}: {self.written} rows were given where "
                f"{self._expected} belong to it"
            )
        return self._hash.hexdigest()

    def _create(self, dimension: int) -> None:
        row_bytes = dimension * np.dtype(self._header.dtype).itemsize
        rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes, self._expected))
        self._buffer = np.empty((rows, dimension), dtype=self._header.dtype)
        self._dataset = self._file.create_dataset(
            self._name,
            shape=(self._expected, dimension),
            dtype=self._header.dtype,
            chunks=(rows, dimension),
            fletcher32=True,
        )

    def _flush(self) -> None:
        if self._filled == 0 or self._dataset is None:
            return
        if self.written + self._filled > self._expected:
            raise StoreError(
                f"shard {self._header.shard}: more than its {self._expected} rows were given"
            )
        part = self._buffer[: self._filled]
        self._dataset[self.written : self.written + self._filled] = part
        self._hash.update(part.data)
        self.written += self._filled
        self._filled = 0


@contextmanager
def open_shard(
    output: Path,
    header: ShardHeader,
    *,
    labels: npt.NDArray[Any],
    ids: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None = None,
    accepted: Sequence[Sequence[int]] | None = None,
    probe: Mapping[str, Any] | None = None,
) -> Iterator[ShardWriter]:
    """Writes a shard: yields a writer for its features, then reads the file back and renames it.

    On any error nothing is left behind.

    Args:
      output: the shard's final path.
      header: what it says about itself.
      labels: of its rows, int64 [n] or int8 [n, k].
      ids: of its rows.
      groups: subgroup column -> one string a row.
      accepted: the labels that count as right, a list a row.
      probe: of `backbones.probe`: tells a machine that computes something else.
    """
    with artifacts.atomic_path(output) as temporary:
        with h5py.File(temporary, "w") as file:
            _write_rows(file, RowColumns.of(labels, ids, groups or {}, accepted))
            for name, value in _attributes(header).items():
                file.attrs[name] = value
            if probe is not None:
                file.attrs["probe"] = artifacts.canonical_json(dict(probe))
            writer = ShardWriter(file, header)
            yield writer
            writer.finish()
            file.flush()
        artifacts.sync(temporary)
        verify_shard(temporary, header, final=output)


def write_shard(
    output: Path,
    header: ShardHeader,
    *,
    features: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    ids: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None = None,
    accepted: Sequence[Sequence[int]] | None = None,
    layers: Mapping[str, npt.NDArray[Any]] | None = None,
    probe: Mapping[str, Any] | None = None,
) -> None:
    """Writes a shard whose features [n, d] are in memory."""
    with open_shard(
        output, header, labels=labels, ids=ids, groups=groups, accepted=accepted, probe=probe
    ) as writer:
        writer.append(features, layers=layers)


def _write_rows(file: h5py.File, rows: RowColumns) -> None:
    file.create_dataset("labels", data=rows.labels, chunks=rows.labels.shape, fletcher32=True)
    for name, values in rows.texts().items():
        encoded = np.array([value.encode() for value in values])
        kind = h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1))
        file.create_dataset(
            name, data=encoded.astype(kind), dtype=kind, chunks=encoded.shape, fletcher32=True
        )
    file.attrs["rows_sha256"] = _rows_sha256(rows)


def _rows_sha256(rows: RowColumns) -> str:
    """One hash of everything beside the features."""
    labels, ids, groups, accepted = rows
    digest = hashlib.sha256(np.ascontiguousarray(labels).data)
    names = sorted(groups)
    content = [str(labels.dtype), list(labels.shape), ids, names]
    digest.update(artifacts.canonical_json(content).encode())
    for name in names:
        digest.update(artifacts.canonical_json(groups[name]).encode())
    if accepted is not None:
        digest.update(artifacts.canonical_json(accepted).encode())
    return digest.hexdigest()


def _attributes(header: ShardHeader) -> dict[str, Any]:
    """A header as HDF5 attributes: numbers and strings as they are, the rest as JSON."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "shard": header.shard,
        "shards": header.shards,
        "start": header.start,
        "stop": header.stop,
        "versions": artifacts.canonical_json(dict(header.versions)),
    }
    for name, value in header.common().items():
        plain = isinstance(value, str | int) and not isinstance(value, bool)
        values[name] = value if plain else artifacts.canonical_json(value)
    return values


def read_header(path: Path) -> ShardHeader:
    """Reads what a shard says about itself.

    Raises:
      StoreError: when the file is missing, damaged or not a shard.
    """
    with _opened(path) as file:
        return _header(file, str(path))


def _header(file: h5py.File, name: str) -> ShardHeader:
    attributes = file.attrs
    if attributes.get("format") != FORMAT or attributes.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{name}: not a feature shard of format {FORMAT} {FORMAT_VERSION}; {REMEDY}"
        )
    try:
        header = ShardHeader(
            split=attributes["split"],
            rows=int(attributes["rows"]),
            shard=int(attributes["shard"]),
            shards=int(attributes["shards"]),
            class_names=tuple(json.loads(attributes["class_names"])),
            multi_label=json.loads(attributes["multi_label"]),
            dtype=attributes["dtype"],
            dataset_fingerprint=attributes["dataset_fingerprint"],
            backbone=attributes["backbone"],
            backbone_options=json.loads(attributes["backbone_options"]),
            backbone_fingerprint=attributes["backbone_fingerprint"],
            weights_sha256=_or_none(attributes["weights_sha256"]),
            architecture=_or_none(attributes["architecture"]),
            pretrained_tag=_or_none(attributes["pretrained_tag"]),
            trained=json.loads(attributes["trained"]),
            preprocessing=json.loads(attributes["preprocessing"]),
            versions=json.loads(attributes["versions"]),
        )
        rows = (int(attributes["start"]), int(attributes["stop"]))
        if rows != row_range(header.rows, header.shard, header.shards):
            raise StoreError(f"{name}: holds rows {rows}, not those of its shard; {REMEDY}")
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise StoreError(f"{name}: its attributes are damaged ({error}); {REMEDY}") from error
    return header


def _or_none(value: str) -> str | None:
    return None if value == "null" else value


@contextmanager
def _opened(path: Path, name: str | None = None) -> Iterator[h5py.File]:
    """Opens a shard; what HDF5 raises while it is read becomes a StoreError that names it."""
    shown = name or str(path)
    if not path.is_file():
        raise StoreError(f"{shown}: the shard is missing; run again to extract it")
    try:
        with h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES) as file:
            yield file
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise StoreError(
            f"{shown}: the shard cannot be read, damaged or cut short ({line}); {REMEDY}"
        ) from error


class ContentHash:
    """Hashes of all rows of a split, in order, that do not know where shards begin and end.

    Raises:
      StoreError: naming the shard whose columns are not those of the first.
    """

    def __init__(self) -> None:
        self.features = hashlib.sha256()
        self.layers: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}
        self._shape: dict[str, Any] = {}

    def add_rows(
        self,
        name: str,
        labels: npt.NDArray[Any],
        ids: Sequence[str],
        groups: Mapping[str, Sequence[str]],
        accepted: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Adds what stands beside a shard's features."""
        shape: dict[str, Any] = {
            "labels": [str(labels.dtype), *labels.shape[1:]],
            "groups": sorted(groups),
        }
        if accepted is not None:
            shape["accepted"] = True
        self._shape = self._shape or shape
        _compare(name, shape, {**dict.fromkeys(shape), **self._shape})
        self._column("labels").update(np.ascontiguousarray(labels).data)
        for column, values in RowColumns.of(labels, ids, groups, accepted).texts().items():
            text = "".join(f"{artifacts.canonical_json(value)}\n" for value in values)
            self._column(column).update(text.encode())

    def add_features(self, layer: str | None, block: npt.NDArray[Any]) -> None:
        """Adds rows of the features, or of a layer."""
        if layer is None:
            self.features.update(block.data)
        else:
            self.layers.setdefault(layer, hashlib.sha256()).update(block.data)

    def digests(self) -> dict[str, Any]:
        """`features_sha256`, `rows_sha256`, and `layers_sha256` where there are layers."""
        columns = {name: digest.hexdigest() for name, digest in self._columns.items()}
        digests: dict[str, Any] = {
            "features_sha256": self.features.hexdigest(),
            "rows_sha256": artifacts.fingerprint({**self._shape, "columns": columns}),
        }
        if self.layers:
            layers = {name: digest.hexdigest() for name, digest in self.layers.items()}
            digests["layers_sha256"] = layers
        return digests

    def _column(self, name: str) -> Any:
        return self._columns.setdefault(name, hashlib.sha256())


def verify_shard(
    path: Path,
    expected: ShardHeader,
    *,
    final: Path | None = None,
    content: ContentHash | None = None,
) -> ShardRecord:
    """Reads a whole shard and checks it against its header and its own hashes.

    Args:
      path: the file.
      expected: the header it must have; library versions may differ.
      final: the path it will have, by which errors and the record call it.
      content: receives the shard's rows while they are read.

    Returns:
      The record for a manifest.

    Raises:
      StoreError: naming the shard and what is wrong.
    """
    shown = str(final or path)
    with _opened(path, shown) as file:
        header = _header(file, shown)
        _compare(shown, header.common(), expected.common())
        if header.shard != expected.shard or header.shards != expected.shards:
            raise StoreError(
                f"{shown}: holds shard {header.shard} of {header.shards} where "
                f"{expected.shard} of {expected.shards} belongs; {REMEDY}"
            )
        digests = _verify_arrays(file, header, shown, content)
        rows = _read_rows(file)
        rows_sha256 = _rows_sha256(rows)
        if rows_sha256 != file.attrs["rows_sha256"]:
            raise StoreError(
                f"{shown}: labels, ids, groups or accepted labels differ from their hash; {REMEDY}"
            )
        lengths = {len(rows.labels), *map(len, rows.texts().values())}
        if lengths != {header.stop - header.start}:
            raise StoreError(f"{shown}: its arrays do not have the rows it names; {REMEDY}")
        if content is not None:
            content.add_rows(shown, *rows)
        probe = _probe(file)
    return ShardRecord(
        file=Path(shown).name,
        start=header.start,
        stop=header.stop,
        bytes=path.stat().st_size,
        sha256=artifacts.sha256_file(path),
        features_sha256=digests.pop(None),
        rows_sha256=rows_sha256,
        versions=header.versions,
        layers_sha256={str(name): digest for name, digest in digests.items()},
        probe=probe,
    )


def _verify_arrays(
    file: h5py.File, header: ShardHeader, shown: str, content: ContentHash | None
) -> dict[str | None, str]:
    """SHA-256 of the features (None) and of each layer, all of which are what the shard says."""
    noted: dict[str | None, str] = {None: file.attrs["features_sha256"]}
    noted.update(_layers_sha256(file))
    for layer, expected in noted.items():
        array = _array(file, layer)
        digest = hashlib.sha256()
        for _, block in _raw_blocks(array):
            digest.update(block.data)
            if content is not None:
                content.add_features(layer, block)
        if digest.hexdigest() != expected:
            raise StoreError(f"{shown}: {_called(layer)} differ from their hash; {REMEDY}")
        if len(array) != header.stop - header.start or array.dtype != header.dtype:
            raise StoreError(f"{shown}: its arrays do not have the rows it names; {REMEDY}")
    return noted


def _probe(file: h5py.File) -> dict[str, Any] | None:
    text = file.attrs.get("probe")
    return None if text is None else json.loads(text)


def _layers_sha256(file: h5py.File) -> dict[str, str]:
    """Layer -> SHA-256, as the shard says."""
    digests: dict[str, str] = json.loads(file.attrs.get("layers_sha256", "{}"))
    return digests


def _array(file: h5py.File, layer: str | None) -> h5py.Dataset:
    return file["features" if layer is None else _layer_path(layer)]


def _called(layer: str | None) -> str:
    return "the features" if layer is None else f"the features of layer {layer}"


def _compare(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for key, value in expected.items():
        if found.get(key) != value:
            raise StoreError(
                f"{name}: {key} is {_brief(found.get(key))} where {_brief(value)} is expected; "
                f"it belongs to something else: {REMEDY}"
            )


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _raw_blocks(
    features: h5py.Dataset, rows: int | None = None
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Blocks of whole chunks, as stored; each is overwritten by the next."""
    chunk = features.chunks[0]
    row_bytes = max(features.shape[1] * features.dtype.itemsize, 1)
    wanted = rows or READ_BYTES // row_bytes
    step = max(chunk, wanted // chunk * chunk)
    buffer = np.empty((min(step, len(features)), features.shape[1]), dtype=features.dtype)
    for start in range(0, len(features), step):
        stop = min(start + step, len(features))
        block = buffer[: stop - start]
        features.read_direct(block, np.s_[start:stop])
        yield start, block


def _read_rows(file: h5py.File) -> RowColumns:
    groups = file.get("groups", {})
    accepted = None
    if "accepted" in file:
        accepted = [json.loads(text) for text in file["accepted"].asstr()[...]]
    return RowColumns(
        file["labels"][...],
        file["ids"].asstr()[...].tolist(),
        {name: groups[name].asstr()[...].tolist() for name in groups},
        accepted,
    )


def write_manifest(
    shards: Sequence[Path], output: Path, *, rows: int, dataset_fingerprint: str
) -> None:
    """Reads all shards of a split, proves that they fit together, and writes the manifest.

    Args:
      shards: the files, all in the manifest's folder, in any order.
      output: the manifest's path.
      rows: of the split.
      dataset_fingerprint: of the dataset as it is now; shards of an older one are refused.

    Raises:
      StoreError: naming the shard that is damaged, that does not agree with the first, or that
        leaves rows missing or doubled.
    """
    if not shards:
        raise StoreError(f"{output}: a manifest of no shard")
    headers = {}
    for path in shards:
        if path.parent != output.parent:
            raise StoreError(f"{path}: not in the folder of its manifest {output}; move it there")
        headers[path] = read_header(path)
    ordered = sorted(shards, key=lambda path: headers[path].shard)
    first = headers[ordered[0]]
    expected = {**first.common(), "rows": rows, "dataset_fingerprint": dataset_fingerprint}
    for number, path in enumerate(ordered):
        header = headers[path]
        _compare(str(path), header.common(), expected)
        if (header.shard, header.shards) != (number, len(ordered)):
            raise StoreError(
                f"{path}: shard {header.shard} of {header.shards} stands where {number} of "
                f"{len(ordered)} is needed, so rows would be missing or doubled; {REMEDY}"
            )
    content = ContentHash()
    records = [verify_shard(path, headers[path], content=content) for path in ordered]
    widths = _common_widths(ordered)
    _compare_probes(ordered, records)
    body = {
        "format": MANIFEST_FORMAT,
        "format_version": FORMAT_VERSION,
        **expected,
        "dimension": widths.pop(None),
        **({"layers": widths} if widths else {}),
        **content.digests(),
        "shards": [vars(record) for record in records],
    }
    body["fingerprint"] = _content_fingerprint(body)
    artifacts.write_json(output, body | {"manifest_sha256": artifacts.fingerprint(body)})


def _common_widths(shards: Sequence[Path]) -> dict[str | None, int]:
    """The length of the features (None) and of each layer's, which all shards have."""
    common: dict[str | None, int] = {}
    for path in shards:
        with _opened(path) as file:
            layers: list[str | None] = [None, *_layers_sha256(file)]
            widths = {layer: int(_array(file, layer).shape[1]) for layer in layers}
        common = common or widths
        if widths[None] != common[None]:
            raise StoreError(
                f"{path}: features of length {widths[None]}, {shards[0].name} has "
                f"{common[None]}; give the backbone a size"
            )
        names = {str(layer): width for layer, width in common.items() if layer is not None}
        found = {str(layer): width for layer, width in widths.items() if layer is not None}
        _compare(str(path), {"layers": found}, {"layers": names})
    return common


def _compare_probes(shards: Sequence[Path], records: Sequence[ShardRecord]) -> None:
    """Refuses a shard of a machine that computes something else than that of the first."""
    probed = [(path, record.probe) for path, record in zip(shards, records, strict=True)]
    known = [(path, probe) for path, probe in probed if probe is not None]
    for path, probe in known[1:]:
        first, reference = known[0]
        if not probes_agree(reference, probe):
            raise StoreError(
                f"{path}: of one image its machine computes other features than that of "
                f"{first.name}: norm {probe['norm']:.6g} where {reference['norm']:.6g} is "
                f"expected; look at that machine's libraries and drivers, then {REMEDY}"
            )
        if probe["sha256"] != reference["sha256"]:
            logger.info(
                "%s: its machine rounds otherwise than that of %s, as is usual", path, first.name
            )


def _content_fingerprint(body: Mapping[str, Any]) -> str:
    """Of what the features are: not of names, files, formats, or how rows are cut into shards.

    What not every store has (layers, accepted labels) changes nothing where it is absent.
    """
    noted = {"format", "format_version", "backbone", "backbone_options", "shards"}
    return artifacts.fingerprint({key: body[key] for key in body.keys() - noted})


class FeatureStore:
    """The features of one split, read through their manifest.

    Every shard is checked against the manifest when it is read: its size and attributes at once,
    its labels, ids and groups and the SHA-256 of its features while they are read. A block of
    `blocks` is handed out before its shard has been read to the end; a mismatch then raises at
    the end of that shard. Later passes of the same store rely on HDF5's own checksums. Files are
    opened by each call, so a store may cross a fork.

    Attributes:
      rows, dimension: n and d.
      layers: name -> width of the features of each block that was asked for; mostly empty.
      split, class_names, num_classes, multi_label: of the dataset.
      dataset_fingerprint, backbone_fingerprint: of what the features were made from.
      backbone, backbone_options, weights_sha256, preprocessing: of the backbone.
      architecture, pretrained_tag: of the backbone's model, None where there is none.
      trained: whether the backbone's weights come from training.
      fingerprint: of the content of all rows, however they are cut into shards.

    Raises:
      StoreError: when the manifest is missing or damaged.
    """

    def __init__(self, manifest: Path) -> None:
        self.path = manifest
        body = _read_manifest(manifest)
        self.split: str = body["split"]
        self.rows: int = body["rows"]
        self.dimension: int = body["dimension"]
        self.layers: dict[str, int] = body.get("layers", {})
        self.class_names: tuple[str, ...] = tuple(body["class_names"])
        self.multi_label: bool = body["multi_label"]
        self.dataset_fingerprint: str = body["dataset_fingerprint"]
        self.backbone: str = body["backbone"]
        self.backbone_options: dict[str, Any] = body["backbone_options"]
        self.backbone_fingerprint: str = body["backbone_fingerprint"]
        self.weights_sha256: str | None = body["weights_sha256"]
        self.architecture: str | None = body["architecture"]
        self.pretrained_tag: str | None = body["pretrained_tag"]
        self.trained: bool = body["trained"]
        self.preprocessing: dict[str, Any] = body["preprocessing"]
        self.fingerprint: str = body["fingerprint"]
        self.shards = tuple(ShardRecord(**shard) for shard in body["shards"])
        self._body = body
        self._verified: set[tuple[str, str | None]] = set()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """int64 [rows], or int8 [rows, classes] for multi-label."""
        return self._rows.labels

    @property
    def ids(self) -> list[str]:
        return self._rows.ids

    @property
    def groups(self) -> dict[str, list[str]]:
        """Subgroup column -> one string a row, empty where unknown."""
        return self._rows.groups

    @property
    def accepted(self) -> list[list[int]] | None:
        """The labels that count as right, a list a row; None where the dataset has none."""
        return self._rows.accepted

    @cached_property
    def _rows(self) -> RowColumns:
        parts = []
        for record in self.shards:
            with self._shard(record) as file:
                part = _read_rows(file)
            if _rows_sha256(part) != record.rows_sha256:
                self._refuse(
                    record, "labels, ids, groups or accepted labels differ from the manifest"
                )
            parts.append(part)
        accepted = [row for part in parts for row in part.accepted or ()]
        return RowColumns(
            np.concatenate([part.labels for part in parts]),
            [row_id for part in parts for row_id in part.ids],
            {name: [v for part in parts for v in part.groups[name]] for name in parts[0].groups},
            None if parts[0].accepted is None else accepted,
        )

    def read(self, dtype: str = "float32", *, layer: str | None = None) -> npt.NDArray[Any]:
        """All features [rows, dimension], or those of a layer [rows, width], in one array."""
        features = np.empty((self.rows, self._width(layer)), dtype=dtype)
        for record in self.shards:
            for start, block in self._blocks_of(record, None, layer):
                features[start : start + len(block)] = block
        return features

    def blocks(
        self, rows: int, *, layer: str | None = None
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Features in order, about `rows` at a time: (first row, float32 [m, dimension]).

        A block never spans two shards and holds whole chunks, so m varies; memory is bounded by
        a block of max(rows, one chunk). Each block is the caller's own.
        """
        for record in self.shards:
            for start, block in self._blocks_of(record, rows, layer):
                yield start, block.astype(np.float32)

    def _width(self, layer: str | None) -> int:
        if layer is None:
            return self.dimension
        if layer not in self.layers:
            raise StoreError(
                f"{self.path}: no features of layer {layer}, only of "
                f"{', '.join(self.layers) or 'none'}; add it to the backbone's layers"
            )
        return self.layers[layer]

    def _blocks_of(
        self, record: ShardRecord, rows: int | None, layer: str | None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        width = self._width(layer)
        check = (record.file, layer) not in self._verified
        digest = hashlib.sha256()
        with self._shard(record) as file:
            features = _array(file, layer)
            if features.shape != (record.stop - record.start, width):
                self._refuse(record, f"{_called(layer)} of shape {features.shape}")
            for start, block in _raw_blocks(features, rows):
                if check:
                    digest.update(block.data)
                yield record.start + start, block
        expected = record.features_sha256 if layer is None else record.layers_sha256[layer]
        if check and digest.hexdigest() != expected:
            self._refuse(record, f"{_called(layer)} differ from the manifest")
        self._verified.add((record.file, layer))

    @contextmanager
    def _shard(self, record: ShardRecord) -> Iterator[h5py.File]:
        """Opens a shard and checks what can be checked without reading its arrays."""
        path = self.path.parent / record.file
        with _opened(path) as file:
            if path.stat().st_size != record.bytes:
                self._refuse(record, f"{path.stat().st_size} bytes, not {record.bytes}")
            header = _header(file, str(path))
            common = header.common()
            _compare(str(path), common, {key: self._body[key] for key in common})
            if (header.start, header.stop) != (record.start, record.stop):
                self._refuse(record, f"holds rows {header.start}..{header.stop}")
            yield file

    def _refuse(self, record: ShardRecord, why: str) -> None:
        raise StoreError(
            f"{self.path.parent / record.file}: not the shard its manifest lists ({why}); {REMEDY}"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        body = artifacts.read_json(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: the manifest is missing; run again to write it") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: the manifest cannot be read ({error}); {REMEDY}") from error
    if not isinstance(body, dict) or body.get("format") != MANIFEST_FORMAT:
        raise StoreError(f"{path}: not a manifest; {REMEDY}")
    if body.get("format_version") != FORMAT_VERSION:
        raise StoreError(f"{path}: format version {body.get('format_version')}; {REMEDY}")
    own = body.pop("manifest_sha256", None)
    if own != artifacts.fingerprint(body):
        raise StoreError(f"{path}: the manifest was changed after it was written; {REMEDY}")
    return body
