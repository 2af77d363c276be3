"""The operations floor of a node: HTTP API, metrics, definitions. `server` needs aiohttp, the extra `console`."""
