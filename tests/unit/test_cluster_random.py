"""Random lives of a cluster: whatever is killed, cut off, paused and restarted, nothing that was confirmed is lost,
nothing that was accepted comes back, and all brokers in step are alike."""

from __future__ import annotations

import random

import pytest
from cluster_rig import Client, Cluster, Host

SEEDS = range(12)


class Life:
    """One of them."""

    def __init__(self, seed: int, size: int = 3) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(size, heartbeat_timeout=1.0, lease=0.5)
        self.hosts: list[Host | None] = list(self.cluster.started())
        self.hosts[0].declare()  # type: ignore[union-attr]
        self.clients: list[Client] = []
        self.serial = 0
        self.confirmed: set[str] = set()
        self.accepted: dict[str, Host] = {}
        """What a client has accepted, on which broker."""
        self.heals: list[tuple[float, int, object]] = []

    def serving(self) -> list[Host]:
        return [host for host in self.hosts if host is not None and host.serves]

    def step(self) -> None:
        what = self.rng.random()
        serving = self.serving()
        if what < 0.4 and serving:
            host = self.rng.choice(serving)
            bodies = [f"{self.serial + n}" for n in range(self.rng.randint(1, 5))]
            self.serial += len(bodies)
            host.publish(*bodies)
        elif what < 0.5 and serving and len(self.clients) < 8:
            host = self.rng.choice(serving)
            if "q" in host.vhost.queues:
                self.clients.append(host.consume(prefetch=self.rng.choice((1, 3, 10)), pool=self.rng.choice((0, 0, 4))))
        elif what < 0.85 and self.clients:
            self.settle_some(self.rng.choice(self.clients))
        elif what < 0.88 and self.clients:
            client = self.rng.choice(self.clients)
            if client.host.serves or client.gone:
                self.clients.remove(client)
                self.close(client)
        elif what < 0.92:
            self.fault()

    def close(self, client: Client) -> None:
        if client.host.serves and not client.gone:
            client.cancel()
            client.release()

    def settle_some(self, client: Client) -> None:
        if not client.host.serves or client.gone or not client.held:
            return
        bodies = self.rng.sample(sorted(client.held), self.rng.randint(1, len(client.held)))
        if self.rng.random() < 0.8:
            client.accept(*bodies)
            self.accepted.update(dict.fromkeys(bodies, client.host))
        else:
            client.release(*bodies)

    def fault(self) -> None:
        number = self.rng.randrange(len(self.hosts))
        host = self.hosts[number]
        what = self.rng.random()
        now = self.cluster.world.time
        if host is None:
            self.hosts[number] = self.cluster.start(number)
        elif what < 0.45:
            self.note(host)
            host.kill(power=self.rng.random() < 0.7)
            self.hosts[number] = None
        elif what < 0.8:
            self.heals.append((now + self.rng.uniform(0.2, 3), number, self.cluster.part(host.name)))
        else:
            host.node.pause()
            incarnation = host.node.incarnation
            self.heals.append((now + self.rng.uniform(0.1, 2), number, lambda: host.node.resume(incarnation)))

    def note(self, host: Host) -> None:
        self.confirmed.update(host.confirmed)
        self.clients = [client for client in self.clients if client.host is not host]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.cluster.run(self.rng.choice((0.001, 0.01, 0.05)))
            for heal in [each for each in self.heals if each[0] <= self.cluster.world.time]:
                self.heals.remove(heal)
                heal[2]()  # type: ignore[operator]
        for heal in self.heals:
            heal[2]()  # type: ignore[operator]
        for number, host in enumerate(self.hosts):
            if host is None:
                self.hosts[number] = self.cluster.start(number)
        self.cluster.until(lambda: len(self.serving()) == len(self.hosts), seconds=60)
        self.cluster.run(2)
        self.cluster.check_alike()
        for serving in self.serving():
            self.confirmed.update(serving.confirmed)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_confirmed_is_lost_nothing_accepted_comes_back_and_all_brokers_are_alike(seed: int) -> None:
    life = Life(seed)
    life.run(250)
    firm = {body for body, host in life.accepted.items() if host.serves and not host.was_cut_off}
    for client in life.clients:
        life.close(client)
    last = life.serving()[0].consume()
    got: list[str] = []
    for _ in range(60):
        life.cluster.run(0.1)
        got += list(last.held)
        last.accept()
    assert len(got) == len(set(got))
    lost = life.confirmed - set(got) - life.accepted.keys()
    assert not lost, sorted(lost)[:10]
    back = firm & set(got)
    assert not back, sorted(back)[:10]
