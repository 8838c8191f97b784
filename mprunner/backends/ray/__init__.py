"""Runs each runner in a Ray actor."""
