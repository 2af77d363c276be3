"""The public keys of an issuer, as its JWKS document lists them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

KEYS_MAX: Final = 100
RSA_BITS: Final = range(2048, 8193)
"""Shorter ones are broken, longer ones take too long to check with."""
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

_READERS: Final[dict[str, Callable[[str], object]]] = {
    "RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk,
}  # fmt: skip

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


@dataclass(frozen=True, slots=True)
class Key:
    """One that checks signatures; nothing else is kept."""

    kid: str
    algorithms: frozenset[str]
    """What it is for: decided by the key, and never by the token."""
    public: PublicKey


def read_keys(document: Mapping[str, object]) -> list[Key]:
    """All that can be used; others are somebody else's."""
    listed = document.get("keys")
    entries = listed[:KEYS_MAX] if isinstance(listed, list) else []
    return [key for key in map(_read, entries) if key is not None]


def _read(entry: object) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    public = _public(entry)
    if public is None:
        return None
    algorithms, named = _algorithms(public), entry.get("alg")
    if named is not None:
        algorithms &= {str(named)}
    kid = entry.get("kid", "")
    return Key(kid, algorithms, public) if algorithms and isinstance(kid, str) else None


def _public(entry: dict[str, object]) -> PublicKey | None:
    """None for private and shared keys too, which have no business there."""
    reader = _READERS.get(str(entry.get("kty")))
    if reader is None or "d" in entry:
        return None
    try:
        found = reader(json.dumps(entry))
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, UnsupportedAlgorithm):
        return None
    return found if isinstance(found, PublicKey) else None


def _algorithms(public: PublicKey) -> frozenset[str]:
    if isinstance(public, RSAPublicKey):
        return _RSA if public.key_size in RSA_BITS else frozenset()
    if isinstance(public, EllipticCurvePublicKey):
        return frozenset({_CURVES[public.curve.name]}) if public.curve.name in _CURVES else frozenset()
    return frozenset({"EdDSA"})
