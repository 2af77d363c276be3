"""Sessions of Spark Connect: Spark runs in a server, and this process has neither a JVM nor a context.

Promises: whether the server is there is known within seconds; it gets this package, for this session alone; if it goes
away in the middle, it is waited for for about a minute.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coterie.errors import UserError
from coterie.extras import need
from coterie.spark.driver import environment
from coterie.spark.package import packed
from coterie.spark.reach import REACH_SECONDS, reach
from coterie.spark.trouble import explain, reported, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as Remote

RETRIES = 6
"""Attempts to reach a server again: each waits four times as long as the one before, together about 70 s."""


@contextmanager
def remote(master: str, settings: Mapping[str, str], folder: Path) -> Iterator[SparkSession]:
    """A session at sc://HOST:PORT. Of the settings, those of SQL are the session's; all others are the server's."""
    need("grpc", "grpc_status", "google.rpc", "zstandard", extra="connect")
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as Remote

    try:
        where = DefaultChannelBuilder(master)
    except ValueError as error:  # PySpark's own errors of values are ValueErrors too
        raise UserError(f"--master {shown(master)}: {explain(error)}") from None
    _knock(master, where)
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error that follows says it, in one line
    # The variable makes the functions of pyspark.sql remote ones.
    with environment({"SPARK_CONNECT_MODE_ENABLED": "1"}), reported(master):
        spark = Remote.builder.remote(master).create()
        try:
            _retry(spark, RETRIES)
            for key, value in settings.items():
                if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
                    spark.conf.set(key, value)
            spark.addArtifacts(str(packed(folder)), pyfile=True)
            yield cast("SparkSession", spark)
        finally:
            _retry(spark, 1)
            spark.stop()


def _knock(master: str, where: DefaultChannelBuilder) -> None:
    """Return if there is a server that speaks this protocol; raise UserError if not."""
    import grpc

    host, _, port = where.endpoint.rpartition(":")
    reach(shown(master), [(host.strip("[]"), int(port))])
    channel = where.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=2 * REACH_SECONDS)
    except grpc.FutureTimeoutError:
        raise UserError(f"--master {shown(master)}: somebody is there, but no Spark Connect server answers") from None
    finally:
        channel.close()


def _retry(spark: Remote, times: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=times)])
