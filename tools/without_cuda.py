"""Prints the lock of packages without CUDA, Triton, torch and torchvision.

Hash for hash what the given lock has. A build of torch without CUDA is no part of
it, as such builds are on indexes of their own: `make environment TORCH_INDEX=ADDRESS` installs one,
of the version that the lock names. With `--torch` the names and versions of those two are printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TORCH = ("torch", "torchvision")
CUDA = re.compile(r"(nvidia|cuda)-|triton$")


def entries(lock: str) -> Iterator[tuple[str, str]]:
    """Yields the name of each package of a lock, and all lines on it."""
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
