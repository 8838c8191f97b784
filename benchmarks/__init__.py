"""Benchmarks, each run by ``python -m benchmarks.NAME`` from the root; see README.md here."""
