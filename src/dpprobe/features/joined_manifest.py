"""The manifest of a joined backbone, which names its members' manifests and copies no features."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe import json_values
from dpprobe.backbones.joined import DTYPE, Options
from dpprobe.errors import ConfigError, StoreError
from dpprobe.features.shard_header import FORMAT_VERSION
from dpprobe.features.shard_manifest import MANIFEST_FORMAT, read_manifest
from dpprobe.files import json_files

# The facts that must be equal for all members.
_COMMON = (
    "split",
    "rows",
    "dataset_fingerprint",
    "rows_sha256",
    "class_names",
    "multi_label",
    "nulls",
    "copies",
    "promise",
)


def write_joined_manifest(
    members: Sequence[Path], output: Path, *, backbone: str, options: Options
) -> None:
    """Writes the manifest of joined features, which are read from the members' shards.

    Raises StoreError if the members' rows differ, or are divided differently into shards. Raises
    ConfigError if the number of features is not the `dimension` of the options.

    Args:
      members: the members' manifests of one split, in the order of `options.of`.
      backbone: the joined backbone's name in the study.
    """
    bodies = [read_manifest(path) for path in members]
    first = bodies[0]
    ranges = [_list_ranges(body) for body in bodies]
    for path, body, rows in zip(members[1:], bodies[1:], ranges[1:], strict=True):
        different = [key for key in _COMMON if body.get(key) != first.get(key)]
        if different or rows != ranges[0]:
            raise StoreError(
                f"{path}: {different[0] if different else 'division into shards'} differs from "
                f"{members[0]}, so the features of {backbone} would belong to different rows; "
                "delete both folders and run again"
            )
    dimension = sum(body["dimension"] for body in bodies)
    try:
        options.check_dimension(dimension)
    except ConfigError as error:
        raise ConfigError(f"backbones.{backbone}: {error}") from None
    folders = [Path(os.path.relpath(path.parent, output.parent)).as_posix() for path in members]
    fingerprints = [body["fingerprint"] for body in bodies]
    content = {
        **{key: first[key] for key in _COMMON if key in first},
        "dtype": DTYPE,
        "dimension": dimension,
        "backbone_fingerprint": json_values.hash_value(
            [body["backbone_fingerprint"] for body in bodies]
        ),
        "features_sha256": json_values.hash_value([body["features_sha256"] for body in bodies]),
    }
    body = {
        "format": MANIFEST_FORMAT,
        "format_version": FORMAT_VERSION,
        **content,
        "backbone": backbone,
        "backbone_options": {
            **options.extraction_params(),
            "members": [_describe_member(each) for each in bodies],
        },
        "weights_sha256": None,
        "architecture": None,
        "pretrained_tag": None,
        "trained": any(each["trained"] for each in bodies),
        "preprocessing": {},
        "fingerprint": json_values.hash_value({"dtype": DTYPE, "joined": fingerprints}),
        "members": [
            {
                "manifest": f"{folder}/{path.name}",
                "fingerprint": fingerprint,
            }
            for folder, path, fingerprint in zip(folders, members, fingerprints, strict=True)
        ],
        # labels and ids are read from the first member's shards
        "shards": [{**one, "file": f"{folders[0]}/{one['file']}"} for one in first["shards"]],
    }
    json_files.write_json(output, body | {"manifest_sha256": json_values.hash_value(body)})


def _list_ranges(body: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(shard["start"], shard["stop"]) for shard in body["shards"]]


def _describe_member(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts about a member that privacy statements contain."""
    return {
        "backbone": body["backbone"],
        "backbone_options": body["backbone_options"],
        "trained": body["trained"],
        "weights_sha256": body["weights_sha256"],
    }
