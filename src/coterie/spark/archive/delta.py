"""Delta: the driver writes the table's log with `deltalake`, without a JVM.

A batch is one commit, with a transaction of the query's id and the batch's number, as Delta's own streaming sink
does it: so a batch that is repeated is seen to be there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from coterie.errors import CoterieError, UserError
from coterie.spark.archive.files import DATE, DataFile
from coterie.spark.archive.place import Place

if TYPE_CHECKING:
    import pyarrow as pa

_STATISTICS: Final = ("queue", "position")
"""Bounds that have one form only. (Times are cut off in Delta's; folders are by date anyway.)"""
_CANNOT: Final = frozenset({"deletionVectors", "columnMapping"})
"""What files alone do not tell."""


class Delta:
    """The table in one folder."""

    def __init__(self, url: str) -> None:
        self.place = Place(url)

    def latest(self, query: str) -> int:
        table = self._table()
        found = None if table is None else table.transaction_version(query)
        return -1 if found is None else found

    def commit(self, query: str, batch: int, files: Sequence[DataFile], schema: pa.Schema) -> bool:
        if batch <= self.latest(query):
            return False
        if not files:
            return True
        properties = CommitProperties(
            custom_metadata={"coterie.query": query, "coterie.batch": str(batch)},
            app_transactions=[Transaction(query, batch)],
        )
        actions = [self._add(each, True) for each in files]
        table = self._table()
        try:
            if table is None:
                create_table_with_add_actions(
                    self.place.url, _schema(schema), actions, "error", [DATE], commit_properties=properties
                )
            else:
                table.create_write_transaction(
                    list(actions), "append", _schema(schema), [DATE], commit_properties=properties
                )
        except DeltaError as error:
            raise CoterieError(f"{self.place}: the batch cannot be committed: {error}") from error
        return True

    def files(self) -> list[DataFile]:
        table = self._table()
        if table is None:
            return []
        found = table.get_add_actions(flatten=True)
        columns = {name: found.column(name).to_pylist() for name in found.schema.names}
        order = sorted(range(found.num_rows), key=lambda row: (columns["modification_time"][row], columns["path"][row]))
        rows = columns.get("num_records") or [0] * found.num_rows
        dates = columns.get(f"partition.{DATE}") or [""] * found.num_rows
        return [
            DataFile(columns["path"][row], str(dates[row]), columns["size_bytes"][row], rows[row] or 0) for row in order
        ]

    def readable(self) -> list[DataFile]:
        """For whoever reads the files themselves. Raises UserError where that is not the table."""
        table = self._table()
        if table is None:
            raise UserError(f"{self.place}: there is no Delta table")
        if more := _CANNOT.intersection(table.protocol().reader_features or ()):
            raise UserError(
                f"{self.place}: the table has {' and '.join(sorted(more))}, which are not read here: write what is to "
                "be replayed to a folder of Parquet files, and replay that"
            )
        return self.files()

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        table = self._table()
        assert table is not None, "these files are from there"
        now = round(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [self._add(each, False) for each in new]
        actions += [RemoveAction(each.path, False, now, each.bytes, {DATE: each.date}) for each in old]
        table.create_write_transaction(actions, "append", table.schema(), [DATE])

    def clean(self, keep: float) -> int:
        table = self._table()
        if table is None:
            return 0
        hours = math.ceil(keep / 3600)
        found = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        if found:
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return len(found)

    def _table(self) -> DeltaTable | None:
        """As it is now."""
        try:
            return DeltaTable(self.place.url)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise CoterieError(f"{self.place}: the Delta table cannot be read: {error}") from error

    @staticmethod
    def _add(file: DataFile, new: bool) -> AddAction:
        bounds = {name: file.bounds[name] for name in _STATISTICS if name in file.bounds}
        told: dict[str, Any] = {
            "numRecords": file.rows, "minValues": {name: low for name, (low, _) in bounds.items()},
            "maxValues": {name: high for name, (_, high) in bounds.items()}, "nullCount": dict.fromkeys(bounds, 0),
        }  # fmt: skip
        now = round(time.time() * 1000)
        return AddAction(file.path, file.bytes, {DATE: file.date}, now, new, json.dumps(told))


def _schema(schema: pa.Schema) -> Any:
    from deltalake import Schema

    return Schema.from_arrow(schema)
