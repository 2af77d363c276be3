"""Coterie: groups with views and ordered multicast, a clustered message broker on them, and queues in Spark."""

__version__ = "0.1.0"
