"""Queues in the lake, and back: `coterie archive` and `coterie replay` (docs/lake.md).

An archive is a stream from queues to a table of files. Its rows come from `rows`, the only part that knows what is
read; whatever gives the same rows for the same batch can be archived. How a batch gets into a table exactly once is up
to the table: `parquet`, `delta`, `iceberg`.
"""
