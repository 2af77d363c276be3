"""Large bodies travel ahead of their event, outside the order, into files that are named by their digest.

The origin *offers* a body to the voters (offers.py). Every broker keeps what it was offered, or fetches what an ordered
event names and it has not got (holdings.py). When a majority has a body, synced if it is persistent, its event is
proposed; it names the digest and who has it. Later publishes of the same channel wait for that, nobody else's do.

Both are pure: each input gives a list of actions, in the order in which they are to be done; the bytes themselves are
somebody else's. Nothing in the broker uses them yet.
"""

from coterie.broker.large_bodies.holdings import Holdings, HoldingsSettings
from coterie.broker.large_bodies.offers import Offers, OffersSettings

__all__ = ["Holdings", "HoldingsSettings", "Offers", "OffersSettings"]
