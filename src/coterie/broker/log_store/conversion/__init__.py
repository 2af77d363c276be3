"""Stores of the form before the log: read at the first start, and written anew (docs/store.md)."""
