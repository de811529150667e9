"""Usual names of columns, by their content."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

# Columns with images, or paths of image files.
IMAGE_COLUMNS = (
    "image", "img", "path", "file", "filename", "file_name", "filepath", "file_path",
    "image_path", "img_path", "image_file", "image_filename", "image_name",
)  # fmt: skip
# Columns with names of images, which may lack a folder or a suffix.
IMAGE_NAMES = ("image_id", "img_id", "isic_id", "dicom_id", "id")
LABELS = (
    "label", "labels", "class", "class_name", "diagnosis", "dx", "target", "category", "finding",
    "pathology", "outcome", "y",
)  # fmt: skip
PATIENTS = (
    "patient_id", "patient", "patient_number", "subject_id", "subject", "person_id", "person",
    "participant_id", "participant", "donor_id", "donor", "mrn", "pid",
)  # fmt: skip
# Columns of units with several images, such as lesions; used if there is no column of people.
CASES = ("lesion_id", "case_id", "case", "study_id", "exam_id", "visit_id")
SPLITS = ("split", "set", "subset", "partition", "fold")
GROUPS = (
    "sex", "gender", "age", "age_group", "race", "ethnicity", "skin_type", "fitzpatrick", "site",
    "hospital", "center", "centre", "scanner", "device", "camera", "manufacturer",
)  # fmt: skip


def find_usual(columns: Collection[str], names: Iterable[str]) -> Iterator[str]:
    """Yields columns with one of the names, in order, ignoring case and separators (PatientID)."""
    for name in names:
        yield from (column for column in columns if _plain_name(column) == _plain_name(name))


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
