"""Errors that a request is answered with."""

from __future__ import annotations


class Refused(Exception):
    """The answer is an error: {"error", "reason"} with that status."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason


def not_found(what: str = "Not Found") -> Refused:
    return Refused(404, "not_found", what)


def bad(reason: str) -> Refused:
    return Refused(400, "bad_request", reason)
