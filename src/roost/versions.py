"""Engine versions against specifiers: ``>=0.26``, ``==0.24.*``, as Python packages write them."""

from __future__ import annotations

from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


def checked(specifier: str) -> str:
    """A specifier as it was written.

    Raises:
        ValueError: It is none.
    """
    _parse(specifier)
    return specifier


@cache
def _parse(specifier: str) -> SpecifierSet:
    try:
        return SpecifierSet(specifier, prereleases=True)
    except InvalidSpecifier:
        raise ValueError(f"{specifier!r} is no version specifier such as `>=0.26,<0.28`") from None


def within(version: str, specifier: str) -> bool | None:
    """Whether a version is among those that a specifier names.

    An engine built from a commit may print something that is no version; then nobody can tell, and
    the answer is ``None``, unless the specifier names every version.
    """
    if not specifier:
        return True
    try:
        return _parse(specifier).contains(Version(version))
    except InvalidVersion:
        return None
