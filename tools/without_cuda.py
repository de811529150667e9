"""Prints the lock of packages without CUDA, Triton, torch and torchvision.

The printed packages have the hashes of the lock. The lock has no build of torch without CUDA,
because such builds are on separate indexes. `make environment TORCH_INDEX=ADDRESS` installs one in
the lock's version. With `--torch` only the names and versions of torch and torchvision are printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TORCH = ("torch", "torchvision")
CUDA = re.compile(r"(nvidia|cuda)-|triton$")


def entries(lock: str) -> Iterator[tuple[str, str]]:
    """Yields the name of each package of a lock, with all lines of its entry."""
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        yield re.split(r"[=\[ ;]", entry, maxsplit=1)[0], entry


def main() -> None:
    lock, *words = sys.argv[1:]
    only_torch = "--torch" in words
    for name, entry in entries(Path(lock).read_text(encoding="utf-8")):
        if only_torch and name in TORCH:
            print(re.split(r"[ ;\\]", entry, maxsplit=1)[0])
        elif not only_torch and name not in TORCH and not CUDA.match(name):
            print(entry)


if __name__ == "__main__":
    main()
