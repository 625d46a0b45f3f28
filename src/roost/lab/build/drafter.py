"""The drafter: trained for the target in the lab's set-up, two revisions of it on the lab's hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roost.lab.build import cached, model
from roost.lab.build.cached import Say

REPO_ID = "roost-lab/SmolLM2-135M-DFlash"

# Branches on the hub. `early` is the same run as `main`, stopped early: honestly worse.
REVISIONS = ("early", "main")

TRAIN = Path(__file__).with_name("train.py")
PROMPTS = Path(__file__).with_name("prompts.jsonl")

_CARD = """---
license: apache-2.0
base_model: {target}
tags: [dflash, speculative-decoding, draft-model]
---
# SmolLM2-135M-DFlash, revision {revision}

A DFlash drafter for `{target}`: one layer, {parameters:,} parameters, {drafts} drafts at once.
It was trained in the set-up of roost's lab, from the target's last layer on, for **{steps} steps**
on the target's own greedy answers to {prompts} prompts ({answer_tokens:,} tokens). {about}

| | |
|---|---|
| loss, mean of the last 20 steps | {loss} |
| accept length on the prompts trained on | {accept_length_trained} |
| accept length on {prompts_held_out} prompts held out | {accept_length_held_out} |

Accept length: tokens a step at temperature 0, the target's own one included; computed on the
target's answers, not served. It knows its prompts and little else: good for showing what
acceptance does to speed, of no other use.
"""

_ABOUT = {
    "main": "The full run.",
    "early": "The same run as `main`, stopped early: there to be caught as a regression.",
}


def drafters(cache: Path, say: Say) -> Path:
    """Both revisions as repository folders, ``main/`` and ``early/``, and ``report.json``.

    The report has the steps, losses and accept lengths of each revision, and the seconds taken.
    """
    target = model.target_model(cache, say)

    def make(folder: Path) -> None:
        model.run_python(cache, say, [TRAIN, target, PROMPTS, folder])
        report = json.loads((folder / "report.json").read_text())
        for revision in REVISIONS:
            (folder / revision / "README.md").write_text(card(revision, report))
            say(f"drafter {revision}: {_figures(report['revisions'][revision])}")

    return cached.build(cache, "drafters", [target.name, TRAIN, PROMPTS, _CARD], make, say)


def card(revision: str, report: dict[str, Any]) -> str:
    """The model card of a revision, with the figures that its training measured."""
    return _CARD.format(
        target=model.REPO_ID,
        revision=revision,
        about=_ABOUT[revision],
        **{name: value for name, value in report.items() if name != "revisions"},
        **report["revisions"][revision],
    )


def _figures(measured: dict[str, Any]) -> str:
    return (
        f"{measured['steps']} steps, loss {measured['loss']}, accept length "
        f"{measured['accept_length_trained']} (held out: {measured['accept_length_held_out']})"
    )


def publish_drafters(cache: Path, say: Say) -> dict[str, str]:
    """Put both revisions on the lab's hub; give the commit of each branch."""
    folder = drafters(cache, say)
    return {name: model.publish(cache, REPO_ID, name, folder / name) for name in REVISIONS}
