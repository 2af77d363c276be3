"""Queues as streams: rows of messages laid out by columns, and a client that reads them from any broker.

docs/streams.md is the contract.
"""
