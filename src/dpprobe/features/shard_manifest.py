"""The manifest of a split: proves that its shards fit together, and records their hashes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe import json_values
from dpprobe.backbones.feature_digest import probes_agree
from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import StoreError
from dpprobe.features.shard_file import check_equal, read_header
from dpprobe.features.shard_header import FORMAT_VERSION, REMEDY
from dpprobe.features.shard_verification import ContentHash, ShardRecord, verify_shard
from dpprobe.files import json_files

logger = logging.getLogger("dpprobe")

MANIFEST_FORMAT = "dpprobe-manifest"


def write_manifest(
    shards: Sequence[Path],
    output: Path,
    *,
    rows: int,
    dataset_fingerprint: str,
    copies: Mapping[str, Mapping[str, int | str]] | None = None,
    promise: PromiseFacts | None = None,
) -> None:
    """Reads all shards of a split, proves that they fit together, and writes the manifest.

    Raises StoreError for a shard that is damaged, or that does not fit the other shards.

    Args:
      shards: the files, all in the manifest's folder, in any order.
      dataset_fingerprint: the current dataset's fingerprint; shards with another are refused.
      copies: the split's counts of copies in `DatasetInfo`; None if unknown.
      promise: the dataset's facts that a guarantee depends on, except `copies`; None if unknown.
    """
    if not shards:
        raise StoreError(f"{output}: a manifest needs at least one shard")
    headers = {}
    for path in shards:
        if path.parent != output.parent:
            raise StoreError(f"{path}: not in the folder of its manifest {output}; move it there")
        headers[path] = read_header(path)
    ordered = sorted(shards, key=lambda path: headers[path].shard)
    first = headers[ordered[0]]
    expected = {**first.common_part(), "rows": rows, "dataset_fingerprint": dataset_fingerprint}
    for number, path in enumerate(ordered):
        header = headers[path]
        check_equal(str(path), header.common_part(), expected)
        if (header.shard, header.shards) != (number, len(ordered)):
            raise StoreError(
                f"{path}: shard {header.shard} of {header.shards} was found instead of shard "
                f"{number} of {len(ordered)}, so rows would be missing or duplicated; {REMEDY}"
            )
    content = ContentHash()
    records = [verify_shard(path, headers[path], content) for path in ordered]
    widths = content.widths
    _compare_probes(ordered, records)
    body = {
        "format": MANIFEST_FORMAT,
        "format_version": FORMAT_VERSION,
        **expected,
        "dimension": widths.pop(None),
        **({"nulls": content.nulls} if content.nulls else {}),
        **({"layers": widths} if widths else {}),
        **({} if copies is None else {"copies": copies}),
        **({} if promise is None else {"promise": promise.to_dict()}),
        **content.make_digests(),
        "shards": [vars(record) for record in records],
    }
    body["fingerprint"] = _content_fingerprint(body)
    json_files.write_json(output, body | {"manifest_sha256": json_values.hash_value(body)})


def _compare_probes(shards: Sequence[Path], records: Sequence[ShardRecord]) -> None:
    """Raises StoreError if a shard's machine computes other features than the first shard's."""
    probed = [(path, record.probe) for path, record in zip(shards, records, strict=True)]
    known = [(path, probe) for path, probe in probed if probe is not None]
    for path, probe in known[1:]:
        first, reference = known[0]
        if not probes_agree(reference, probe):
            raise StoreError(
                f"{path}: the machine that wrote it computes different features for the same "
                f"image than the machine of {first.name}: norm {probe['norm']:.6g} instead of "
                f"{reference['norm']:.6g}; check the libraries and drivers of that machine, then "
                f"{REMEDY}"
            )


def _content_fingerprint(body: Mapping[str, Any]) -> str:
    """Hashes the features' content, independent of names, files, formats and number of shards."""
    noted = {
        "format",
        "format_version",
        "backbone",
        "backbone_options",
        "copies",
        "promise",
        "shards",
    }
    return json_values.hash_value({key: body[key] for key in body.keys() - noted})


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest; raises StoreError if it is missing, damaged or of another format.

    Raises DataError if a newer version of dpprobe wrote the manifest.
    """
    try:
        body = json_files.read_json(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: the manifest is missing; run again to recreate it") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: the manifest cannot be read ({error}); {REMEDY}") from error
    if not isinstance(body, dict) or body.get("format") != MANIFEST_FORMAT:
        raise StoreError(f"{path}: not a manifest; {REMEDY}")
    if body.get("format_version") != FORMAT_VERSION:
        json_files.check_not_newer(path, body, kind=MANIFEST_FORMAT, version=FORMAT_VERSION)
        raise StoreError(f"{path}: format version {body.get('format_version')}; {REMEDY}")
    written = body.pop("manifest_sha256", None)
    try:
        whole = written == json_values.hash_value(body)
    except ValueError:  # `hash_value` refuses NaN
        whole = False
    if not whole:
        raise StoreError(f"{path}: the manifest was changed after it was written; {REMEDY}")
    return body
