"""Features in float16, as a GPU computes them, beside the same network's in float32.

ViT-B/16 and ResNet-50 as the catalog has them, on photographs made as in `extract.py`. Of each row
the length of the difference over the length of the row; and the share of rows whose nearest other
row stays the same, which is what a head sees of it. Printed, not written.
"""

from __future__ import annotations

import argparse
import io
from typing import Literal

import torch
from PIL import Image

from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.study import catalog
from extract import photographs

Precision = Literal["float32", "bfloat16", "float16"]
BACKBONES = ("vit_b16", "resnet50")


def main() -> None:
    """Prints a row a backbone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=BACKBONES, help="entries of the catalog")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    print(f"{arguments.rows} photographs on {arguments.device}, {arguments.precision}")
    print("| backbone | difference, median | largest | same nearest row |\n|---|---|---|---|")
    for name in arguments.names:
        wanted = features(name, "float32", arguments)
        actual = features(name, arguments.precision, arguments)
        apart = (actual - wanted).norm(dim=1) / wanted.norm(dim=1)
        same = (nearest(actual) == nearest(wanted)).double().mean()
        print(f"| {name} | {apart.median():.2g} | {apart.max():.2g} | {same:.3f} |", flush=True)


def features(name: str, precision: Precision, arguments: argparse.Namespace) -> torch.Tensor:
    values = dict(catalog.backbone_entries()[name]["options"])
    if not arguments.pretrained:
        model = str(values["model"]).split(".", maxsplit=1)[0]
        values |= {"model": model, "pretrained": False}
    runtime = Runtime(device=arguments.device, precision=precision)
    backbone = loading.load(backbone_options(values), runtime=runtime)
    batches = images(backbone, arguments.rows).split(32)
    return torch.cat([backbone.forward(batch).cpu().double() for batch in batches])


def images(backbone: Backbone, rows: int) -> torch.Tensor:
    pictures = (Image.open(io.BytesIO(data)) for data in photographs(rows))
    return torch.stack([backbone.transform(picture) for picture in pictures])


def nearest(rows: torch.Tensor) -> torch.Tensor:
    """Returns the most alike other row of each, by the angle between them."""
    units = torch.nn.functional.normalize(rows)
    alike = units @ units.T
    return alike.fill_diagonal_(-2).argmax(1)


if __name__ == "__main__":
    main()
