"""Record batches as files: Arrow, Parquet, CSV, and JSON Lines. One batch is in memory, or one row group of Parquet.

CSV and JSON Lines are text: a body that is UTF-8 stands there as it is, any other in base64, and the column
`value_encoding` says which; `properties` are always in base64. Null is an empty field of CSV, an empty text is `""`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from coterie.errors import CoterieError, UserError
from coterie.reader.batches import Batches
from coterie.visible import json_text

GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 64 << 20
"""Of Parquet: a row group has so many of the one or the other, or one batch more."""
ENCODING: Final = "value_encoding"
Seen = Callable[[int], None]
"""Called with the rows that are written by now."""


def write(batches: Batches, sink: IO[bytes], form: str, seen: Seen) -> int:
    """Gives the rows. `form`: one of FORMS."""
    return _WRITERS[form](batches, sink, seen)


@contextmanager
def made(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when all of it is written, over whatever had that name; what is no file, as a pipe, is
    written at once. Raises CoterieError."""
    whole = path.exists() and not path.is_file()
    draft = path if whole else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            if not whole:
                file.flush()
                os.fsync(file.fileno())
        if not whole:
            draft.replace(path)
    except BaseException as error:
        if not whole:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise CoterieError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


def form_of(path: Path) -> str:
    """By the end of its name. Raises UserError."""
    found = path.suffix.lstrip(".").lower()
    if found not in _WRITERS:
        raise UserError(f"{path}: the end of its name is none of .{', .'.join(FORMS)}: say which by --format")
    return found


def _counted(batches: Batches, seen: Seen, count: list[int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        count[0] += batch.num_rows
        seen(count[0])


def _arrow(batches: Batches, sink: IO[bytes], seen: Seen) -> int:
    count = [0]
    with pa.ipc.new_stream(sink, batches.schema) as writer:
        for batch in _counted(batches, seen, count):
            writer.write_batch(batch)
    return count[0]


def _parquet(batches: Batches, sink: IO[bytes], seen: Seen) -> int:
    count = [0]
    group: list[pa.RecordBatch] = []
    with pq.ParquetWriter(sink, batches.schema, compression="zstd") as writer:
        for batch in _counted(batches, seen, count):
            group.append(batch)
            if sum(each.num_rows for each in group) >= GROUP_ROWS or sum(each.nbytes for each in group) >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))
    return count[0]


def _csv(batches: Batches, sink: IO[bytes], seen: Seen) -> int:
    count = [0]
    names = _names(batches.schema)
    kinds = {name: pa.string() for name in names}
    kinds |= {field.name: field.type for field in batches.schema if _is_plain(field.type)}
    wanted = pa.schema([(name, kinds[name]) for name in names])
    with pa_csv.CSVWriter(sink, wanted) as writer:
        for batch in _counted(batches, seen, count):
            columns = _texts(batch)
            columns = {name: _as_text(values) if name == "headers" else values for name, values in columns.items()}
            arrays = [pa.array(columns[name], kinds[name]) for name in names]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=wanted))
    return count[0]


def _jsonl(batches: Batches, sink: IO[bytes], seen: Seen) -> int:
    count = [0]
    names = _names(batches.schema)
    for batch in _counted(batches, seen, count):
        columns = _texts(batch)
        rows = zip(*(columns[name] for name in names), strict=True)
        for row in rows:
            sink.write(json_text(dict(zip(names, row, strict=True))).encode() + b"\n")
    sink.flush()
    return count[0]


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _names(schema: pa.Schema) -> list[str]:
    found: list[str] = []
    for name in schema.names:
        found += [name, ENCODING] if name == "value" else [name]
    return found


def _texts(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Every column as JSON has it."""
    found: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.to_pylist()
        if name == "value":
            pairs = [_body(body) for body in values]
            found[name], found[ENCODING] = [text for text, _ in pairs], [encoding for _, encoding in pairs]
        elif name == "properties":
            found[name] = [base64.b64encode(value).decode() for value in values]
        elif name == "headers":
            found[name] = [None if value is None else dict(value) for value in values]
        elif name == "timestamp":
            found[name] = [None if value is None else _moment(value) for value in values]
        else:
            found[name] = values
    return found


def _body(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "string"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _moment(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _as_text(values: list[Any]) -> list[str | None]:
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


_WRITERS: Final = {"arrow": _arrow, "parquet": _parquet, "csv": _csv, "jsonl": _jsonl}
FORMS: Final = tuple(_WRITERS)
