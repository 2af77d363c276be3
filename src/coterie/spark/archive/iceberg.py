"""Iceberg: the driver writes the table's metadata with `pyiceberg`, through a catalog.

A batch is one commit: a snapshot that names the query and the batch, and, as snapshots expire, a property of the table
with the latest batch of each query. The table is partitioned by the day of `arrived`, which readers need not know.
The catalog is a SQLite file in the target, or whichever is configured; a target that is no folder of this machine needs
one that is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.transforms import DayTransform

from coterie.errors import CoterieError, UserError
from coterie.spark.archive.files import DATE, DataFile
from coterie.spark.archive.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG: Final = "catalog.db"
TABLE: Final = "archive.messages"
BATCH: Final = "coterie.batch"
QUERY: Final = "coterie.query"
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Of a new table: a batch is a commit, and there are many."""


class Iceberg:
    """One table of one catalog."""

    def __init__(self, url: str, catalog: Mapping[str, str]) -> None:
        self.place = Place(url)
        given = dict(catalog)
        self._name = given.pop("table", TABLE)
        self._catalog_name = given.pop("name", "archive")
        self._given = given
        if not given and self.place.remote:
            raise UserError(
                f"{self.place}: Iceberg needs a catalog: say which in the table [catalog] of --config, for one as "
                'uri = "sqlite:////var/lib/archive/catalog.db"'
            )

    def latest(self, query: str) -> int:
        table = self._table()
        return -1 if table is None else int(table.properties.get(f"{BATCH}.{query}", -1))

    def commit(self, query: str, batch: int, files: Sequence[DataFile], schema: pa.Schema) -> bool:
        if batch <= self.latest(query):
            return False
        if not files:
            return True
        table = self._table() or self._create(schema)
        try:
            with table.transaction() as change:
                change.set_properties({f"{BATCH}.{query}": str(batch)})
                change.add_files(
                    [self._path(each.path) for each in files], {QUERY: query, BATCH: str(batch)},
                    check_duplicate_files=False,
                )  # fmt: skip
        except (OSError, ValueError, CommitFailedException) as error:
            raise CoterieError(f"{self.place}: the batch cannot be committed: {error}") from error
        return True

    def files(self) -> list[DataFile]:
        table = self._table()
        return [] if table is None else [self._of(each) for each, _ in _in_order(table)]

    def readable(self) -> list[DataFile]:
        """For whoever reads the files themselves. Raises UserError where that is not the table."""
        table = self._table()
        if table is None:
            raise UserError(f"{self.place}: there is no Iceberg table {self._name}")
        found = _in_order(table)
        if any(deleted for _, deleted in found):
            raise UserError(
                f"{self.place}: the table has rows that were deleted without being rewritten, which are not left out "
                "here: rewrite its files first"
            )
        return [self._of(each) for each, _ in found]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        table = self._table()
        assert table is not None, "these files are from there"
        gone = {self._path(each.path) for each in old}
        known = [each for each, _ in _in_order(table) if each.file_path in gone]
        with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
            for each in known:
                snapshot.delete_data_file(each)
            for file in new:
                snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, self._path(file.path)))

    def clean(self, keep: float) -> int:
        table = self._table()
        if table is None:
            return 0
        limit = time.time() - keep
        table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(limit, UTC)).commit()
        table.refresh()
        needed = {self.place.name(path) for path in _needed(table)}
        orphans = [
            path for path, seen in sorted(self.place.files().items())
            if path not in needed and seen.modified <= limit and _is_ours(path)
        ]  # fmt: skip
        for path in orphans:
            self.place.delete(path)
        return sum(path.startswith(DATE) for path in orphans)

    # The catalog.

    def _catalog(self) -> Catalog:
        given = self._given
        if "uri" not in given and "type" not in given:
            self.place.system.create_dir(self.place.path(""))
            given = {
                **given,
                "type": "sql",
                "uri": f"sqlite:///{self.place.path(CATALOG)}",
                "warehouse": self.place.url,
            }
        try:
            return load_catalog(self._catalog_name, **given)
        except Exception as error:  # of any library that a catalog is made with
            raise UserError(f"the catalog of Iceberg: {error}") from error

    def _table(self) -> Table | None:
        """As it is now."""
        try:
            return self._catalog().load_table(self._name)
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema) -> Table:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        rows = schema.remove(schema.get_field_index(DATE))
        with (
            catalog.create_table_transaction(
                self._name, rows, location=self._location(), properties=PROPERTIES
            ) as change,
            change.update_spec() as spec,
        ):
            spec.add_field("arrived", DayTransform(), "arrived_day")
        return catalog.load_table(self._name)

    def _location(self) -> str:
        return self.place.url if self.place.remote else f"file://{self.place.url}"

    def _path(self, name: str) -> str:
        return f"{self._location()}/{name}"

    def _of(self, file: Any) -> DataFile:
        path = self.place.name(file.file_path.replace("file://", "", 1))
        date = next((part[len(DATE) + 1 :] for part in path.split("/") if part.startswith(f"{DATE}=")), "")
        return DataFile(path, date, file.file_size_in_bytes, file.record_count)


def _in_order(table: Table) -> list[tuple[Any, bool]]:
    """Data files, the first that came first, and whether rows of them were deleted."""
    found: dict[str, Any] = {}
    for task in table.scan().plan_files():
        found[task.file.file_path] = (task.file, bool(task.delete_files))
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    order = {
        entry.data_file.file_path: entry.sequence_number or 0
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    return [found[path] for path in sorted(found, key=lambda path: (order.get(path, 0), path))]


def _needed(table: Table) -> Iterator[str]:
    """Files of all snapshots that there are."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list.replace("file://", "", 1)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path.replace("file://", "", 1)
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path.replace("file://", "", 1)


def _is_ours(path: str) -> bool:
    """Data files, manifests and lists of them: not the table's metadata itself, which commits delete."""
    return (path.startswith(f"{DATE}=") and path.endswith(".parquet")) or (
        path.startswith("metadata/") and path.endswith(".avro")
    )
