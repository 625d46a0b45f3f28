"""What a log says is wrong, and which of it is the root cause.

A container's log goes on over restarts. What is wrong now is read from its last start. Only where
that shows no error does the start before it count: in full while the last one does not serve yet,
else as a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from roost import catalog
from roost.diagnose import advice, findings, fingerprints, text
from roost.diagnose.findings import Diagnosis, Found
from roost.diagnose.fingerprints import Fingerprint, Severity, Text
from roost.diagnose.scanner import Handler, Scanner
from roost.diagnose.text import Line, Source
from roost.settings import Settings

_SAYS_START = ("non-default args:", "server_args=")
_SAYS_VERSION = ("LLM engine (v", "API server version", "\u2580\u2584\u2580 \u2588 version")
_SAYS_SERVING = ("Application startup complete", "fired up and ready to roll")
_SAYS_STOPPING = ("shutdown triggered", "trigger received signal", "SIGTERM received.")
_SAYS_FAILURE = (
    *("error", "Traceback (most", "critical", "fatal", "panic:", "exception"),
    *("FAILED!", "core dumped", "terminate called", "segmentation", "segfault", "killed"),
    "failed to initialize nvml",
)

_STARTS = tuple(said.encode() for said in _SAYS_START)
_START = re.compile(r"(?P<vllm>non-default args: ?\{)|server_args=(?:ServerArgs\(|\{)")
_ARGUMENT = re.compile(r"'?(\w+)'?[=:] ?(?:'([^']*)'|(\d{1,15}(?:\.\d{1,15})?)(?=[,)}]|$))")
_VERSION = re.compile(r"version (\d+\.\d+[\w.+]*)|engine \(v(\d+\.\d+[\w.+]*)\)")

_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)\b(?:: |:?$)"
)
_FAILURE = re.compile(
    r"(?i)[\w./ ()-]{0,60}\b(?:error|fatal|critical|panic|exception)\b.{0,40}?: "
    r"|error\b|.*\bterminate called|.*core dumped|.*(?:segmentation fault|segfault encountered)"
    r"|.*FAILED! =>|.*failed to initialize nvml"
)
#: All that a shell says of a child that was ended by SIGKILL: one word, or where and which one.
_KILLED = re.compile(r"\s*(?:\S{1,200}: line \d+:\s+\d+ Killed\b|Killed\s*$)")
#: After a message of several lines, what is not part of it.
_NEXT = re.compile(r"\s*$|Traceback |During handling |The above exception |Process \w+:|\[rank")

_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def diagnose(
    source: Source | str | bytes,
    engine: str | None = None,
    version: str | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
) -> list[Diagnosis]:
    """What a log says is wrong: root cause first, then warnings, then harmless lines.

    Args:
        source: An open file, lines, or a whole log; text or bytes. Read once, in bounded memory.
        engine: ``vllm`` or ``sglang`` leaves out what only the other one says.
        version: The engine's, where the log does not say it.
        settings: Engine-neutral settings of the server, where the log does not say them.

    Returns:
        Nothing for a healthy log, apart from ``info`` on lines that look worse than they are.
    """
    if isinstance(settings, Settings):
        settings = settings.model_dump(exclude_none=True)
    log = _Log(engine, version, settings or {})
    for lines, numbers in text.blocks(source):
        log.read(lines, numbers)
    return log.answer()


@dataclass
class _Start:
    """One start of a server, or the part of a log before any."""

    line: int = 0
    stream: str = ""
    engine: str | None = None
    version: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    serving: bool = False
    stopping: bool = False
    found: dict[str, Found] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    tracebacks: set[str] = field(default_factory=set)
    #: First line that tells of a failure, and the exception that ends the first traceback, of those
    #: that no fingerprint accounts for.
    failure: Line | None = None
    exception: Line | None = None
    #: The shell's word for a child that was killed.
    killed: Line | None = None

    def kept(self) -> list[Found]:
        """What was found and not withdrawn, in the order of the log."""
        kept = [found for found in self.found.values() if found.item.id not in self.withdrawn]
        return sorted(kept, key=lambda found: found.line)

    def speaker(self) -> str | None:
        """The engine whose log it is, as far as it shows."""
        spoken = (found.item.engine for found in self.kept() if found.item.engine)
        return self.engine or next(spoken, None)

    def errors(self, role: str) -> list[Found]:
        """Errors of a role, in the order of the log."""
        kept = self.kept()
        return [f for f in kept if f.item.severity == "error" and f.item.role == role]


class _Log:
    def __init__(
        self, engine: str | None, version: str | None, settings: Mapping[str, Any]
    ) -> None:
        self._version, self._settings = version, settings
        self._start = _Start(engine=engine, version=version)
        self._previous = self._start
        self.scanner = Scanner()
        # In this order: a line that begins a start is known as that before it is searched.
        self._listen(_SAYS_VERSION, self._on_version)
        self._listen(_SAYS_START, self._on_start)
        self._listen(_SAYS_SERVING, self._on_serving)
        self._listen(_SAYS_STOPPING, self._on_stopping)
        for item in fingerprints.builtin():
            if engine and item.engine not in (None, engine):
                continue
            for said in item.match:
                self.scanner.listen(said.find, partial(self._on_match, item, said))
            for said in item.unless:
                self.scanner.listen(said.find, partial(self._on_unless, item, said))
        self._listen(_SAYS_FAILURE, self._on_failure, last=True)

    def _listen(self, words: tuple[str, ...], handler: Handler, *, last: bool = False) -> None:
        for alternative in words:
            self.scanner.listen(alternative, handler, last=last)

    def read(self, lines: list[bytes], numbers: list[int]) -> None:
        """Take in further lines."""
        vllm, sglang = _STARTS
        maybe = [at for at, line in enumerate(lines) if vllm in line or sglang in line]
        said = {at: text.clean(lines[at], numbers[at]) for at in maybe}
        starts = [at for at, line in said.items() if _START.search(line.text)]
        if len(starts) > 2 and len({said[at].stream for at in starts}) == 1:
            # A crash loop: the last start counts and the one before it, so skip to that.
            self.scanner.finish()
            lines, numbers = lines[starts[-2] :], numbers[starts[-2] :]
        self.scanner.feed(lines, numbers)

    # -- what lines mean

    def _on_version(self, at: int) -> bool:
        if match := _VERSION.search(" ".join(self.scanner.line(at).text.split())):
            self._version = self._start.version = match[1] or match[2]
        return False

    def _on_start(self, at: int) -> bool:
        line = self.scanner.line(at)
        match = _START.search(line.text)
        # Several servers may log side by side: only the same one can start again.
        if not match or (self._start.line and line.stream != self._start.stream):
            return False
        self._previous = self._start
        engine = "vllm" if match["vllm"] else "sglang"
        arguments = _arguments(self._unwrapped(at)[match.end() :], engine)
        self._start = _Start(line.number, line.stream, engine, self._version, arguments)
        self.scanner.unsettle()
        return False

    def _on_serving(self, at: int) -> bool:
        start, stream = self._start, self.scanner.line(at).stream
        if stream != start.stream and start.line:
            return False
        start.serving = True
        # Whatever was logged before did not keep the server from coming up.
        start.failure = start.exception = start.killed = None
        start.tracebacks.clear()
        for found in list(start.found.values()):
            if found.item.severity == "error" and found.stream == stream:
                del start.found[found.item.id]
        self.scanner.unsettle()
        return False

    def _on_stopping(self, at: int) -> bool:
        if not self._start.line or self.scanner.line(at).stream == self._start.stream:
            self._start.stopping = True
        return False

    def _on_match(self, item: Fingerprint, said: Text, at: int) -> bool:
        start = self._start
        if item.id in start.withdrawn or not item.holds_for(start.version):
            return False
        for passage in self.scanner.passages(at, said.lines):
            if match := said.regex.search(passage.squeezed):
                break
        else:
            return False
        values = {
            name: advice.read_value(passage, match.span(name), kind)
            for name, kind in item.values.items()
            if name in match.re.groupindex and match[name]
        }
        if None in values.values():
            return False
        first, last = passage.span(*match.span())
        # A wrapped line may have been taken for a failure before the rest of it was seen.
        if start.failure and first <= start.failure.number <= last:
            start.failure = None
        place = passage.lines[passage.line_at(match.start())]
        start.tracebacks.difference_update(self.scanner.owners(at))
        # What dies while it is being stopped was meant to.
        if item.id not in start.found and (item.severity == "info" or not start.stopping):
            start.found[item.id] = Found(
                item, place.number, place.stream, passage.evidence(*match.span()), values
            )
        # A line may say that something failed and begin the traceback that tells what.
        return _TRACEBACK not in place.text

    def _on_unless(self, item: Fingerprint, said: Text, at: int) -> bool:
        if item.id not in self._start.withdrawn and any(
            said.regex.search(passage.squeezed) for passage in self.scanner.passages(at, said.lines)
        ):
            self._start.withdrawn.add(item.id)
        return False

    def _on_failure(self, at: int) -> bool:
        start = self._start
        if start.stopping:
            return False
        line = self.scanner.line(at)
        if _KILLED.match(line.text):
            start.killed = start.killed or line
            return True
        if start.exception:
            return False
        if _TRACEBACK in line.text:
            start.tracebacks.add(line.owner)
            start.failure = start.failure or line
            return False
        ends = _EXCEPTION.match(line.text.lstrip())
        if ends and not start.tracebacks.isdisjoint(self.scanner.owners(at)):
            start.exception = self._whole(at)
        elif _tells_of_failure(line):
            start.failure = start.failure or self._whole(at)
        return True

    def _unwrapped(self, at: int) -> str:
        """A line with those that a terminal made of it, white space aside."""
        line = self.scanner.line(at)
        said = line.text
        for other in next(self.scanner.passages(at, 40)).after(line):
            if other.owner or other.level:
                break
            said += other.text
        return said

    def _whole(self, at: int) -> Line:
        """A line with the next few, as far as they go on with its message."""
        line = self.scanner.line(at)
        said = line.text
        for other in next(self.scanner.passages(at, 4)).after(line):
            begins = other.prefix > line.prefix + 8  # a pid has more or fewer digits
            if begins or other.level != line.level or _NEXT.match(other.text):
                break
            said += " " + other.text
        return replace(line, text=said)

    # -- the answer

    def answer(self) -> list[Diagnosis]:
        """Findings about the last start, and about an earlier one as far as it still counts."""
        self.scanner.finish()
        answer = self._of(self._start)
        if not any(item.severity == "error" for item in answer):
            for item in self._of(self._previous):
                if item.severity == "error":
                    answer.append(_earlier(item) if self._start.serving else item)
        return sorted(answer, key=lambda item: _RANK[item.severity])

    def _of(self, start: _Start) -> list[Diagnosis]:
        root = start.exception or start.failure
        consequences = start.errors("consequence")
        wrappers = start.errors("wrapper")
        if causes := start.errors("cause"):
            answer = [self._explain(found, start) for found in causes]
        elif start.killed and not consequences and (start.serving or not root):
            # An error that a server lives on with did not end it.
            answer = [findings.killed(start.killed.number, start.killed.text)]
        elif root and (not consequences or root.number < consequences[0].line):
            fatal = bool(consequences or wrappers) or not start.serving
            answer = [findings.unknown(root.number, root.text, start.speaker(), fatal=fatal)]
        elif consequences:
            answer = [self._explain(consequences[0], start)]
        elif wrappers:
            answer = [findings.cut_off(wrappers[0])]
        elif start.line and not (start.serving or start.stopping):
            answer = [findings.unfinished(start.line)]
        else:
            answer = []
        others = [found for found in start.kept() if found.item.severity != "error"]
        return answer + [self._explain(found, start) for found in others]

    def _explain(self, found: Found, start: _Start) -> Diagnosis:
        return findings.explain(found, {**self._settings, **start.settings}, start.version)


def _tells_of_failure(line: Line) -> bool:
    if line.level:
        return line.level in ("ERROR", "CRITICAL")
    said = line.text.lstrip()
    return bool(_EXCEPTION.match(said) or _FAILURE.match(said))


def _earlier(item: Diagnosis) -> Diagnosis:
    return replace(item, severity="warning", title=f"an earlier start failed: {item.title}")


def _arguments(said: str, engine: str) -> dict[str, Any]:
    """Engine-neutral settings from a server's list of its own arguments."""
    known = catalog.builtin().engines.get(engine)
    names = {
        flag.flag.removeprefix("--").replace("-", "_"): name
        for name, flag in (known.flags.items() if known else ())
    }
    names["port"] = "port"
    # Nested mappings (the speculative configuration) have keys of the same names.
    flat = re.sub(r"\{[^{}]*\}", "", said)
    return {
        names[name]: word or (float(number) if "." in number else int(number))
        for name, word, number in _ARGUMENT.findall(flat)
        if name in names
    }
