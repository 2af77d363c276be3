"""Sessions of the page: who they belong to, and when they end."""

from __future__ import annotations

from test_users import Door

from coterie.console.sessions import Sessions, proves
from coterie.console.settings import ConsoleSettings

HOST = "10.1.1.1"


class Rig(Door):
    def __init__(self, **settings: float) -> None:
        super().__init__()
        self.ops = self.put("ops")
        self.sessions = Sessions(self.runtime, self.users, ConsoleSettings(**settings), "n1")  # type: ignore[arg-type]

    def begin(self) -> dict[str, str]:
        """The cookies of a browser that has logged in."""
        secret, _ = self.sessions.begin(self.ops, HOST)
        return {self.sessions.cookie: secret}

    def name(self, cookies: dict[str, str], host: str = HOST) -> str | None:
        found = self.sessions.find(cookies, host)
        return None if found is None else found[0].name


def test_a_cookie_names_the_user_that_has_logged_in_and_nothing_else_does() -> None:
    rig = Rig()
    cookies = rig.begin()
    assert rig.name(cookies) == "ops"
    for wrong in (
        {},
        {rig.sessions.cookie: ""},
        {rig.sessions.cookie: "0" * 64},
        {"other": cookies[rig.sessions.cookie]},
    ):
        assert rig.name(wrong) is None


def test_a_session_is_of_no_use_at_another_address() -> None:
    rig = Rig()
    cookies = rig.begin()
    assert rig.name(cookies, "10.1.1.2") is None
    assert rig.name(cookies) == "ops"


def test_nodes_on_one_host_have_cookies_of_different_names() -> None:
    rig = Rig()
    assert Sessions(rig.runtime, rig.users, ConsoleSettings(), "n2").cookie != rig.sessions.cookie


def test_a_session_ends_when_its_user_is_deleted_or_gets_another_password() -> None:
    rig = Rig()
    cookies = rig.begin()
    rig.put("ops", "another")
    assert rig.name(cookies) is None
    cookies = rig.begin()
    assert rig.name(cookies) == "ops"
    rig.users.delete("ops", lambda _: None)
    rig.run()
    assert rig.name(cookies) is None
    assert len(rig.sessions) == 0


def test_a_session_ends_when_it_is_not_used_and_when_it_is_old() -> None:
    rig = Rig(session_idle=10.0, session_max=25.0)
    cookies = rig.begin()
    for _ in range(3):
        rig.run(7.0)
        assert rig.name(cookies) == "ops"
    rig.run(7.0)  # used all the time, and 28 s old
    assert rig.name(cookies) is None
    cookies = rig.begin()
    rig.run(11.0)
    assert rig.name(cookies) is None


def test_with_one_too_many_the_one_goes_that_was_used_longest_ago() -> None:
    rig = Rig(sessions_max=2)
    first, second = rig.begin(), rig.begin()
    assert rig.name(first) == "ops"
    third = rig.begin()
    assert [rig.name(each) for each in (first, second, third)] == ["ops", None, "ops"]


def test_logging_out_ends_it() -> None:
    rig = Rig()
    cookies = rig.begin()
    rig.sessions.end(cookies)
    assert rig.name(cookies) is None


def test_only_the_sessions_own_token_proves_that_the_page_asks() -> None:
    rig = Rig()
    _, session = rig.sessions.begin(rig.ops, HOST)
    _, other = rig.sessions.begin(rig.ops, HOST)
    assert proves(session, session.token)
    for wrong in ("", other.token, session.token[:-1], "é"):
        assert not proves(session, wrong)
