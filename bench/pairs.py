"""Pairs of a dataset and a backbone available offline, fixed in two groups.

Defaults and the rule of `head: auto` are chosen on `chosen_on`. `held_out`, all of it of CIFAR-10,
is not looked at before they are fixed. Features are made once and kept as safetensors, a file per
pair:

    .venv/bin/python bench/pairs.py --group chosen_on
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dpprobe.backbones import pixels, scattering
from dpprobe.errors import DataError
from pairs_images import crops, digits, glyphs, plain_digits
from pairs_rows import (
    CACHE,
    CHECKPOINT,
    CIFAR10,
    Features,
    Files,
    cifar10_mobilenet,
    cifar10_rows,
    mobilenet,
    rows,
    split,
    store,
)

EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
# MobileNetV2's stages as `layers` counts them, of 96, 160 and 320 channels.
STAGE_96, STAGE_160, STAGE_320 = 5, 6, 7
CAT, DOG = 3, 5
Group = Literal["chosen_on", "held_out"]
GROUPS: tuple[Group, ...] = ("chosen_on", "held_out")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A dataset through a backbone.

    Attributes:
      title: for tables and pictures.
      n, dimension, classes: of the training examples, public.
      seed: draws the pair's rows where it has some of a dataset's.
      unequal: the splits whose classes differ in size: of the test, macro accuracy says more.
      build: makes the features.
    """

    name: str
    title: str
    group: Group
    n: int
    dimension: int
    classes: int
    build: Callable[[Files, int], Features] = field(repr=False)
    seed: int = 0
    unequal: Literal["neither", "train", "both"] = "neither"
    epsilons: tuple[float, ...] = EPSILONS

    def path(self, files: Files) -> Path:
        return files.cache / f"{self.name}.safetensors"

    def features(self, files: Files) -> Features:
        """Returns the features, from the cache once they are made.

        Raises:
          DataError: when they are not of the sizes that the pair names.
        """
        path = self.path(files)
        if not path.exists():
            data = self.build(files, self.seed)
            sizes = (*data.train.shape, data.classes)
            if sizes != (self.n, self.dimension, self.classes):
                raise DataError(f"{self.name}: n, d, K are {sizes}; correct them in bench/pairs.py")
            store(path, data._asdict())
        return Features(**load_file(path))

    def tested(self, files: Files) -> int:
        """Returns the number of test examples in the cache."""
        with safe_open(self.path(files), framework="pt") as opened:
            return int(opened.get_slice("test_labels").get_shape()[0])

    def fingerprint(self, files: Files) -> str:
        """Returns the hash of the features in the cache."""
        with safe_open(self.path(files), framework="pt") as opened:
            return str(opened.metadata()["sha256"])


def gaussians(count: int, dimension: int, classes: int, apart: float, seed: int = 0) -> Features:
    """max(0, Q (m_y + z) + c) with z of a power-law spectrum: class means in its upper part."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.arange(1, dimension + 1) ** -0.5
    spread /= spread.norm()
    turn = torch.linalg.qr(torch.randn(dimension, dimension, generator=generator))[0]
    means = torch.zeros(classes, dimension)
    means[:, :64] = apart * spread[:64] * torch.randn(classes, 64, generator=generator)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, classes, (count,), generator=generator)
        drawn = means[labels] + spread * torch.randn(count, dimension, generator=generator)
        return torch.relu(drawn @ turn + 0.5 / math.sqrt(dimension)), labels

    return Features(*draw(count), *draw(3000))


# of the chosen-on group


def crops_mobilenet(files: Files, _: int = 0) -> Features:
    made = rows(files, "crops_128", lambda: crops(12_000), mobilenet(files, 128))
    return split(made, 10_000)


def crops_two_classes(files: Files, seed: int) -> Features:
    """500 and 100 rows of two classes; the test has all others, in the same proportion."""
    made = crops_mobilenet(files)
    features = torch.cat([made.train, made.test])
    labels = torch.cat([made.train_labels, made.test_labels])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    many, few = (order[labels[order] == label] for label in (0, 1))
    test = min(len(many) - 500, 5 * (len(few) - 100)) // 5
    train_rows = torch.cat([many[:500], few[:100]])
    test_rows = torch.cat([many[500 : 500 + 5 * test], few[100 : 100 + test]])
    return Features(
        features[train_rows], labels[train_rows], features[test_rows], labels[test_rows]
    )


def crops_scattering(files: Files, _: int) -> Features:
    options = scattering.Options(size=32, color="rgb")
    made = rows(files, "crops_scattering", lambda: crops(4000), options)
    return split(made, 2000)


def digits_mobilenet(files: Files, _: int) -> Features:
    """The test is the last quarter: of images of which no other copy is seen."""
    made = rows(files, "digits_128", digits, mobilenet(files, 128))
    return split(made, 5391)


def digits_pixels(files: Files, _: int) -> Features:
    return split(rows(files, "digits_pixels", plain_digits, pixels.Options(size=8)), 1438)


def digits_scattering(files: Files, _: int) -> Features:
    options = scattering.Options(size=16)
    return split(rows(files, "digits_scattering", plain_digits, options), 1438)


def glyph_rows(layer: str) -> Callable[[Files, int], Features]:
    def build(files: Files, _: int) -> Features:
        options = mobilenet(files, 64, (STAGE_160,))
        return split(rows(files, "glyphs_64", glyphs, options), 20_000, layer)

    return build


# of the held-out group


def first_half(files: Files, _: int) -> Features:
    data = cifar10_64(files, "features")
    return data._replace(train=data.train[:25_000], train_labels=data.train_labels[:25_000])


def upper_classes(layer: str) -> Callable[[Files, int], Features]:
    """The last five classes at an inner stage."""
    return lambda files, _: of_classes(cifar10_64(files, layer), range(5, 10))


def cifar10_64(files: Files, layer: str) -> Features:
    options = mobilenet(files, 64, (STAGE_96, STAGE_320))
    return cifar10_rows(files, "64", options, layer=layer)


def of_classes(data: Features, classes: range | tuple[int, ...]) -> Features:
    """Returns the rows of some classes, numbered again."""
    parts = []
    for features, labels in (data[:2], data[2:]):
        kept = torch.isin(labels, torch.tensor(list(classes)))
        places = torch.tensor([list(classes).index(int(label)) for label in labels[kept]])
        parts += [features[kept], places]
    return Features(*parts)


def cats_and_dogs(count: int) -> Callable[[Files, int], Features]:
    def build(files: Files, seed: int) -> Features:
        data = of_classes(cifar10_mobilenet(files), (CAT, DOG))
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(data.train), generator=generator)[:count]
        return data._replace(train=data.train[chosen], train_labels=data.train_labels[chosen])

    return build


def long_tail(files: Files, seed: int) -> Features:
    """Class c keeps 100^(-c / 9) of its rows (Cui et al. 2019); the test stays balanced."""
    data = cifar10_mobilenet(files)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=generator)
    kept = []
    for label in range(10):
        of_label = order[data.train_labels[order] == label]
        kept.append(of_label[: round(5000 * 100 ** (-label / 9))])
    chosen = torch.cat(kept).sort().values
    return data._replace(train=data.train[chosen], train_labels=data.train_labels[chosen])


PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair(
            name="digits_pixels", title="digits, pixels", group="chosen_on",
            n=1438, dimension=64, classes=10, build=digits_pixels,
        ),
        Pair(
            name="digits_scattering", title="digits, scattering", group="chosen_on",
            n=1438, dimension=1296, classes=10, build=digits_scattering,
        ),
        Pair(
            name="crops_mobilenet", title="crops, MobileNetV2", group="chosen_on",
            n=10_000, dimension=1280, classes=10, build=crops_mobilenet,
        ),
        Pair(
            name="digits_mobilenet", title="digits, MobileNetV2", group="chosen_on",
            n=5391, dimension=1280, classes=10, build=digits_mobilenet,
        ),
        Pair(
            name="crops_two_classes", title="crops, 2 classes 5:1",
            group="chosen_on", n=600, dimension=1280, classes=2, seed=1, unequal="both",
            build=crops_two_classes,
        ),
        Pair(
            name="glyphs_stage", title="letters, stage of 160", group="chosen_on",
            n=20_000, dimension=160, classes=26, build=glyph_rows(str(STAGE_160)),
        ),
        Pair(
            name="glyphs_mobilenet", title="letters, MobileNetV2 at 64 px", group="chosen_on",
            n=20_000, dimension=1280, classes=26, build=glyph_rows("features"),
        ),
        Pair(
            name="gauss100", title="Gaussians, 100 classes", group="chosen_on",
            n=20_000, dimension=256, classes=100,
            build=lambda _, seed: gaussians(20_000, 256, 100, 0.6, seed),
        ),
        Pair(
            name="crops_scattering", title="crops, colour scattering", group="chosen_on",
            n=2000, dimension=15_552, classes=10, build=crops_scattering,
        ),
        Pair(
            name="cifar10_mobilenet", title="CIFAR-10, MobileNetV2", group="held_out",
            n=50_000, dimension=1280, classes=10, epsilons=(0.1, 0.5, 1.0, 2.0, 4.0, 8.0),
            build=lambda files, _: cifar10_mobilenet(files),
        ),
        Pair(
            name="cifar10_first_half", title="CIFAR-10's first half at 64 px",
            group="held_out", n=25_000, dimension=1280, classes=10, build=first_half,
        ),
        Pair(
            name="cifar10_stage_96", title="CIFAR-10's 5 to 9, stage of 96",
            group="held_out", n=25_000, dimension=96, classes=5,
            build=upper_classes(str(STAGE_96)),
        ),
        Pair(
            name="cifar10_stage_320", title="CIFAR-10's 5 to 9, stage of 320",
            group="held_out", n=25_000, dimension=320, classes=5,
            build=upper_classes(str(STAGE_320)),
        ),
        Pair(
            name="cifar10_pixels", title="CIFAR-10, 8 x 8 pixels", group="held_out",
            n=50_000, dimension=192, classes=10,
            build=lambda files, _: cifar10_rows(
                files, "pixels", pixels.Options(size=8, color="rgb")
            ),
        ),
        Pair(
            name="cifar10_scattering", title="CIFAR-10, colour scattering", group="held_out",
            n=5000, dimension=15_552, classes=10,
            build=lambda files, _: cifar10_rows(
                files, "scattering", scattering.Options(size=32, color="rgb"),
                counts=(5000, 2000),
            ),
        ),
        Pair(
            name="cifar10_long_tail", title="long-tailed CIFAR-10", group="held_out",
            n=12_408, dimension=1280, classes=10, seed=2, unequal="train",
            build=long_tail,
        ),
        Pair(
            name="cats_dogs_500", title="500 cats and dogs", group="held_out",
            n=500, dimension=1280, classes=2, seed=3, build=cats_and_dogs(500),
        ),
        Pair(
            name="cats_dogs_2000", title="2,000 cats and dogs", group="held_out",
            n=2000, dimension=1280, classes=2, seed=4, build=cats_and_dogs(2000),
        ),
    )
}  # fmt: skip


def add_files(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where things lie, and which pairs are meant."""
    parser.add_argument("--group", choices=GROUPS, help="absent: both")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, metavar="PAIR", help="absent: all")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--checkpoint", default=CHECKPOINT, help="MobileNetV2 safetensors")
    parser.add_argument("--cifar10", type=Path, default=CIFAR10, help="folder of parquet files")
    parser.add_argument("--features", type=Path, help="of config/cifar10_methods.yaml, if it ran")


def chosen(arguments: argparse.Namespace) -> tuple[Files, list[Pair]]:
    """Returns where things lie, and the pairs that the options name."""
    files = Files(
        cache=arguments.cache,
        checkpoint=arguments.checkpoint,
        cifar10=arguments.cifar10,
        features=arguments.features,
    )
    pairs = [
        pair
        for pair in PAIRS.values()
        if arguments.group in (None, pair.group)
        and (arguments.pairs is None or pair.name in arguments.pairs)
    ]
    return files, pairs


def main() -> None:
    """Makes the features of pairs that are not there yet; prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_files(parser)
    files, pairs = chosen(parser.parse_args())
    torch.set_num_threads(1)
    for pair in pairs:
        data = pair.features(files)
        sizes = f"n {pair.n:,}, d {pair.dimension:,}, K {pair.classes}"
        print(f"{pair.name:20} {sizes}, {len(data.test):,} test rows", flush=True)


if __name__ == "__main__":
    main()
