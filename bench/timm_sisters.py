"""Writes src/dpprobe/backbones/timm_sisters.txt: timm's architectures that a checkpoint confuses.

A line has architectures whose tensors have equal names and shapes, without the classifier, but
which compute other features of equal weights and images; `=` joins architectures of equal features.
Takes about an hour of one core and 20 GB of memory. With `--most-weights 3.2e8` it takes half an
hour and 12 GB, compares the smaller networks with the table, and writes nothing. Run it for each
new version of timm.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import timm
import torch

TABLE = Path(__file__).parents[1] / "src/dpprobe/backbones/timm_sisters.txt"
# The number of weights above which networks are left out.
MOST_WEIGHTS = 2e9
# Largest relative difference of features that only rounding explains.
ROUNDING = 1e-4

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def read_shapes(name: str) -> Shapes | None:
    """Returns the names and shapes of an architecture's tensors; None without a classifier."""
    with torch.device("meta"):
        model: Any = timm.create_model(name)
    if not hasattr(model, "reset_classifier"):
        return None
    model.reset_classifier(0)
    return tuple(sorted((key, tuple(value.shape)) for key, value in model.state_dict().items()))


def group_by_shapes(names: Sequence[str]) -> list[list[str]]:
    groups: dict[Shapes, list[str]] = defaultdict(list)
    for name in names:
        if shapes := read_shapes(name):
            groups[shapes].append(name)
    return [group for group in groups.values() if len(group) > 1]


def count_weights(name: str) -> int:
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=0)
    return sum(each.numel() for each in model.parameters())


def split_by_features(names: Sequence[str]) -> Iterator[list[str]]:
    """Yields lists of architectures of a group that compute equal features."""
    torch.manual_seed(0)
    first: Any = timm.create_model(names[0], num_classes=0).eval()
    state = {key: _fill(key, value) for key, value in first.state_dict().items()}
    size = first.pretrained_cfg["input_size"]
    images = torch.rand(2, *size) * 2 - 1
    found: list[tuple[torch.Tensor | None, list[str]]] = []
    for name in names:
        features = _compute(name, state, images)
        for other, equal in found:
            if features is not None and other is not None and _agree(features, other):
                equal.append(name)
                break
        else:
            found.append((features, [name]))
    yield from (equal for _, equal in found)


def _fill(key: str, value: torch.Tensor) -> torch.Tensor:
    """Fills vectors with random numbers: usual initial values would hide that layers differ."""
    if value.ndim != 1 or not value.is_floating_point():
        return value
    if key.endswith(("weight", "gamma", "gamma_1", "gamma_2", "running_var", "scale")):
        return torch.rand_like(value) + 0.5
    return value + 0.1 * torch.randn_like(value)


@torch.inference_mode()
def _compute(
    name: str, state: dict[str, torch.Tensor], images: torch.Tensor
) -> torch.Tensor | None:
    """Computes an architecture's features; None if it does not accept images of this size."""
    attempts: list[dict[str, Any]] = [{"img_size": images.shape[-1]}, {}]
    for arguments in attempts:
        try:
            model: Any = timm.create_model(name, num_classes=0, **arguments).eval()
            model.load_state_dict(state)
            features: torch.Tensor = model(images)
        except (AssertionError, RuntimeError, TypeError, ValueError):
            continue
        return features
    return None


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).norm() <= ROUNDING * other.norm())


def list_sisters(groups: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields one line per group whose architectures compute different features."""
    for group in groups:
        parts = list(split_by_features(group))
        line = " ".join("=".join(part) for part in parts)
        print(line, flush=True)
        if len(parts) > 1:
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    words = "compare networks of at most this size with the table, and do not write it"
    parser.add_argument("--most-weights", type=float, metavar="N", help=words)
    most = parser.parse_args().most_weights
    warnings.simplefilter("ignore")
    groups = group_by_shapes(timm.list_models())
    chosen = [group for group in groups if count_weights(group[0]) <= (most or MOST_WEIGHTS)]
    lines = [f"timm {timm.__version__}", *list_sisters(chosen)]
    if most is None:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    names = {name for group in chosen for name in group}
    first, *known = TABLE.read_text(encoding="utf-8").splitlines()
    stored = [first, *(line for line in known if names & {*line.replace("=", " ").split()})]
    if differing := {*stored} ^ {*lines}:
        sys.exit("\n".join(["these lines differ from the table:", *sorted(differing)]))


if __name__ == "__main__":
    main()
