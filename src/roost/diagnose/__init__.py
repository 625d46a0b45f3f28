"""Diagnosis: what a log says is wrong, why, and how to mend it."""

from roost.diagnose.findings import Diagnosis
from roost.diagnose.matcher import diagnose

__all__ = ["Diagnosis", "diagnose"]
