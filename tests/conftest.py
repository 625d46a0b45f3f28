"""Fixtures for all tests."""

pytest_plugins = ["roost.lab.fixtures"]
