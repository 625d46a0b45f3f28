"""Runs in the engine's Python, not in ours: what SGLang's own code makes of command lines.

Reads ``[[word, …], …]``, the words after ``sglang serve``, and prints what the parser knows and
made of each: ``{"flags": {flag: {…}}, "parsed": [{setting: value} or what it said against it, …],
"accepted": n}``. The last is how many drafts of a block of ``BLOCK`` its verification accepts if
the target agrees with every one.

SGLang is there as sources only. What its argument parser imports on the way to its definitions and
never calls is stood in for: the packages in ``STUBS``, and the ``__init__`` of the package
``sglang`` itself, which patches transformers. The verification of a block is taken out of its file
alone, since the imports there want kernels. Parser, choices and verification are SGLang's own.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from pathlib import Path

# Looks for triton when it is imported, and must not find the stub.
import torch._dynamo

#: Kernels, image decoding, notebook output and a JSON library: none has a say in a command line.
STUBS = {"triton", "torchvision", "IPython", "orjson"}

BLOCK = 10

#: Where releases keep the verification of a block: up to 0.5.22, and 0.5.23.
VERIFICATION = ("srt/speculative/dflash_utils.py", "kernels/ops/speculative/dflash.py")


def decorator(*args, **options):
    """Whatever a stub is asked for: leaves a function that it decorates as it is."""
    if len(args) == 1 and callable(args[0]) and not options:
        return args[0]
    return decorator


class Stub(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else decorator


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line: a package that is really there is never stubbed."""

    def find_spec(self, name, path, target=None):  # noqa: ARG002  # the interface's
        if name.partition(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def verification(root):
    """SGLang's check of a block of drafts, without the imports of the file it stands in."""
    name = "compute_dflash_correct_drafts_and_bonus"
    for place in VERIFICATION:
        for node in ast.parse(Path(root, place).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                names = {"torch": torch}
                code = compile(ast.Module([node], []), place, "exec")
                exec(code, names)  # noqa: S102  # the engine's own code is what is asked
                return names[name]
    raise SystemExit(f"{name} is in none of {VERIFICATION}")


def settings(parser, command):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return vars(parser.parse_args(command))
    except SystemExit:
        return said.getvalue()


def main():
    root = Path(sys.argv[1], "sglang")
    sys.meta_path.append(Finder())
    package = types.ModuleType("sglang")
    package.__path__ = [str(root)]
    sys.modules["sglang"] = package
    from sglang.srt.server_args import ServerArgs

    verify = verification(root)

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    flags = {
        flag: {
            "takes_value": action.nargs != 0,
            "choices": None if action.choices is None else list(map(str, action.choices)),
        }
        for action in parser._actions
        for flag in action.option_strings
    }
    parsed = [settings(parser, command) for command in json.load(sys.stdin)]
    drafts = torch.arange(BLOCK).unsqueeze(0)
    correct, _ = verify(candidates=drafts, target_predict=drafts + 1)
    answer = {"flags": flags, "parsed": parsed, "accepted": int(correct[0])}
    print(json.dumps(answer, default=str))


main()
