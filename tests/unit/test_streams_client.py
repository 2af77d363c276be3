"""The client of bulk reads, against servers that answer as a script says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from broker_rig import message

from coterie.broker.rows import Row
from coterie.streams import client as client_module
from coterie.streams.client import Client, Tail, Unavailable
from coterie.streams.columns import encode_end, encode_rows

TAIL = Tail("/", "q", 1, 1, 7, 6, 0, 6, 0, 0, "0.0")


def rows(first: int, last: int) -> bytes:
    return encode_rows([Row(n, message(str(n)), False, "ready") for n in range(first, last + 1)])


@contextmanager
def serving(answer: Callable[[int], bytes]) -> Iterator[str]:
    """`answer`: the bytes after which it hangs up, for the first position that is asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer(int(query["first"][0])))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Clock:
    """Time passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(client_module, "time", found)
    return found


def test_a_reader_that_takes_longer_over_a_batch_than_it_is_patient_goes_on_elsewhere(clock: Clock) -> None:
    with (
        serving(lambda first: rows(first, 3)) as dying,
        serving(lambda first: rows(first, 6) + encode_end(3, 3)) as other,
    ):
        found: list[int] = []
        with Client([dying, other], patience=10.0) as client:
            for batch in client.read_range(TAIL):
                found += batch.position
                clock.now += 1000.0
        assert found == [1, 2, 3, 4, 5, 6]


def test_patience_ends_when_nobody_gives_anything(clock: Clock) -> None:
    with (
        serving(lambda first: b"") as one,
        serving(lambda first: b"") as two,
        Client([one, two], patience=5.0) as client,
    ):
        with pytest.raises(Unavailable, match="for 5 s"):
            next(client.read_range(TAIL))
        assert 5.0 <= clock.now < 6.0


def test_a_batch_that_is_cut_off_in_the_middle_is_asked_for_again_whole() -> None:
    whole = rows(1, 3)
    with (
        serving(lambda first: whole + rows(4, 6)[:-5] if first == 1 else rows(first, 6) + encode_end(3, 3)) as server,
        Client(server, patience=10.0) as client,
    ):
        assert [[*batch.position] for batch in client.read_range(TAIL)] == [[1, 2, 3], [4, 5, 6]]
