"""Benchmarks of a running server: the same suites and the same results files as in one process, over HTTP."""
