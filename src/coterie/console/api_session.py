"""Logging in on the page, and out: POST, GET and DELETE of /api/session."""

from __future__ import annotations

from aiohttp import web

from coterie.console.ask import Ask, Route, answer, nothing
from coterie.console.listing import Shape
from coterie.console.sessions import Session, Sessions


def session_shape(ask: Ask, session: Session | None) -> Shape:
    """The token is for the page alone; who came with a password needs none."""
    return {
        "name": ask.user.name,
        "tags": list(ask.user.tags),
        "node": ask.context.name,
        "token": None if session is None else session.token,
    }


async def show(ask: Ask) -> web.Response:
    return answer(session_shape(ask, ask.session))


def begin(ask: Ask, sessions: Sessions, host: str) -> web.Response:
    """Of somebody whose password was right."""
    secret, session = sessions.begin(ask.user, host)
    response = answer(session_shape(ask, session), 201)
    # The page's own address says how it was reached, also through a proxy that adds TLS.
    secure = ask.request.secure or ask.request.headers.get("Origin", "").startswith("https://")
    response.set_cookie(sessions.cookie, secret, path="/", httponly=True, samesite="Strict", secure=secure)
    return response


async def end(ask: Ask) -> web.Response:
    ask.context.sessions.end(ask.request.cookies)
    response = nothing()
    response.del_cookie(ask.context.sessions.cookie, path="/")
    return response


ROUTES: list[Route] = [("GET", "/api/session", show), ("DELETE", "/api/session", end)]
