"""The OpenAPI description of the HTTP API, made from the table of routes: `document.document()`."""
