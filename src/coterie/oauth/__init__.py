"""Logins with tokens of an OAuth 2 issuer. See docs/oauth.md."""
