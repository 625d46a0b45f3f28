"""Recipes of two other tools for the same machines, as drafts of recipes for roost.

``sparkrun``: version 2 of the recipes of spark-arena/sparkrun (its RECIPES.md and core/recipe.py,
July 2026). ``spark-vllm-docker``: version 1 of those of eugr/spark-vllm-docker (its run-recipe.py).
Both hold a command line with placeholders. Nothing of a file is executed or fetched.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from roost import commandline, yamlfile
from roost.catalog import Catalog
from roost.catalog_schema import Recipe
from roost.commandline import Read
from roost.errors import RoostError, UsageError
from roost.pins import Image, Repository, Revision
from roost.yamlfile import Document

Format = Literal["sparkrun", "spark-vllm-docker"]

_VERSIONS: dict[Format, str] = {"sparkrun": "2", "spark-vllm-docker": "1"}

#: Characters of a command, placeholders filled in; no recipe needs a longer one.
_MAX_COMMAND = 100_000

#: What sparkrun makes of ``defaults`` where a recipe gives no command, by runtime (its flag maps).
_FLAGS = {
    "vllm": {
        "port": "--port",
        "host": "--host",
        "tensor_parallel": "--tensor-parallel-size",
        "pipeline_parallel": "--pipeline-parallel-size",
        "data_parallel": "--data-parallel-size",
        "distributed_executor_backend": "--distributed-executor-backend",
        "gpu_memory_utilization": "--gpu-memory-utilization",
        "max_model_len": "--max-model-len",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "max_num_seqs": "--max-num-seqs",
        "served_model_name": "--served-model-name",
        "dtype": "--dtype",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
        "enforce_eager": "--enforce-eager",
        "enable_prefix_caching": "--enable-prefix-caching",
        "trust_remote_code": "--trust-remote-code",
        "api_key": "--api-key",
    },
    "sglang": {
        "port": "--port",
        "host": "--host",
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "served_model_name": "--served-model-name",
        "dtype": "--dtype",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
        "chunked_prefill": "--chunked-prefill-size",
        "trust_remote_code": "--trust-remote-code",
        "tokenizer_path": "--tokenizer-path",
        "speculative_draft_model_path": "--speculative-draft-model-path",
        "api_key": "--api-key",
    },
}

#: Images of the engines' own publishers.
_PUBLISHED = {"vllm/vllm-openai", "lmsysorg/sglang"}

_SECRET = re.compile(r"TOKEN|API_?KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)

#: Why a key of the other tools has no place in a recipe.
_NO_HOME = {
    "mods": "patches of the container; build an image that has them",
    "build_args": "options of a build script; build the image with it and name the result",
    "builder": "builds the image; build it and name the result",
    "builder_config": "builds the image; build it and name the result",
    "pre_exec": "runs in the container before the engine; build an image that has it done",
    "post_exec": "runs in the container after the start",
    "post_commands": "runs on the controller after the start",
    "stop_after_post": "roost keeps a server running",
    "executor_config": "how the container is run is roost's own choice",
    "distribution_config": "how weights and images travel is roost's own choice",
    "runtime_config": "of sparkrun's own",
    "benchmark": "a recipe for measuring, none for serving",
}


class _Foreign(BaseModel):
    """What is read of either format; everything else is reported."""

    model_config = ConfigDict(extra="allow", strict=True)

    recipe_version: str | int | float | None = None
    name: str | None = None
    description: str | None = None
    model: str | None = None
    model_revision: str | None = None
    runtime: str | None = None
    runtime_version: str | int | float | None = None
    container: str | None = None
    command: str | None = None
    defaults: dict[str, Any] | None = None
    env: dict[str, str | int | float | bool] | None = None
    metadata: dict[str, Any] | None = None
    # On how many machines it runs: told only where that must be more than one.
    mode: str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    cluster_only: bool | None = None
    solo_only: bool | None = None


@dataclass(frozen=True)
class Draft:
    """A recipe that loads, and what of the original is not in it."""

    id: str
    text: str
    lost: list[str]


@contextmanager
def _as_given() -> Iterator[None]:
    """What is wrong with a file that the user named is a mistake in the command."""
    try:
        yield
    except RoostError as error:
        raise UsageError(error.what, why=error.why, fix=error.fix) from None


def read(path: Path) -> Document:
    """Read the other tool's file.

    Raises:
        UsageError: As :func:`roost.yamlfile.read`.
    """
    with _as_given():
        return yamlfile.read(path)


def draft(
    document: Document, known: Catalog, form: Format | None = None, recipe_id: str | None = None
) -> Draft:
    """Make a draft.

    Args:
        document: The other tool's recipe.
        known: The catalogue that the draft is for.
        form: Which tool's; none: as the file says.
        recipe_id: Of the draft; none: from its name, or the file's.

    Raises:
        UsageError: It is no such recipe, or nothing can be made of it; naming file, key, value
            and reason.
    """
    with _as_given():
        foreign = yamlfile.validate(document, _Foreign)
    try:
        form = _form(foreign, form)
        read = commandline.read(_commands(foreign, form), known.engines)
        recipe, lost = _recipe(foreign, read, form, document.path.name)
    except UsageError as error:
        raise UsageError(f"{document.path}: {error.what}", why=error.why, fix=error.fix) from None
    recipe["id"] = recipe_id or _slug(foreign.name or document.path.stem)
    try:
        Recipe.model_validate(recipe)
    except ValidationError as error:
        reasons = (
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (it would be {item['input']!r})"
            for item in error.errors()
        )
        raise UsageError(
            f"{document.path}: no recipe can be made of it: " + _plain("; ".join(reasons)),
            fix="name another --id"
            if recipe_id and {item["loc"] for item in error.errors()} == {("id",)}
            else "correct the file, or write the recipe by hand (docs/adding-a-recipe.md)",
        ) from None
    lost = [_plain(item) for item in [*_unread(foreign, read, form), *lost]]
    return Draft(recipe["id"], _text(recipe, document.path.name, lost), lost)


def _form(foreign: _Foreign, wanted: Format | None) -> Format:
    extra = foreign.model_extra or {}
    version = foreign.recipe_version
    if version is None:
        version = "1" if extra.keys() & {"mods", "build_args"} else "2"
    for form, its_version in _VERSIONS.items():
        if str(version) == its_version and wanted in {None, form}:
            return form
    raise UsageError(
        f"recipe_version: {version!r} is not read"
        + (f" as a recipe of {wanted}" if wanted else ""),
        why="known: " + ", ".join(f"{form} {its}" for form, its in _VERSIONS.items()),
    )


def _commands(foreign: _Foreign, form: Format) -> list[list[str]]:
    values = {name: _word(value) for name, value in (foreign.defaults or {}).items()}
    for name, given in (("model", foreign.model), ("model_revision", foreign.model_revision)):
        if given is not None:
            values.setdefault(name, given)
    if foreign.command is not None:
        fill = _fill_once if form == "spark-vllm-docker" else _fill
        return commandline.split(fill(foreign.command, values))
    if form == "spark-vllm-docker":
        raise UsageError("command: is missing", why="a recipe of spark-vllm-docker has one")
    runtime = (foreign.runtime or "vllm").split("-")[0]
    if runtime not in _FLAGS:
        raise UsageError(
            f"runtime: {foreign.runtime!r} is no engine of roost", why="known: vllm, sglang"
        )
    if foreign.model is None:
        raise UsageError("model: is missing")
    words = ["vllm", "serve", foreign.model]
    if runtime == "sglang":
        words = ["sglang", "serve", "--model-path", foreign.model]
    for name, flag in _FLAGS[runtime].items():
        value = (foreign.defaults or {}).get(name)
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, _word(value)]
    return [words]


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def _fill(command: str, values: Mapping[str, str]) -> str:
    """Placeholders as sparkrun fills them in: again and again, unknown ones stay."""
    for _ in range(10):
        filled = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), command)
        if filled == command:
            return command
        command = filled
        if len(command) > _MAX_COMMAND:
            break
    raise UsageError(
        "defaults: refer to each other without end", why="a placeholder's value holds placeholders"
    )


def _fill_once(command: str, values: Mapping[str, str]) -> str:
    """Placeholders as ``str.format`` fills them in, without what it would let a file reach."""
    parts = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(command):
            parts.append(literal)
            if name is not None:
                if spec or conversion or not re.fullmatch(r"[A-Za-z_]\w*", name):
                    raise ValueError(f"{{{name}}} is no plain placeholder")
                parts.append(values.get(name, f"{{{name}}}"))
    except ValueError as error:
        raise UsageError(
            f"command: {error}",
            why="spark-vllm-docker fills it in with Python's str.format",
            fix="write every brace that is meant, as in JSON, twice: {{ and }}",
        ) from None
    return "".join(parts)


def _recipe(
    foreign: _Foreign, read: Read, form: Format, file: str
) -> tuple[dict[str, Any], list[str]]:
    """The recipe without its id, and what could not be kept."""
    lost = list(read.lost)
    model = foreign.model or read.model or ""
    if read.model and foreign.model and read.model != foreign.model:
        lost.append(f"model: {foreign.model} is downloaded, but the command serves {read.model}")
        model = read.model
    revision = foreign.model_revision or read.revision or "main"
    metadata = foreign.metadata or {}
    description, maintainer = (
        foreign.description or metadata.get("description"),
        metadata.get("maintainer"),
    )
    tensor_parallel = read.settings.pop("tensor_parallel", 1)
    cluster = foreign.cluster_only or foreign.mode == "cluster" or (foreign.min_nodes or 1) > 1
    if tensor_parallel != 1 or cluster:
        lost.append(
            f"made for a cluster (tensor parallel {tensor_parallel}, one GPU a machine): roost "
            "starts one engine on one machine, so the draft may not fit"
        )
    speculation = _speculation(read, lost)
    settings = {**read.settings}
    if read.extra_args:
        settings["extra_args"] = read.extra_args
    title = str(foreign.name or description or model)
    recipe: dict[str, Any] = {
        "id": "",
        "title": _plain(title),
        "model": _repository(model, revision),
        "engine": read.engine,
        "served_name": read.served_name or model.rpartition("/")[2],
        "default_speculation": next(iter(speculation)),
        "speculation": speculation,
        "settings": settings,
        "env": _env(foreign, read, lost),
        "hardware": {},
        "image": _image(foreign, lost),
        "provenance": [_plain(f"kept by {maintainer}")] if maintainer else [],
        "notes": [_plain(str(description))] if description else [],
        "source": _plain(f"imported from {file}, a recipe of {form}; not run with roost"),
    }
    return {key: value for key, value in recipe.items() if value or key in {"id", "hardware"}}, lost


def _repository(repo: str, revision: str) -> dict[str, Any]:
    try:
        found = Repository(repo=repo, revision=Revision.parse(revision))
    except ValidationError:
        raise UsageError(
            f"model: {repo!r} is no repository of the hub",
            why="roost serves owner/name from a hub, neither single files nor paths",
        ) from None
    return found.model_dump(exclude_none=True)


def _speculation(read: Read, lost: list[str]) -> dict[str, dict[str, Any]]:
    """The recipe's choices, the one it runs first."""
    config = dict(read.speculation)
    if not config:
        return {"none": {}}
    said = json.dumps(config)
    method = str(config.pop("method", "")).lower()
    choice: dict[str, Any] = {}
    if method.endswith("mtp") or method == "nextn":
        choice["method"] = "mtp"
    elif method == "dflash" or (method == "ngram" and read.engine != "sglang"):
        choice["method"] = method
    else:
        lost.append(f"speculation {said}: not spelled for {read.engine} here; left out")
        return {"none": {}}
    settings = {}
    if (depth := _depth(config, choice["method"])) is not None:
        settings["num_speculative_tokens"] = depth
    drafter, revision = config.pop("model", None), config.pop("revision", "main")
    if choice["method"] == "dflash":
        if drafter is None:
            lost.append(f"speculation {said}: names no drafter; left out")
            return {"none": {}}
        choice["drafter"] = _repository(str(drafter), str(revision))
    elif drafter is not None:
        lost.append(f"speculation: model {drafter}, which {choice['method']} does not need")
    if choice["method"] != "ngram":
        _backends(config, read, settings, lost)
    options = {key: value for key, value in config.items() if isinstance(value, int | float | str)}
    lost += [f"speculation: {key} {value!r}" for key, value in config.items() if key not in options]
    if read.engine == "sglang" and options:
        lost.append(f"speculation: {json.dumps(options)}")
        options = {}
    if options:
        choice["options"] = options
    if settings:
        choice["settings"] = settings
    return {choice["method"]: choice, "none": {}}


def _depth(config: dict[str, Any], method: str) -> int | None:
    """Drafts per step. SGLang counts the token that a block starts from, the setting does not."""
    depth = config.pop("num_speculative_tokens", None)
    block, steps = config.pop("num_draft_tokens", None), config.pop("num_steps", None)
    if config.get("topk") == 1:
        del config["topk"]
    if depth is None and method == "dflash" and isinstance(block, int):
        depth = block - 1
    elif depth is None:
        depth = steps
    return depth if isinstance(depth, int) and depth > 0 else None


def _backends(
    config: dict[str, Any], read: Read, settings: dict[str, Any], lost: list[str]
) -> None:
    """Keep the drafter's backends where they are not those that roost gives it anyway."""
    target, own = read.settings.get("attention_backend"), config.pop("attention_backend", None)
    if own is not None and own != target:
        settings["drafter_attention_backend"] = own
    elif own is None and target is not None:
        lost.append(
            f"speculation: the drafter's attention backend was left to the engine; roost gives it "
            f"the target's, {target}"
        )
    if config.get("moe_backend") == read.settings.get("moe_backend"):
        config.pop("moe_backend", None)


def _env(foreign: _Foreign, read: Read, lost: list[str]) -> dict[str, str]:
    kept = {}
    for name, value in {**(foreign.env or {}), **read.env}.items():
        if _SECRET.search(name):
            lost.append(f"env.{name}: a secret belongs in no recipe; it was left out")
        elif "$" in str(value):
            lost.append(f"env.{name}: {value} is a variable of the machine that starts it")
        else:
            kept[name] = str(value)
    return kept


def _image(foreign: _Foreign, lost: list[str]) -> dict[str, Any] | None:
    """The image, where one is published."""
    container = foreign.container or ""
    found = re.fullmatch(r"(.+?)(?::([\w.\-]+))?(?:@(sha256:[0-9a-f]{64}))?", container)
    if found is None or "/" not in container:
        lost.append(
            f"container: {container or 'none'} is in no registry; name an image by digest "
            "(`image` in the draft, or --set image=repository@sha256:…)"
        )
        return None
    repository, tag, digest = found.groups()
    official = repository in _PUBLISHED
    version = str(foreign.runtime_version or "")
    if not version and official and tag and (number := re.match(r"v?(\d+\.\d+[\w.]*)", tag)):
        version = number[1]
    if not version:
        lost.append("image.engine_version: not said; write what the image prints")
    try:
        image = Image(
            repository=repository,
            digest=digest,
            tag=None if digest else tag or "latest",
            engine_version=version or "unknown",
            untrusted=None if official else "imported: nobody has looked into the image",
        )
    except ValidationError:
        raise UsageError(f"container: {container!r} is not the name of an image") from None
    return image.model_dump(exclude_none=True, exclude_defaults=True)


def _unread(foreign: _Foreign, read: Read, form: Format) -> list[str]:
    """Keys of the file that have no home in a recipe."""
    lost = [f"{name}: {_NO_HOME.get(name, 'not known here')}" for name in foreign.model_extra or {}]
    lost += [
        f"metadata.{name}: has no place in a recipe; what is true of a model is read from it"
        for name in foreign.metadata or {}
        if name not in {"description", "maintainer"}
    ]
    defaults = foreign.defaults or {}
    used = set(_FLAGS[read.engine]) if foreign.command is None else set()
    for text in (foreign.command or "", *map(_word, defaults.values())):
        used |= set(_PLACEHOLDER.findall(text))
    return lost + [
        f"defaults.{name}: {form} does not hand it to the engine either"
        for name in defaults
        if name not in used
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "imported"


def _plain(text: str) -> str:
    """One line of printable text, for comments and terminals."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= 300 else line[:299] + "…"


def _text(recipe: dict[str, Any], file: str, lost: list[str]) -> str:
    head = [
        _plain(f"# Draft made by `roost import {file}`. Nobody has run it; see docs/import.md."),
        *(["# Not carried over:"] if lost else []),
        *(f"# - {item}" for item in lost),
    ]
    body = yaml.safe_dump(recipe, sort_keys=False, width=100, allow_unicode=True)
    return "\n".join(head) + "\n" + body
