"""The audit log: who did what, from where, with what result (docs/audit-log.md). `coterie audit` is something else: it
judges traces."""
