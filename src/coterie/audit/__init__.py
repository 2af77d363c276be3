"""Properties as folds over traces: the same code in unit tests, after every simulated run, on traces of real processes.

`check(events, properties())` judges a list; `Checker(properties(causal=True))` follows a simulated run as it goes.
docs/properties.md lists them; each is in the file of its name.
"""

from __future__ import annotations

from typing import Any

from coterie.audit.b1 import NothingIsLost
from coterie.audit.b2 import OneHolder
from coterie.audit.b3 import AcceptedForGood
from coterie.audit.b4 import RequeuedOnce
from coterie.audit.b5 import DeadLetters
from coterie.audit.b6 import SameMessages
from coterie.audit.b7 import SameAllocation
from coterie.audit.b8 import SameWiring
from coterie.audit.b9 import Transactions
from coterie.audit.b10 import UpdatedReplicas
from coterie.audit.b11 import Survives
from coterie.audit.b12 import UnackedIsHeld
from coterie.audit.b13 import NoMajorityNoPromise
from coterie.audit.b14 import OnePositionOneMessage
from coterie.audit.b15 import NoEventStopsAMajority
from coterie.audit.b16 import SameStates
from coterie.audit.b17 import DurableFirst
from coterie.audit.fold import Checker, Order, Property, Split, Violation, check, split
from coterie.audit.g1 import SelfInclusion
from coterie.audit.g2 import Views
from coterie.audit.g3 import Integrity
from coterie.audit.g4 import SelfDelivery
from coterie.audit.g5 import SendingView
from coterie.audit.g6 import VirtualSynchrony
from coterie.audit.g7 import TransitionalSets
from coterie.audit.g8 import Fifo
from coterie.audit.g9 import TotalOrder
from coterie.audit.g10 import Held
from coterie.audit.g11 import Gate
from coterie.audit.g12 import FlushExclusion
from coterie.audit.g13 import HandlerExclusion
from coterie.audit.g14 import Retention
from coterie.audit.g15 import Unicast
from coterie.audit.g16 import StateTransfer
from coterie.audit.g20 import Settles

__all__ = ["Checker", "Order", "Property", "Split", "Violation", "check", "properties", "split"]


def properties(causal: bool = False) -> list[Property[Any]]:
    """Every property. `causal`: the events will come in an order in which nothing stands before its cause."""
    return [
        SelfInclusion(), Views(), Integrity(), SelfDelivery(), SendingView(), VirtualSynchrony(), TransitionalSets(),
        Fifo(), TotalOrder(), Held(causal), Gate(), FlushExclusion(), HandlerExclusion(), Retention(causal), Unicast(),
        StateTransfer(), Settles(), NothingIsLost(), OneHolder(), AcceptedForGood(), RequeuedOnce(), DeadLetters(),
        SameMessages(), SameAllocation(), SameWiring(), Transactions(), UpdatedReplicas(), Survives(), UnackedIsHeld(),
        NoMajorityNoPromise(), OnePositionOneMessage(), NoEventStopsAMajority(), SameStates(), DurableFirst(causal),
    ]  # fmt: skip
