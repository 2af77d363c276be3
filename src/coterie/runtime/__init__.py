"""The outside world as protocol code sees it, and the asyncio implementation of it."""
