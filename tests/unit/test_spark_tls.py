"""The publisher of the Spark sink over TLS: whom it trusts, and what it says of others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tls import Authority

from coterie.errors import UserError
from coterie.spark.link import Refused
from coterie.spark.options import Login, Server
from coterie.spark.publisher import Brokers, Bulk, Publisher


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def server(ours: Authority) -> Iterator[Server]:
    """A node that speaks AMQP over TLS alone."""
    files = ours.member("node")
    command = [
        sys.executable,
        "-m",
        "coterie",
        "node",
        "--json",
        "--amqp",
        "",
        "--amqps",
        "127.0.0.1:0",
        "--console",
        "",
    ]
    process = subprocess.Popen(
        [*command, "--tls-cert", files["tls_cert"], "--tls-key", files["tls_key"]], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the node did not start"
        text += line
    (where,) = [value for value in _texts(json.loads(text)) if value.startswith("amqps://") or "127.0.0.1:" in value]
    yield Server("amqps", "127.0.0.1", int(where.rpartition(":")[2]))
    process.terminate()
    process.communicate(timeout=60)


def _texts(found: object) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from _texts(value)
    elif isinstance(found, list):
        for value in found:
            yield from _texts(value)


def test_a_broker_is_trusted_by_its_authority_and_by_its_name(server: Server, ours: Authority, tmp_path: Path) -> None:
    with Publisher(Brokers((server,), Login("guest", "guest", tls_ca=ours.ca, tls_hostname=False))) as publisher:
        publisher.flush()
        assert publisher.connections == 1
    with pytest.raises(Refused, match=r"its certificate is not trusted: .*see tlsCa"):
        Publisher(Brokers((server,), Login("guest", "guest", tls_ca=Authority(tmp_path, "theirs").ca)))
    with pytest.raises(Refused, match=r"its certificate is not trusted: .*127.0.0.1"):
        Publisher(Brokers((server,), Login("guest", "guest", tls_ca=ours.ca)))


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
