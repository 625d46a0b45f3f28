"""The roles' own tasks, run by Ansible on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def ansible(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``ansible-playbook`` with these words, from the repository root, with its roles."""
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *("-e", f"ansible_python_interpreter={sys.executable}", *words),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def tasks(
    names: Sequence[str],
    folder: Path,
    variables: dict[str, Any],
    *options: str,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run files of ``llm_server``'s tasks, with these variables."""
    (folder / "vars.json").write_text(json.dumps(variables))
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "tasks": [
            {"ansible.builtin.import_role": {"name": "llm_server", "tasks_from": name}}
            for name in names
        ],
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    return ansible(
        *("-i", "localhost,", "-c", "local", str(folder / "play.yml")),
        *("-e", f"@{folder / 'vars.json'}", *options),
        **environment,
    )
