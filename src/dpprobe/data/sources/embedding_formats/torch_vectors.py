"""Vectors in .pt files of PyTorch."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Collection, Sequence
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dpprobe.data.sources.embedding_formats.embedding_file import (
    Blocks,
    EmbeddingFile,
    Header,
    explain_damage,
    slice_blocks,
    write_texts,
)
from dpprobe.files.plain_files import require_plain_file, require_proportion

if TYPE_CHECKING:
    import torch


class TorchFile(EmbeddingFile):
    """A .pt file with one tensor, or with tensors by name; no code in the file is run."""

    def _read_tensors(self) -> dict[str, torch.Tensor]:
        import torch

        require_plain_file(self.path)
        with zipfile.ZipFile(self.path) as archive:  # PyTorch before 1.6 wrote no archives
            if any(member.compress_type for member in archive.infolist()):
                raise OSError("it is compressed, but torch.save writes no compressed files")
        other = (
            "it contains objects other than tensors; save it with "
            "torch.save(torch.as_tensor(vectors), ...)"
        )
        try:
            read = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except UnpicklingError as error:  # its text suggests running the file's code
            raise OSError(other) from error
        tensors = read if isinstance(read, dict) else {"": read}
        for name, tensor in tensors.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                raise OSError(other)
            require_proportion(self.path, name, tensor.numel() * tensor.element_size())
        return tensors

    def read_headers(self) -> dict[str, Header]:
        headers = {}
        for name, tensor in self._read_tensors().items():
            kind = str(tensor.dtype).removeprefix("torch.")
            is_number = re.fullmatch("b?float(16|32|64)|u?int(8|16|32|64)", kind) is not None
            if (layout := str(tensor.layout)) != "torch.strided" or tensor.is_meta:
                kind, is_number = f"{kind} without plain numbers ({layout})", False
            headers[name] = Header(tuple(tensor.shape), kind, is_number)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with explain_damage(self.path):
            tensors = self._read_tensors()
            return {name: write_texts(tensors[name].detach().numpy()) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        tensors = self._read_tensors()
        parts = [tensors[name].detach() for name in names]
        # NumPy has no bfloat16; float32 represents all its numbers
        parts = [part.float() if str(part.dtype) == "torch.bfloat16" else part for part in parts]
        longest = 8 * max(math.prod(part.shape[1:]) for part in parts)
        yield from slice_blocks(parts, parts[0].shape[0], longest)
