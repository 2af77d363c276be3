"""How the port that brokers of a cluster reach each other at is protected.

A cluster always has a secret, except where no other machine can reach it: with everything (bind, advertise, peers) on
loopback. With a secret, what brokers say is encrypted as soon as something is not on loopback; the operator's own
certificates take the place of those that are made of the secret, not the place of the secret.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.addresses import is_this_machine
from coterie.errors import UserError
from coterie.group.protocols.auth import check_secret
from coterie.secret_file import check_private

ENCRYPT = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class GroupPort:
    """What is configured about it."""

    bind: str
    advertise: str = ""
    peers: Sequence[str] = ()
    secret: str = field(default="", repr=False)
    encrypt: str = "auto"
    certificates: tuple[str, str, str] = ("", "", "")
    """Files: this node's certificate, its private key, the certificate of the cluster's authority."""

    def tcp(self) -> dict[str, object]:
        """The settings of the transport. Raises UserError, which says what to do, for what is not safe."""
        exposed = self.exposed()
        if exposed and not self.secret:
            raise UserError(
                f"{exposed} is not on loopback and the cluster has no secret, so anybody could join it: make one with "
                "`coterie cluster init`, copy it to every node, and name the file by --secret-file"
            )
        check_secret(self.secret, "node")
        found: dict[str, object] = {"secret": self.secret} if self.secret else {}
        if any(self.certificates):
            found |= self._certified()
        elif self.encrypt == "always" and not self.secret:
            raise UserError(
                "node.encrypt = always needs a secret, of which the keys are made: make one with `coterie cluster init`"
            )
        elif self.encrypt == "always" or (self.encrypt == "auto" and exposed):
            found["encrypt"] = True
        return found

    def encrypted(self) -> bool:
        """Whether what brokers tell each other is encrypted; if not, `coterie doctor` has a word to say."""
        found = self.tcp()
        return "encrypt" in found or "tls_cert" in found

    def exposed(self) -> str:
        """The first setting by which another machine may be involved; empty if there is none."""
        if not is_this_machine(_host(self.bind)):
            return f"node.bind {self.bind}"
        if self.advertise and not is_this_machine(self.advertise.strip("[]")):
            return f"node.advertise {self.advertise}"
        return next((f"node.peers {peer}" for peer in self.peers if not is_this_machine(_host(peer))), "")

    def _certified(self) -> dict[str, object]:
        if self.encrypt == "never":
            raise UserError("node.encrypt = never and group_tls_cert contradict each other: leave one out")
        if not all(self.certificates):
            raise UserError("group_tls_cert, group_tls_key and group_tls_ca belong together: set all three, or none")
        key = Path(self.certificates[1])
        try:
            check_private(os.stat(key), key, "group_tls_key")
        except OSError as error:
            raise UserError(f"group_tls_key: {key}: cannot be read: {error.strerror}") from None
        return dict(zip(("tls_cert", "tls_key", "tls_ca"), self.certificates, strict=True))


def _host(where: str) -> str:
    return where.rpartition(":")[0].strip("[]")
