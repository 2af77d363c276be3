"""Tests of the Spark jobs: a package, so that its conftest is not the one above it."""
