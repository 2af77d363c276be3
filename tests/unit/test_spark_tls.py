"""The sink and the source of Spark over TLS: whom it trusts, and what it says of others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from test_tls import Authority

import coterie.testing
from coterie.errors import UserError
from coterie.spark.link import Refused
from coterie.spark.options import Login, Server
from coterie.spark.publisher import Brokers, Bulk, Publisher
from coterie.spark.sink import SinkOptions
from coterie.spark.source import QueueStream
from coterie.spark.source_options import SourceOptions


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def doors(ours: Authority) -> Iterator[tuple[Server, str]]:
    """A node that speaks nothing without TLS: where its AMQP is, and its console."""
    files = ours.member("node")
    command = [
        sys.executable, "-m", "coterie", "node", "--json", "--amqp", "", "--amqps", "127.0.0.1:0", "--console",
        "127.0.0.1:0", "--console-tls", "true", "--tls-cert", files["tls_cert"], "--tls-key", files["tls_key"],
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the node did not start"
        text += line
    told = json.loads(text)
    yield Server("amqps", "127.0.0.1", int(told["amqp"][0].rpartition(":")[2])), f"https://{told['console']}"
    process.terminate()
    process.communicate(timeout=60)


def test_a_broker_is_trusted_by_its_authority_and_by_its_name(
    doors: tuple[Server, str], ours: Authority, tmp_path: Path
) -> None:
    server, console = doors
    theirs = Authority(tmp_path, "theirs").ca
    with Publisher(Brokers((server,), Login("guest", "guest", tls_ca=ours.ca, tls_hostname=False))) as publisher:
        publisher.flush()
        assert publisher.connections == 1
    with pytest.raises(Refused, match=r"its certificate is not trusted: .*see tlsCa"):
        Publisher(Brokers((server,), Login("guest", "guest", tls_ca=theirs)))
    with pytest.raises(Refused, match=r"its certificate is not trusted: .*127.0.0.1"):
        Publisher(Brokers((server,), Login("guest", "guest", tls_ca=ours.ca)))
    for ca, by_name, text in (
        (ours.ca, "false", "no queue 'q' in vhost '/'"),
        (ours.ca, "true", "nobody could answer for 0.1 s.*127.0.0.1"),
        (theirs, "false", "nobody could answer for 0.1 s.*[cC]ertificate"),
    ):
        options = {"servers": console, "queue": "q", "tlsCa": ca, "tlsHostname": by_name, "connectTimeout": "100ms"}
        reader = QueueStream(SourceOptions.of(options), StructType([]))
        with pytest.raises(UserError, match=text):
            reader.latestOffset({}, ReadAllAvailable())
        reader.stop()


def test_a_broker_that_wants_a_certificate_gets_that_of_the_options(ours: Authority) -> None:
    door = {**ours.member("node"), "amqps": "127.0.0.1:0", "tls_clients": "required"}
    mine = ours.member("spark")
    with coterie.testing.broker(settings={"listen": door}) as node:
        options = {
            "servers": f"amqps://127.0.0.1:{node._running().endpoints[-1].port}", "tlsCa": ours.ca,
            "tlsHostname": "false", "connectTimeout": "200ms",
        }  # fmt: skip
        with pytest.raises(Refused, match="no broker can be reached"):
            Publisher(SinkOptions.of(options).brokers)
        options |= {"tlsCert": mine["tls_cert"], "tlsKey": mine["tls_key"], "connectTimeout": "30s"}
        with Publisher(SinkOptions.of(options).brokers) as publisher:
            publisher.flush()
            assert publisher.connections == 1


@pytest.mark.parametrize(
    ("login", "text"),
    [
        (Login("guest", "guest", tls_ca="/no/such/file"), "option tlsCa: /no/such/file"),
        (Login("guest", "guest", tls_cert="/no/such/file"), "options tlsCert and tlsKey: /no/such/file"),
    ],
)
def test_files_that_are_no_good_are_named(login: Login, text: str) -> None:
    with pytest.raises(UserError, match=text):
        login.context()


def test_what_is_confirmed_out_of_order_is_not_sent_again() -> None:
    bulk = Bulk(b"abbccc", (1, 3, 6), confirmed=1, others={2})
    assert bulk.left() == [b"bb"]
