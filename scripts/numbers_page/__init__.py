"""The page of numbers, docs/numbers.md, and its plots: made of what `make bench` measured, and never by hand."""
