"""The shop of the broker's demonstration: where its orders go, and what is in one.

An exchange gives every order to two queues: `orders`, which clients consume, and `sales`, which Spark reads. What Spark
finds worth telling comes back by the same exchange, into the queue `alerts`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

EXCHANGE = "shop"
QUEUE, SALES, ALERTS = "orders", "sales", "alerts"
BINDINGS: Sequence[tuple[str, str]] = (
    (QUEUE, "order.*"), (SALES, "order.*"), (SALES, "closing"), (ALERTS, "alert.*"),
)  # fmt: skip
ALERT_IDS = 10_000
"""Message ids that the queue of the alerts remembers: one that is published again is there already."""

PRODUCTS: Sequence[tuple[str, str, float]] = (
    ("espresso", "coffee", 2.2), ("latte", "coffee", 3.4), ("earl grey", "tea", 2.6), ("sencha", "tea", 3.1),
    ("cheesecake", "cake", 4.2), ("brownie", "cake", 2.9),
)  # fmt: skip
"""Name, kind, and price of a piece in euros."""
PIECES_MAX = 5
SHARE = 1.05
"""A second in which one kind makes so many times what a kind makes on average is worth an alert."""


class Orders:
    """What customers wish."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def write(self, name: str) -> bytes:
        """An order, made just now."""
        product = self._chance.choice(PRODUCTS)[0]
        order = {"id": name, "product": product, "pieces": self._chance.randint(1, PIECES_MAX), "made": _said(_now())}
        return json.dumps(order).encode()


def closing() -> bytes:
    """What is sent when the shop has closed: it is of tomorrow, so that every second of today is over."""
    return json.dumps({"id": "closing", "made": _said(_now() + timedelta(days=1))}).encode()


def name(body: bytes) -> str:
    """Of an order."""
    said: dict[str, str] = json.loads(body)
    return said["id"]


def good(rate: float) -> int:
    """Euros of one kind in a second that are worth an alert, at so many orders a second."""
    prices = [price for _, _, price in PRODUCTS]
    kinds = {kind for _, kind, _ in PRODUCTS}
    return round(SHARE * rate / len(kinds) * sum(prices) / len(prices) * (1 + PIECES_MAX) / 2)


def _now() -> datetime:
    return datetime.now(UTC)


def _said(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
