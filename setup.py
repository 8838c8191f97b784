"""Stub for tools that ask for one; everything is in setup.cfg."""

from setuptools import setup

setup()
