"""See `client_fixtures`."""

from client_fixtures import line, name, node, url

__all__ = ["line", "name", "node", "url"]
