"""A static site of kept runs: an index, a page a run, and the raw files beside them.

It is opened as it lies there (``file://``), asks nothing of any network, and can be copied whole.
Run folders are not trusted: an engine's answers stand in them, and an engine answers what it likes.
Text is escaped, a notebook's HTML is cleaned (:mod:`roost.reportsite.notebook`), and a policy in
each page lets nothing run but the site's own scripts.
"""

from roost.reportsite.publish import Built, build

__all__ = ["Built", "build"]
