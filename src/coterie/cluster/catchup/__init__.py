"""Catching up: a broker that is not in step gets the state of one that is, and then the bodies of its messages."""
