"""The console page in a real browser, against a real cluster of three: one walk, with real clicks and keys.

With COTERIE_SCREENSHOTS=folder it leaves pictures there: `make docs-screenshots` makes those of docs/console.md so.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from chromium import CHROMIUM, Browser
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from three_brokers import PERSISTENT, ThreeBrokers

from coterie.streams.client import Client

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=document.title='evil'>"
MANY = 60
ORDERS = "orders.eu.000"


class Shop:
    """A cluster with queues, bindings, and clients that work all the time."""

    def __init__(self, folder: Path) -> None:
        self.cluster = ThreeBrokers(folder, consoles=True)
        self._stopping = threading.Event()
        channel = self.cluster.channel("node1", "definitions")
        for number in range(MANY):
            channel.queue_declare(f"orders.{('eu', 'us', 'asia')[number % 3]}.{number:03}", durable=True)
        self._wire(channel)
        channel.confirm_delivery()
        for number in range(25):
            body = json.dumps({"order": number, "items": [{"sku": f"A-{number}", "count": 2}], "note": EVIL})
            channel.basic_publish("", ORDERS, body, PERSISTENT)
        self._busy = [threading.Thread(target=work) for work in (self._publish, self._consume)]
        for thread in self._busy:
            thread.start()

    def _wire(self, channel: BlockingChannel) -> None:
        channel.queue_declare(EVIL)
        channel.queue_declare("jobs", durable=True)
        channel.queue_declare("prices", durable=True, arguments={"x-last-value-key": "symbol"})
        channel.exchange_declare("events", "topic", durable=True)
        channel.exchange_declare("audit", "fanout", durable=True)
        for queue, key in (
            (ORDERS, "order.eu.*"),
            ("orders.us.001", "order.us.*"),
            ("prices", "price.#"),
            (EVIL, EVIL),
        ):
            channel.queue_bind(queue, "events", key)
        channel.exchange_bind("audit", "events", "#")
        channel.queue_bind("orders.asia.002", "audit")

    def _publish(self) -> None:
        channel = self.cluster.channel("node1", "web shop")
        channel.confirm_delivery()
        with suppress(AMQPError):
            number = 0
            while not self._stopping.is_set():
                number += 1
                for _ in range(2 + number % 7):
                    channel.basic_publish("", "jobs", b"x" * 200, PERSISTENT)
                channel.connection.sleep(0.1)

    def _consume(self) -> None:
        channel = self.cluster.channel("node1", "warehouse")
        channel.basic_qos(prefetch_count=20)
        with suppress(AMQPError):
            for method, _, _ in channel.consume("jobs", inactivity_timeout=0.2):
                if method is not None:
                    channel.basic_ack(method.delivery_tag or 0)
                if self._stopping.is_set():
                    return

    def url(self, node: str = "node1") -> str:
        return f"http://{self.cluster.console[node]}/"

    def close(self) -> None:
        self._stopping.set()
        for thread in self._busy:
            thread.join()
        self.cluster.stop()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if CHROMIUM is None:
        pytest.skip("chromium is missing: `apt-get install chromium` gives it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_CONSOLE_SAMPLE_INTERVAL", "0.5")
        shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.close()


class Reader(Browser):
    """Somebody who looks at the page, and may take pictures."""

    def shot(self, name: str, height: int | None = None) -> None:
        """`height`: of a picture that is not as high as the screen."""
        folder = os.environ.get("COTERIE_SCREENSHOTS")
        if folder:
            self.picture(Path(folder) / f"console-{name}.png", height)

    def log_in(self, url: str, name: str = "guest", password: str = "guest") -> None:
        self.open(url)
        self.fill("input[name=name]", name)
        self.fill("input[name=password]", password)
        self.press("Enter")

    def state(self, member: str) -> str:
        return str(self.run(f"document.querySelector('#members [data-name={member}]').dataset.state"))

    @property
    def over(self) -> int:
        """How much wider the page is than the screen."""
        return int(self.run("document.documentElement.scrollWidth - innerWidth"))

    def focused(self) -> str:
        return str(self.run("document.activeElement.innerText || document.activeElement.id"))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path / "profile")
    reader.size(1280, 900)
    yield reader
    reader.close()


def test_somebody_walks_through_the_page_and_a_node_dies(shop: Shop, reader: Reader) -> None:
    page = reader
    page.system_theme("light")

    # Whoever does not know the password stays outside, and is told so.
    page.log_in(shop.url(), password="wrong")
    page.sees("That is not the name and password of a user")
    assert page.run("document.activeElement.name") == "password"
    page.shot("login")
    page.type("guest")
    page.press("Enter")

    # The cluster, live.
    page.wait("document.querySelectorAll('#cluster .member.in-step').length === 3")
    assert [page.state(f"node{number}") for number in (1, 2, 3)] == ["in step"] * 3
    assert page.run("document.querySelectorAll('#cluster .link.ours').length") == 2
    page.wait("parseFloat(document.querySelector('[data-tile=publish]').textContent) > 0")
    page.wait("[...document.querySelectorAll('[data-series=confirm_mean]')].every((each) => each.textContent !== '–')")
    page.wait("document.querySelectorAll('.chart path.line').length >= 10")
    page.wait("document.querySelector('.chart path.line').getAttribute('d').split('L').length > 12")
    page.shot("overview")

    # Queues: searched, sorted, page by page, and by keyboard.
    page.click(".nav a", "Queues")
    page.sees(f"1 to 50 of {MANY + 3} queues")
    assert page.run("document.title") != "evil"
    page.click("th button", "Ready")
    page.wait("document.querySelector('th[aria-sort=descending]').innerText.includes('Ready')")
    page.wait(f"document.querySelector('tbody a').innerText === '{ORDERS}'")
    page.shot("queues", 560)
    page.click(".pager button", "Next")
    page.sees(f"51 to {MANY + 3} of {MANY + 3} queues")
    page.press("/")
    assert page.focused() == "search"
    page.type("orders.eu")
    page.sees(f"{MANY // 3} matches among {MANY + 3}")
    page.press("Tab")
    page.wait("document.activeElement.closest('th') !== null")
    page.run("document.querySelector('tbody a').focus()")
    first = page.focused()
    looks = "performance.getEntriesByType('resource').filter((each) => each.name.includes('/api/live')).length"
    page.wait(f"{looks} > {page.run(looks)} + 1")
    assert page.focused() == first  # while the numbers are renewed the focus stays where it is
    page.press("ArrowDown")
    second = page.focused()
    assert first != second
    page.press("End")
    page.press("Home")
    assert page.focused() == first
    page.press("Enter")
    page.wait("location.hash.startsWith('#/queue/')")
    assert page.focused() == ORDERS  # the heading of where one has come to

    # One queue: its messages by position, one of them opened; and a reader of a stream.
    page.sees("25", "[data-tile=ready]")
    with Client(shop.cluster.console["node1"], "guest", "guest") as client:
        lease = client.acquire(ORDERS, EVIL, "s", rows=0)
        page.sees("a lease of guest; lag 25, holds 0; unused for", "#leases")
        page.sees(EVIL, "#leases")
        client.end(lease)
    page.click("#messages td button", '"order": 0')
    page.sees('"sku": "A-0"', ".payload")
    page.sees(EVIL, ".payload")
    page.wait("document.querySelectorAll('.chart path.line').length === 5")
    page.size(1280, 1100)
    page.run("scrollTo(0, 0)")
    page.shot("queue")
    page.size(1280, 900)
    page.click("#newest")
    page.sees('"order": 24', "#messages")
    page.fill("#first", "24")
    page.press("Enter")
    page.wait("document.querySelectorAll('#messages tbody tr').length === 2")

    # Publish, with a body that would be markup elsewhere.
    page.click("#publish")
    page.wait("document.activeElement.name === 'payload'")
    page.type(EVIL)
    page.click("dialog button[type=submit]")
    page.sees("1 message published", "#notices")
    page.click("#notices button")
    page.wait("document.querySelectorAll('#messages tbody tr').length === 3")
    page.sees(EVIL, "#messages")

    # Move: from the head of the queue to another one, which must be there.
    page.click("#move")
    page.type("orders.us.nowhere")
    page.fill("dialog input[type=number]", "4")
    page.press("Enter")
    page.sees("orders.us.nowhere", "dialog .wrong")
    page.fill("dialog input", "orders.us.001")
    page.press("Enter")
    page.sees("4 messages moved to orders.us.001", "#notices")
    page.click("#notices button")

    # Escape closes a dialog, and the focus goes back; only the button purges.
    page.click("#purge")
    page.sees("ready messages will be gone for good", "dialog")
    page.shot("purge")
    assert page.focused() == "Cancel"
    page.press("Escape")
    page.wait("!document.querySelector('dialog')")
    assert page.focused() == "Purge"
    page.sees("22", "[data-tile=ready]")
    page.press("Enter")
    page.click("dialog button[type=submit]", "Purge it")
    page.wait("document.querySelector('[data-tile=ready]').textContent === '0'")
    page.sees("The queue is empty", "#messages")
    page.sees("is purged", "#notices")
    page.click("#notices button")

    # A name that would be markup elsewhere is a name here.
    page.open(f"{shop.url()}#/queue/%2F/{quote(EVIL, safe='')}")
    page.sees(EVIL, "h1")
    page.sees("Nobody consumes")

    # The rest: each screen shows what it should, and has one heading.
    for hash, text in (
        ("exchanges", "(the default exchange)"), ("exchanges/bindings", "order.eu.*"), ("connections", "running"),
        ("connections/channels", "confirms"), ("log", "the broker serves"), ("access", "administrator"),
        ("access/permissions", ".*"), ("access/policies", "No policies"), ("access/vhosts", "Virtual host"),
        ("nonsense", "There is no such screen"),
    ):  # fmt: skip
        page.run(f"location.hash = '#/{hash}'")
        page.sees(text, "main")
        assert page.run("document.querySelectorAll('h1').length") == 1
        page.shot(hash.replace("/", "-"), 420)
    page.run("location.hash = '#/exchanges/picture'")
    page.wait("document.querySelectorAll('.wiring .thread').length === 6")
    page.sees("price.#", ".wiring text")
    page.shot("wiring", 560)

    # A node is killed, and the picture changes.
    page.run("location.hash = '#/'")
    shop.cluster.kill("node3")
    page.wait("document.querySelector('#cluster .member.lost')?.dataset.member === 'node3'")
    assert page.state("node3") == "lost"
    page.wait("document.querySelector('#members [data-name=node3] button')?.innerText === 'Forget'")
    page.wait("document.querySelectorAll('#cluster .link.none').length === 2")
    page.run("location.hash = '#/log'")
    page.sees("a broker is lost", "main")
    page.shot("log", 420)
    page.run("location.hash = '#/'")

    # A drain is refused while the others need this node, in the dialog, in words.
    page.click("#drain")
    page.type("node2")
    page.click("dialog button[type=submit]")
    page.sees("That is not “node1”", "dialog")
    page.fill("dialog input", "node1")
    page.click("dialog button[type=submit]")
    page.sees("node3 is lost: bring it back, or forget it first", "dialog .wrong")
    page.press("Escape")

    # Themes: the system's, until one is chosen; and it is remembered.
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.system_theme("dark")
    dark = page.run(ground)
    assert dark != light
    page.click("#theme")
    assert page.run(ground) == light
    page.click("#theme")
    page.system_theme("light")
    assert page.run(ground) == dark
    page.run("scrollTo(0, 0)")
    page.shot("lost")
    page.open(shop.url())
    page.sees("Overview")
    assert page.run(ground) == dark

    # A phone.
    page.click("#theme")
    page.size(360, 740, phone=True)
    for hash, text in (
        ("", "Members"),
        ("queues", "jobs"),
        ("queue/%2F/jobs", "Consumers"),
        ("log", "a broker is lost"),
    ):
        page.run(f"location.hash = '#/{hash}'")
        page.sees(text, "main")
        assert page.over <= 0, hash
        page.shot(f"phone-{hash.partition('/')[0] or 'overview'}")

    # Nothing is asked for while nobody looks, and nothing ever came from elsewhere.
    assert all(url.startswith((shop.url(), "about:", "data:")) for url in page.requests), page.requests
    assert page.said == []
    page.size(1280, 900)
    page.click("#logout")
    page.sees("Log in", "h1")
    page.open(shop.url())
    page.sees("Log in", "h1")
    assert page.run("document.title") == "Log in · Coterie"


def test_a_user_without_rights_has_no_buttons_that_work_and_reads_why(shop: Shop, reader: Reader) -> None:
    page = reader
    page.log_in(shop.url())
    page.sees("Overview", "h1")
    add = """(async () => {
        const { token } = await (await fetch('/api/session')).json();
        const put = (path, body) => fetch(path, { method: 'PUT', headers: { 'X-CSRF-Token': token }, body: JSON.stringify(body) });
        await put('/api/users/viewer', { password: 'viewer', tags: 'management' });
        const done = await put('/api/permissions/%2F/viewer', { configure: '', write: '', read: '^jobs$' });
        return done.status;
    })()"""  # noqa: E501
    assert page.run(add) == 201
    page.click("#logout")
    page.sees("Log in", "h1")
    page.log_in(shop.url(), "viewer", "viewer")
    page.sees("numbers of your own virtual hosts")
    assert page.run("!!document.querySelector('#drain, #cluster')") is False
    assert page.run("[...document.querySelectorAll('.nav a')].some((each) => each.innerText.includes('Log'))") is False
    page.run("location.hash = '#/queue/%2F/orders.us.001'")
    page.sees("viewer may not: publish (needs write on amq.default), move (needs read), purge (needs read), delete")
    page.sees("you need the permission to read the queue", "#messages")
    page.shot("forbidden")
    assert page.run("[...document.querySelectorAll('.title button')].every((each) => each.disabled)") is True
    page.run("location.hash = '#/queue/%2F/jobs'")
    page.wait("document.querySelector('#purge').disabled === false")
    assert page.run("document.querySelector('#delete').disabled") is True
    refused = (
        "import('/static/js/api.js').then(({ ask }) => ask('DELETE', '/api/queues/%2F/jobs')).catch((e) => e.message)"
    )
    assert "token" in page.run(refused).lower() or "refused" in page.run(refused)
    page.run("location.hash = '#/log'")
    page.sees("needs the tag monitoring or administrator", "main")
    page.run("location.hash = '#/access'")
    page.sees("Virtual hosts")
    assert page.run("document.querySelectorAll('.tabs button').length") == 1
    assert page.said == []


def test_polling_stops_while_the_page_is_hidden_and_a_login_that_is_over_leads_back(shop: Shop, reader: Reader) -> None:
    page = reader
    page.log_in(shop.url())
    page.sees("Overview", "h1")

    looks = "performance.getEntriesByType('resource').filter((each) => each.name.includes('/api/live')).length"
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.wait(f"{looks} >= 3")
    asked = [url for url in page.requests if "/api/" in url and not url.endswith(("/api/session", "/api/auth"))]
    assert all("/api/live" in url for url in asked), asked  # one request a turn, and no other
    page.run(f"({hide})(true)")
    before = page.run(looks)
    page.run("new Promise((done) => setTimeout(done, 1600))")  # three turns would have come
    assert page.run(looks) == before
    page.run(f"({hide})(false)")
    page.wait(f"{looks} > {before} + 1")
    end = """(async () => {
        const { token } = await (await fetch('/api/session')).json();
        return (await fetch('/api/session', { method: 'DELETE', headers: { 'X-CSRF-Token': token } })).status;
    })()"""
    assert page.run(end) == 204
    page.sees("The login is over: log in again")


def test_a_node_that_may_not_serve_says_why_and_one_that_is_gone_is_noticed(shop: Shop, reader: Reader) -> None:
    page = reader
    page.log_in(shop.url())
    page.sees("Overview", "h1")
    for node in ("node3", "node2"):
        with suppress(ProcessLookupError):  # a test before this one may have killed it
            shop.cluster.kill(node)
    page.sees("This node does not serve clients", "#alarm")
    page.run("location.hash = '#/queues'")
    page.sees("This node does not serve clients", "#alarm")  # above every screen
    shop.cluster.kill("node1")
    page.sees("No answer", "[role=alert]")
    page.sees("It is asked again", "[role=alert]")
    page.sees("What is shown is of", "[role=alert]")
    assert page.said == []
