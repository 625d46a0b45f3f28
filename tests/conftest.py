"""Fixtures for all tests, and no word to a hub that no test started."""

import os

# Read by the hub's client when it is imported: whoever names no endpoint asks a closed port.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

pytest_plugins = ["roost.lab.fixtures"]
