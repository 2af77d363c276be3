"""What the conformance tests run against: a Coterie server of their own, or any broker with `--amqp-url`.

A broker that is to be tested needs, beside the user of the URL, a user `limited` with the password `limited` that has
the patterns `^limited` in that vhost, and a vhost `closed` that nobody may enter. For RabbitMQ:

    rabbitmqctl add_user limited limited && rabbitmqctl set_permissions limited '^limited' '^limited' '^limited'
    rabbitmqctl add_vhost closed
    pytest tests/conformance --amqp-url amqp://guest:guest@127.0.0.1:5672/
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from differences import RABBITMQ
from raw_client import Connect, Raw


@pytest.fixture(scope="session")
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The broker under test."""
    given = request.config.getoption("--amqp-url")
    if given:
        yield str(given)
        return
    script = Path(__file__).with_name("serve.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the server did not start"
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
        server.stdin.close()
        assert server.wait(30) == 0


@pytest.fixture(scope="session")
def product(broker_url: str) -> str:
    """What the broker calls itself."""
    client = Raw(broker_url)
    properties = client.greet()["server_properties"]
    client.close()
    assert isinstance(properties, dict)
    return str(properties["product"])


@pytest.fixture(autouse=True)
def known_differences(request: pytest.FixtureRequest, product: str) -> None:
    reason = RABBITMQ.get(request.node.originalname or request.node.name)
    if product == "RabbitMQ" and reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture
def connect(broker_url: str) -> Iterator[Connect]:
    """Connections that have not said anything yet; they are closed when the test is over."""
    made: list[Raw] = []

    def one(user: str | None = None, password: str | None = None) -> Raw:
        made.append(Raw(broker_url, user, password))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Raw:
    """An open connection with channel 1 open."""
    return connect().open()


@pytest.fixture
def other(connect: Connect) -> Raw:
    """Another one."""
    return connect().open()


@pytest.fixture
def name(request: pytest.FixtureRequest, broker_url: str) -> Iterator[str]:
    """A name for a queue or an exchange; whatever the test declares by it is deleted when it is over."""
    name = f"conformance.{request.node.name}"[:200]
    yield name
    cleaner = Raw(broker_url).open()
    cleaner.send(1, "queue.delete", queue=name)
    if cleaner.next().name != "queue.delete-ok":
        cleaner.send(1, "channel.close-ok")
        cleaner.reopen()
    cleaner.send(1, "exchange.delete", exchange=name)
    cleaner.next()
    cleaner.close()
