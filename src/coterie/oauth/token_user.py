"""A user that a token describes: nothing of it is stored, and no other broker knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.broker.users import ANSWERS_MAX, User
from coterie.oauth.scopes import Grants


@dataclass(slots=True, eq=False)
class TokenUser(User):
    """What it may do is what the token's scopes say, until the token has expired."""

    grants: Grants = field(default_factory=Grants)
    _decided: dict[tuple[str, str, str, str | None], bool] = field(default_factory=dict)

    def may_enter(self, vhost: str) -> bool:
        return self.grants.enters(vhost)

    def _granted(self, vhost: str, what: str, resource: str) -> bool:
        return self._decide(vhost, what, resource, None)

    def may_topic(self, vhost: str, exchange: str, what: str, key: str) -> bool:
        return self._decide(vhost, what, exchange, key)

    @property
    def restricts_topics(self) -> bool:
        return True

    def _decide(self, vhost: str, what: str, name: str, key: str | None) -> bool:
        """A token may have thousands of scopes: they are gone through once for each question."""
        asked = vhost, what, name, key
        answer = self._decided.get(asked)
        if answer is None:
            grants = self.grants
            answer = grants.allows(vhost, what, name) if key is None else grants.allows_topic(vhost, what, name, key)
            if len(self._decided) >= ANSWERS_MAX:
                self._decided.clear()
            self._decided[asked] = answer
        return answer
