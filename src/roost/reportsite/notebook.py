"""An executed notebook as HTML that is safe to put into a page.

nbconvert renders, bleach cleans what it rendered: all of it, whatever cell or output it came from.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import bleach
import nbformat
from bleach.css_sanitizer import ALLOWED_SVG_PROPERTIES, CSSSanitizer
from bleach.html5lib_shim import Filter

from roost import kept_files
from roost.errors import RoostError

_SVG = {"svg", "g", "path", "defs", "use", "clipPath", "rect", "line", "circle", "text"}
_TAGS = _SVG | {
    "a", "b", "blockquote", "br", "code", "dd", "div", "dl", "dt", "em", "h1", "h2", "h3", "h4",
    "hr", "i", "img", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th",
    "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "alt", "aria-label", "class", "clip-path", "colspan", "cx", "cy", "d", "height", "r", "role",
    "rowspan", "scope", "style", "transform", "version", "viewBox", "width", "x", "x1", "x2",
    "xmlns", "y", "y1", "y2",
}  # fmt: skip
#: What is never text for a reader, with its content: bleach takes away only the tags.
_WITH_CONTENT = re.compile(r"<(style|script|metadata|title)\b", re.I)
_ENDS = {
    name: re.compile(rf"</{name}\s*>", re.I) for name in ("style", "script", "metadata", "title")
}
#: Bytes of a notebook; to render and clean it takes seconds a megabyte that is no picture.
LARGEST = 16 * 2**20
#: Seconds of the processor's time that a notebook may take: to parse what means harm (a hundred
#: thousand attributes of one element, or elements within one another) takes the square of its size.
LONGEST = 120.0
_IMAGE = re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=\s]+")
#: The first that an output has is shown; nothing that is a program or a widget.
_SHOWN = ["text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/plain"]


class TooLongError(Exception):
    """A notebook takes longer than any that is meant to be read."""


def render(path: Path) -> str:
    """The cells of a notebook with their outputs.

    Raises:
        RoostError: It cannot be read, is too large to be shown, or is no notebook.
    """
    try:
        text = kept_files.text(path, LARGEST)
        with _at_most(LONGEST):
            notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
            body, _ = _exporter().from_notebook_node(notebook)
            return clean(body)
    except OSError as error:
        raise RoostError(f"{path}: cannot be read", why=str(error.strerror)) from None
    except Exception as error:  # noqa: BLE001 - of a file that is no notebook anything may come
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise RoostError(f"{path}: no notebook that can be shown", why=why) from None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise where it takes longer; of other threads' work Python can end none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise TooLongError(f"more than {seconds:g} s of the processor's time")

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        # Once more each second, should somebody have caught the first one.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def clean(html: str) -> str:
    """HTML without anything that runs, is fetched, or reaches out of its place."""
    cleaner = bleach.Cleaner(
        tags=_TAGS,
        attributes=_allowed,
        protocols={"http", "https", "data"},
        css_sanitizer=CSSSanitizer(
            # Drawing and type only: what is positioned could lie over the page's own words.
            allowed_css_properties=_HARMLESS,
            allowed_svg_properties=ALLOWED_SVG_PROPERTIES,
        ),
        strip=True,
        filters=[_Renamed],
    )
    cleaned: str = cleaner.clean(_readable(html))
    return cleaned


def _readable(html: str) -> str:
    """Without the elements whose content no reader sees, in one pass.

    One pattern for begin and end would look for the end of each begin anew: hours, of a page of
    begins alone.
    """
    kept, at = [], 0
    endless = set()
    for begin in _WITH_CONTENT.finditer(html):
        name = begin[1].lower()
        if begin.start() < at or name in endless:
            continue
        end = _ENDS[name].search(html, begin.end())
        if end is None:
            endless.add(name)
            continue
        kept.append(html[at : begin.start()])
        at = end.end()
    return "".join([*kept, html[at:]])


_HARMLESS = {
    "color", "font-family", "font-size", "font-style", "font-weight", "overflow-wrap",
    "table-layout", "text-align", "vertical-align", "white-space", "width",
}  # fmt: skip


#: Before each id: a script of the page sees an element's id as a variable of that name.
_PREFIX = "notebook-"
_REFERENCE = re.compile(r"""(url\(\s*["']?#)""", re.I)


class _Renamed(Filter):  # type: ignore[misc]
    """A drawing's ids, and what refers to them, called as nothing of the page is."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for token in super().__iter__():
            if token["type"] in {"StartTag", "EmptyTag"}:
                for key, value in token["data"].items():
                    token["data"][key] = _renamed(key[1], value)
            yield token


def _renamed(name: str, value: str) -> str:
    if name == "id":
        return _PREFIX + value
    if name in {"href", "xlink:href"} and value.startswith("#"):
        return f"#{_PREFIX}{value[1:]}"
    return _REFERENCE.sub(rf"\g<1>{_PREFIX}", value)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "id":
        # Elsewhere nothing refers to one.
        return tag in _SVG
    if name in {"href", "xlink:href"}:
        return value.startswith("#") if tag in _SVG else value.startswith(("#", "https://"))
    if name == "src":
        return tag == "img" and _IMAGE.fullmatch(value) is not None
    return name in _ATTRIBUTES


@cache
def _exporter() -> Any:
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = Config()
    config.NbConvertBase.display_data_priority = _SHOWN
    config.HTMLExporter.exclude_anchor_links = True
    return HTMLExporter(template_name="basic", config=config)  # type: ignore[no-untyped-call]
