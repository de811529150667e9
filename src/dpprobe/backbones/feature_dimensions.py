"""Finds the numbers of features, and of a network's blocks, before features are extracted.

Families without a network compute the number of features from options. For a network, the process
`dpprobe.backbones.describe` builds the network once without weights; a file caches the numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dpprobe import json_values
from dpprobe.backbones import joined
from dpprobe.backbones.hub_files import HubFile
from dpprobe.backbones.options import BackboneOptions
from dpprobe.errors import ConfigError
from dpprobe.files import atomic_writes

FILE = "backbones.json"
FORMAT = 3
LIBRARIES = ("open_clip_torch", "timm", "torch")
_SECONDS = 600  # seconds: enough for models of billions of weights that only the CPU can build


@dataclass
class Dimensions:
    """Sizes, errors and files of backbones, known before extraction, by the backbone's name.

    Attributes:
      known: features per image; None if unknown beforehand.
      blocks: number of a network's blocks; 0 if blocks are not accessible, no entry if unknown.
      faults: errors that loading would raise.
      warnings: reasons why nothing is known about a backbone, one line each.
      hub_files: files that loading fetches from the Hub.
    """

    known: dict[str, int | None] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    hub_files: dict[str, list[HubFile]] = field(default_factory=dict)


def read_dimensions(backbones: Mapping[str, BackboneOptions], results_dir: Path) -> Dimensions:
    """Finds out how many features and blocks backbones have, and which backbones cannot be loaded.

    Backbones must have passed `check_files`. `FILE` in `results_dir` caches results for networks.
    """
    path = results_dir / FILE
    kept = _read_known(path)
    keys = {name: _hash_options(one) for name, one in backbones.items() if one.network}
    dimensions = Dimensions()
    asked = {name: backbones[name] for name, key in keys.items() if key not in kept}
    answers = _ask_process(asked, dimensions) if asked else {}
    new = {keys[name]: one for name, one in answers.items() if "dimension" in one}
    if new:
        kept |= new
        with suppress(OSError):  # without a cache, the next start is just as slow
            atomic_writes.write_text(path, json.dumps({"format": FORMAT, "networks": kept}) + "\n")
    for name, options in backbones.items():
        told = kept.get(keys[name], {}) if options.network else {}
        if "blocks" in told:
            dimensions.blocks[name] = told["blocks"]
            dimensions.hub_files[name] = [
                HubFile(part, place, tuple(names))
                for part, place, names in told.get("hub_files", ())
            ]
        dimension = told.get("dimension") if options.network else options.computed_dimension
        dimensions.known[name] = dimension if dimension is not None else options.dimension
        answer = answers.get(name, {})
        if fault := answer.get("fault"):
            if answer["certain"]:
                dimensions.faults[name] = fault
            else:
                dimensions.warnings.append(f"backbones.{name}: {fault}")
        elif dimension is not None:
            try:
                options.check_dimension(dimension)
            except ConfigError as error:
                dimensions.faults[name] = str(error)
    for name, options in backbones.items():
        if isinstance(options, joined.Options):
            _add_joined(name, options, dimensions)
    return dimensions


def _add_joined(name: str, options: joined.Options, dimensions: Dimensions) -> None:
    """Adds up the dimensions of a joined backbone's members, if all are known."""
    widths = [dimensions.known[member] for member in options.of]
    if None in widths:
        return
    dimensions.known[name] = total = sum(width for width in widths if width is not None)
    try:
        options.check_dimension(total)
    except ConfigError as error:
        dimensions.faults[name] = str(error)


def _hash_options(options: BackboneOptions) -> str:
    """Returns the key under which a network's dimensions are cached."""
    files = [Path(file).stat() for file in options.input_files()]
    return json_values.hash_value(
        {
            "options": options.extraction_params(),
            "files": [[*options.input_files()], *([one.st_size, one.st_mtime_ns] for one in files)],
            "libraries": {name: _library_version(name) for name in LIBRARIES},
        }
    )


def _library_version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _read_known(path: Path) -> dict[str, dict[str, Any]]:
    """Reads cached dimensions; empty if the file is missing or has another format."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] == FORMAT:
            return dict(values["networks"])
    return {}


def _ask_process(
    backbones: Mapping[str, BackboneOptions], dimensions: Dimensions
) -> dict[str, Any]:
    asked = json.dumps({name: one.model_dump(mode="json") for name, one in backbones.items()})
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "dpprobe.backbones.describe"],
            input=asked,
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            check=True,
        )
        answers: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", None) or str(error)
        cause = said.decode(errors="replace") if isinstance(said, bytes) else said
        dimensions.warnings.append(
            f"backbones {', '.join(backbones)}: these backbones could not be checked before "
            f"extraction ({cause.strip().splitlines()[-1]}), so extraction reports their errors; "
            "install the packages of requirements/ where Snakemake runs"
        )
        return {}
    return answers
