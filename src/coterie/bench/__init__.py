"""Benchmarks: real processes over loopback, beside a raw-socket loop of the same bundle size in the same run."""
