"""Public files: the dimension is checked, and joined comparisons keep the files of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpprobe.errors import DataError
from dpprobe.features.public_features import open_rows
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs
from tests.support.refusals import refuses


def test_features_of_another_dimension_are_refused(tmp_path: Path) -> None:
    np.save(path := tmp_path / "public.npy", np.ones((3, 4)))
    public = PublicInputs(open_rows=open_rows)
    assert public.open_features("public", str(path), dimension=4).rows == 3
    with refuses(DataError, "normalize.public", "public.npy", "4", "6"):
        public.open_features("normalize.public", str(path), dimension=6)


@pytest.mark.parametrize("turned", [False, True])
def test_joined_comparisons_have_the_files_of_both(tmp_path: Path, turned: bool) -> None:
    np.save(path := tmp_path / "public.npy", np.ones((3, 4)))
    both = [PublicInputs(hashes={"a": "1"}, open_rows=open_rows), NOTHING_CHECKED]
    first, second = both[::-1] if turned else both
    joined = first.join(second).join(PublicInputs(hashes={"b": "2"}))
    assert joined.hashes == {"a": "1", "b": "2"}
    assert joined.open_features("public", str(path), dimension=4).dimension == 4
