"""Runs each runner in a process of its own."""
