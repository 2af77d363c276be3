"""Properties as folds over traces: the same code in unit tests, after every simulated run, on traces of real processes.

`check(events, properties())` judges a list; `Checker(properties(causal=True))` follows a simulated run as it goes.
docs/properties.md lists them; each is in the file of its name.
"""

from __future__ import annotations

from typing import Any

from coterie.audit.fold import Checker, Order, Property, Split, Violation, check, split
from coterie.audit.g3 import Integrity
from coterie.audit.g8 import Fifo
from coterie.audit.g14 import Retention
from coterie.audit.g15 import Unicast
from coterie.audit.g20 import Settles

__all__ = ["Checker", "Order", "Property", "Split", "Violation", "check", "properties", "split"]


def properties(causal: bool = False) -> list[Property[Any]]:
    """Every property. `causal`: the events will come in an order in which nothing stands before its cause."""
    return [Integrity(), Fifo(), Retention(causal), Unicast(), Settles()]
