"""Options whose rows, units and classes are counted by reading the table, before it is prepared."""

from __future__ import annotations

from dpprobe.data.csv_options import TableOptions
from dpprobe.data.options import ClassUnits


class CountedRows(TableOptions):
    """Counts with `csv_rows`; a separate class, because `csv_rows` imports the table options."""

    def count_rows(self) -> tuple[int, int]:
        from dpprobe.data import csv_rows  # heavy: numpy, pandas and pyarrow

        return csv_rows.count_split(self).rows

    def count_units(self) -> int | None:
        from dpprobe.data import csv_rows  # as above

        return None if self.unit_column is None else csv_rows.count_split(self).patients

    def count_class_units(self) -> ClassUnits:
        from dpprobe.data import csv_rows  # as above

        return csv_rows.count_split(self).classes
