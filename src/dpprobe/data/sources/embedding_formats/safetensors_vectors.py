"""Vectors in .safetensors files."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dpprobe.data.sources.embedding_formats.embedding_file import (
    Blocks,
    EmbeddingFile,
    Header,
    explain_damage,
    slice_blocks,
    write_texts,
)
from dpprobe.files.array_files import require_short_header


class SafetensorsFile(EmbeddingFile):
    """A .safetensors file with tensors by name."""

    @contextmanager
    def _open_file(self) -> Iterator[Any]:
        from safetensors import safe_open

        with explain_damage(self.path):
            require_short_header(self.path)
            with safe_open(self.path, framework="np") as tensors:
                yield tensors

    def read_headers(self) -> dict[str, Header]:
        headers = {}
        with self._open_file() as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(name)
                kind = part.get_dtype()
                # Supported types exclude bfloat16, booleans and 8-bit floats.
                is_number = re.fullmatch("F(16|32|64)|[IU](8|16|32|64)", kind) is not None
                headers[name] = Header(tuple(part.get_shape()), kind, is_number)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as tensors:
            return {name: write_texts(tensors.get_tensor(name)) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with self._open_file() as tensors:
            parts = [tensors.get_slice(name) for name in names]
            # numbers of safetensors have 8 bytes or fewer
            longest = 8 * max(math.prod(part.get_shape()[1:]) for part in parts)
            yield from slice_blocks(parts, parts[0].get_shape()[0], longest)
