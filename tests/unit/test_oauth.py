"""Tokens: what scopes allow, which keys are used and how often they are asked for, which settings make sense."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from coterie.broker.tokens import TOLD_MAX, Refusals
from coterie.errors import UserError
from coterie.node.node import Node as Broker
from coterie.node.node import NodeConfig
from coterie.oauth.keyring import WAITING_MAX, KeyRing
from coterie.oauth.keys import Key, read_keys
from coterie.oauth.scopes import Grants, Wildcard, granted, scopes_of
from coterie.oauth.settings import OauthSettings
from coterie.oauth.token_user import TokenUser
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node

SETTINGS = OauthSettings(issuer="https://issuer.example", resource_server_id="rabbit")

# Scopes.


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*", ["", "a", "a/b"], []),
        ("", [""], ["a"]),
        ("%2F", ["/"], ["%2F", ""]),
        ("a*", ["a", "abc"], ["ba", ""]),
        ("*a", ["a", "ba", "aa"], ["ab"]),
        ("a*b", ["ab", "abab", "a-b"], ["a", "b", "aba"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("*a*b*", ["ab", "xaxbx"], ["ba"]),
        ("**", ["", "x"], []),
        ("a%2Ab", ["a*b"], ["a-b"]),
        ("a+b%2B", ["a b+"], ["a+b+"]),
        ("%C3%BC*", ["ü", "übel"], ["u"]),
        ("%FF", ["\udcff"], ["ÿ"]),
    ],
)
def test_an_asterisk_stands_for_any_text_and_the_rest_is_percent_encoded(
    pattern: str, fits: list[str], does_not: list[str]
) -> None:
    assert [text for text in (*fits, *does_not) if Wildcard(pattern).fits(text)] == fits


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_wildcard_fits_what_the_obvious_definition_says(pattern: str, text: str) -> None:
    def fits(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(fits(pattern[1:], text[at:]) for at in range(len(text) + 1))
        return bool(text) and text[0] == pattern[0] and fits(pattern[1:], text[1:])

    assert Wildcard(pattern).fits(text) == fits(pattern, text)


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    assert not Wildcard("a*" * 4000 + "b").fits("a" * 8000)
    assert time.process_time() - began < 0.5


def test_scopes_of_other_forms_allow_nothing() -> None:
    wrong = [
        "read:*/*", "other.read:*/*", "rabbit.read", "rabbit.read:", "rabbit.read:a", "rabbit.read:a/b/c/d", "rabbit.",
        "rabbit.own:*/*", "rabbit.tag:king", "rabbit.tag:", "rabbit.read:%/*", "rabbit.read:%2/*", "rabbit.read:%zz/*",
        "rabbit.READ:*/*",
    ]  # fmt: skip
    assert granted(wrong, "rabbit.") == Grants()


def test_permissions_and_topics_are_those_of_the_scopes() -> None:
    scopes = ["rabbit.read:a*/q-*", "rabbit.write:a/x/k.*", "rabbit.tag:monitoring", "rabbit.tag:monitoring"]
    user = TokenUser("app", None, grants=granted(scopes, "rabbit."))
    for _ in range(2):  # the second time it is remembered
        assert user.may_enter("abc")
        assert not user.may_enter("b")
        assert user.may("abc", "read", "q-1")
        assert not user.may("abc", "write", "q-1")
        assert not user.may("abc", "read", "other")
        assert user.may("a", "write", "x")
        assert user.may_topic("a", "x", "write", "k.1")
        assert not user.may_topic("a", "x", "write", "other")
        assert not user.may_topic("abc", "q-1", "read", "k.1")  # no key, no topics: as in RabbitMQ
    assert user.grants.tags == ("monitoring",)


def test_too_many_scopes_are_refused() -> None:
    with pytest.raises(ValueError, match="2048"):
        granted([f"rabbit.read:{number}/*" for number in range(2049)], "rabbit.")


def test_claims_of_any_shape_are_read() -> None:
    shapes: list[object] = [None, 7, [1, None, ["x"]], {"rabbit": 3}, {"a": {"b": []}}, "", [], {}]
    for value in shapes:
        assert not any(scopes_of({"scope": value, "roles": value}, "roles roles.a.b", "rabbit"))
    deep: object = "x"
    for _ in range(500):
        deep = {"a": deep}
    assert scopes_of({"a": deep}, ".".join("a" * 600), "rabbit") == []


# Keys.


def listed(*keys: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: object) -> list[Key]:
    entries: list[object] = []
    for number, key in enumerate(keys):
        public = key.public_key()
        text = RSAAlgorithm.to_jwk(public) if isinstance(public, rsa.RSAPublicKey) else ECAlgorithm.to_jwk(public)
        entries.append(json.loads(text) | {"kid": f"k{number}"} | more)
    return read_keys({"keys": entries})


def test_a_key_is_for_the_algorithms_of_its_kind() -> None:
    strong, curve = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())
    one, other = listed(strong, curve)
    assert {"RS256", "PS512"} <= one.algorithms
    assert other.algorithms == {"ES384"}
    assert listed(strong, alg="RS256")[0].algorithms == {"RS256"}
    assert listed(strong, alg="HS256") == listed(strong, use="enc") == listed(strong, key_ops=["sign"]) == []
    assert listed(strong, d="AQAB") == listed(strong, kid=7) == listed(strong, n="!") == listed(strong, e=None) == []
    assert listed(rsa.generate_private_key(65537, 1024)) == []
    for document in ({}, {"keys": None}, {"keys": [1, None, {}, {"kty": "oct", "k": "AAAA"}, {"kty": ["RSA"]}]}):
        assert read_keys(document) == []


class Ring:
    """A key ring on the simulated runtime, and an issuer that answers what it is told to."""

    def __init__(self, settings: OauthSettings = SETTINGS) -> None:
        self.world = World(1)
        self.runtime = Node(self.world, Fabric(self.world), "n1").boot()
        self.asked = 0
        self.answer: list[Key] | Exception = []
        self.ring = KeyRing(self.runtime, settings, self._fetch)

    def _fetch(self) -> list[Key]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def find(self, kid: str | None, algorithm: str = "RS256", wait: float = 1.0) -> tuple[Key | None, str]:
        answers: list[tuple[Key | None, str]] = []
        self.ring.find(kid, algorithm, lambda key, why: answers.append((key, why)))
        self.world.run(self.world.time + wait)
        (answer,) = answers
        return answer


RSA_KEYS = listed(rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048))


def test_keys_are_fetched_once_and_again_when_they_are_old_or_one_is_unknown() -> None:
    rig = Ring()
    rig.answer = RSA_KEYS[:1]
    assert rig.find("k0")[0] is rig.find("k0")[0] is RSA_KEYS[0]
    assert rig.asked == 1
    assert rig.find(None)[0] is RSA_KEYS[0]  # there is no choice
    assert rig.find("k0", "ES256", wait=0.1)[0] is None
    asked = rig.asked
    rig.answer = RSA_KEYS
    rig.world.run(rig.world.time + 6)
    assert rig.find("k1")[0] is RSA_KEYS[1]
    assert rig.asked == asked + 1
    assert rig.find(None, wait=0.1) == (None, "the issuer had no such key a moment ago")
    rig.answer = RSA_KEYS[1:]
    rig.world.run(rig.world.time + 301)
    assert rig.find("k0") == (None, "the issuer has no such key")  # withdrawn


def test_whatever_tokens_name_the_issuer_is_asked_seldom() -> None:
    rig = Ring()
    rig.answer = RSA_KEYS
    for number in range(100):
        rig.find(f"none{number}", wait=0.1)
    assert rig.asked <= 3


def test_while_the_issuer_is_away_old_keys_are_used_for_a_while_and_then_none() -> None:
    rig = Ring()
    rig.answer = RSA_KEYS
    rig.find("k0")
    rig.answer = OSError("away")
    rig.world.run(rig.world.time + 400)
    assert rig.find("k0")[0] is RSA_KEYS[0]
    assert rig.ring.known
    rig.world.run(rig.world.time + 3600)
    assert rig.find("k0") == (None, "the issuer's keys cannot be had")
    assert not rig.ring.known


def test_only_the_first_token_waits_for_an_issuer_that_is_away() -> None:
    rig = Ring()
    rig.answer = RSA_KEYS
    rig.find("k0")
    rig.answer = OSError("away")
    rig.world.run(rig.world.time + 400)
    answers: list[Key | None] = []
    rig.ring.find("k0", "RS256", lambda key, why: answers.append(key))
    assert answers == []  # the key may be withdrawn: so it asks first
    rig.world.run(rig.world.time + 1)
    asked = rig.asked
    for count in range(2, 30):
        rig.ring.find("k0", "RS256", lambda key, why: answers.append(key))
        assert len(answers) == count
        rig.world.run(rig.world.time + 1)
    assert all(key is RSA_KEYS[0] for key in answers)
    assert 3 <= rig.asked - asked <= 6  # meanwhile the issuer is asked, every `keys_pause`
    rig.answer = RSA_KEYS[1:]
    rig.world.run(rig.world.time + 6)
    rig.find("k0")
    assert rig.find("k0")[0] is None  # it is back, and has withdrawn the key


def test_only_so_many_wait_for_keys() -> None:
    rig = Ring()
    rig.answer = RSA_KEYS
    answers: list[str] = []
    for _ in range(WAITING_MAX + 5):
        rig.ring.find("k0", "RS256", lambda key, why: answers.append(why))
    assert answers == ["too many tokens wait for the issuer's keys"] * 5
    rig.world.run(rig.world.time + 1)
    assert len(answers) == WAITING_MAX + 5
    assert rig.asked == 1


# Settings.


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    assert not OauthSettings().on()
    assert SETTINGS.on()
    assert replace(SETTINGS, issuer="http://127.0.0.1:8080/x").on()
    for wrong, said in (
        (OauthSettings(audience="x"), "no effect without oauth.issuer"),
        (replace(SETTINGS, resource_server_id=""), "needs oauth.resource_server_id"),
        (replace(SETTINGS, issuer="http://issuer.example"), "must be an https URL"),
        (replace(SETTINGS, issuer="http://localhost.example"), "must be an https URL"),
        (replace(SETTINGS, issuer="issuer"), "is no URL"),
        (replace(SETTINGS, issuer="https://a:b@issuer.example"), "is no URL"),
        (replace(SETTINGS, issuer="https://issuer.example:99999"), "is no URL"),
        (replace(SETTINGS, issuer="https://[::1"), "is no URL"),
        (replace(SETTINGS, jwks_url="file:///etc/passwd"), "is no URL"),
        (replace(SETTINGS, jwks_url="https://x/a\r\nb"), "is no URL"),
        (replace(SETTINGS, keys_keep=10.0), "at least oauth.keys_refresh"),
        (replace(SETTINGS, algorithms=()), "at least one"),
    ):
        with pytest.raises(UserError, match=said):
            wrong.on()


def test_without_pyjwt_a_section_oauth_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("coterie.oauth.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jwt", None)

    async def start() -> None:
        node = Broker(NodeConfig("n1", oauth=SETTINGS))
        try:
            await node.start()
        finally:
            await node.kill()

    with pytest.raises(UserError, match=r"needs PyJWT: pip install 'coterie\[secure\]'"):
        asyncio.run(start())


def test_the_log_is_told_of_each_reason_of_a_host_once_in_a_while() -> None:
    refusals = Refusals()
    assert [refusals.is_new("h", "expired", now) for now in (0.0, 0.5, 0.9, 1.0, 1.5)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert refusals.is_new("h", "another", 1.5)
    for number in range(3 * TOLD_MAX):
        refusals.is_new(str(number), "expired", 2.0)
    assert len(refusals._told) <= TOLD_MAX
