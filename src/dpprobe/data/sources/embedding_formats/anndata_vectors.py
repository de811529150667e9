"""Vectors in AnnData's .h5ad files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpprobe.data.sources.embedding_formats.embedding_file import (
    SHORT_FLOATS,
    Header,
    numpy_header,
)
from dpprobe.data.sources.embedding_formats.hdf5_vectors import Hdf5File, read_obs
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    import h5py


class AnnDataFile(Hdf5File):
    """An .h5ad file of AnnData: vectors in `X` or `obsm`, and columns in `obs`."""

    @contextmanager
    def _open_file(self) -> Iterator[h5py.File]:
        import h5py

        with super()._open_file() as file:
            for name in ("obs", "obsm"):
                if name in file and not isinstance(file[name], h5py.Group):
                    raise ConfigError(
                        f"{self.path}: `{name}` is one array, as AnnData before version 0.7 wrote "
                        "it; open the file with anndata and save it again"
                    )
            yield file

    @property
    def columns(self) -> tuple[str, ...]:
        with self._open_file() as file:
            columns = file["obs"].items()
            return tuple(name for name, each in columns if name[:2] != "__" and _is_column(each))

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as file:
            return {name: read_obs(file["obs"][name]) for name in names}

    def column_types(self, name: str) -> set[str]:
        with self._open_file() as file:
            column = file["obs"][name]
            if not hasattr(column, "dtype"):
                column = column["categories" if "codes" in column else "values"]
            kind = str(getattr(column, "dtype", ""))
            return {SHORT_FLOATS.get(kind, kind)}

    def read_headers(self) -> dict[str, Header]:
        with self._open_file() as file:
            names = ("X", *(f"obsm/{name}" for name in file.get("obsm", ())))
            parts = {name: file.get(name) for name in names}
            return {
                name: numpy_header(part.shape, part.dtype)
                for name, part in parts.items()
                if getattr(part, "ndim", 0) == 2
            }

    def find_vectors(self, name: str | None) -> str:
        written = name or "X"
        with self._open_file() as file:
            kind = file[written].attrs.get("encoding-type") if written in file else None
        if kind == "dataframe":
            key = written.removeprefix("obsm/")
            raise ConfigError(
                f"{self.path}: vectors {written!r}: a data frame, not an array; run "
                f"`adata.obsm[{key!r}] = adata.obsm[{key!r}].to_numpy()`, and save the file again"
            )
        if kind in ("csr_matrix", "csc_matrix") and (name or not self.list_vectors()):
            raise ConfigError(
                f"{self.path}: vectors {written!r}: a sparse matrix, mostly of counts; save "
                "vectors of a model as an array in obsm, or matrix.toarray()"
            )
        return super().find_vectors(name)


def _is_column(column: Any) -> bool:
    """Returns True for an array with one value per row, or a group of arrays for one column."""
    if hasattr(column, "dtype"):
        return column.ndim == 1 and column.dtype.names is None
    return {"codes", "categories"} <= {*column} or {"values", "mask"} <= {*column}
