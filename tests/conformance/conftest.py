"""See `broker_fixtures`."""

from broker_fixtures import broker_url, client, connect, known_differences, name, other, product

__all__ = ["broker_url", "client", "connect", "known_differences", "name", "other", "product"]
