"""Opens files of vectors by their endings.

The formats are NumPy's .npy and .npz, safetensors, parquet with list columns, PyTorch's .pt, HDF5,
and AnnData's .h5ad.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpprobe.data.option_paths import match_files
from dpprobe.data.sources.embedding_formats.anndata_vectors import AnnDataFile
from dpprobe.data.sources.embedding_formats.embedding_file import EmbeddingFile
from dpprobe.data.sources.embedding_formats.hdf5_vectors import Hdf5File
from dpprobe.data.sources.embedding_formats.numpy_vectors import NumpyFile, NumpyParts
from dpprobe.data.sources.embedding_formats.parquet_vectors import ParquetFiles
from dpprobe.data.sources.embedding_formats.safetensors_vectors import SafetensorsFile
from dpprobe.data.sources.embedding_formats.torch_vectors import TorchFile
from dpprobe.errors import ConfigError

FORMATS: dict[str, Callable[[Path], EmbeddingFile]] = {
    ".h5": Hdf5File,
    ".h5ad": AnnDataFile,
    ".hdf5": Hdf5File,
    ".npy": NumpyFile,
    ".npz": NumpyFile,
    ".parquet": ParquetFiles,
    ".pq": ParquetFiles,
    ".pt": TorchFile,
    ".safetensors": SafetensorsFile,
}
# Formats for which a glob pattern may match several files.
_PARTS: dict[str, Callable[[Path], EmbeddingFile]] = {
    ".npy": NumpyParts,
    ".parquet": ParquetFiles,
    ".pq": ParquetFiles,
}


def open_embeddings(path: Path, *, option: str) -> EmbeddingFile:
    """Opens a file of vectors; raises ConfigError if it is missing or has an unknown suffix."""
    make = FORMATS.get(path.suffix.lower())
    if make is None:
        raise ConfigError(
            f"{option}: {path}: not the name of a file of vectors; name a file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if not path.is_file():
        make = _PARTS.get(path.suffix.lower())
        if make is None or path.exists() or not match_files(path):  # neither folder nor device
            raise ConfigError(f"{option}: no file {path}; correct the path or put the file there")
    return make(path)
