"""Whether image and weights come at the same time: a deploy against the longer of the two.

One lab host, the stand-in engine, and lines of a known rate before hub and registry. Deploys in
turn, each a whole process: with nothing to fetch, the image alone, the weights alone, both. A
deploy of both should take what the longer of the two takes, beside what any deploy does.

``make bench-deploy``, or ``python benchmarks/deploy.py --help``; as root, as the lab is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from roost.lab import build, controller, fixtures
from roost.lab.build.standin import standin_image
from roost.lab.hosts import Host, HostSpec
from roost.lab.lab import Lab, LabSpec
from roost.lab.pacing import paced

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def deploy(where: Path, *, no_image: bool, no_weights: bool, host: Host) -> float:
    """Seconds of one deploy, after so much was taken away."""
    script = ["docker rm --force roost-llm; rm -rf /var/lib/roost/releases"]
    if no_image:
        script.append("docker image prune --all --force")
    if no_weights:
        script.append("rm -rf /var/lib/roost/models")
    host.exec(["sh", "-c", "; ".join(script)])
    begun = time.monotonic()
    done = subprocess.run(
        [BIN / "ansible-playbook", "deploy.yml", "-i", where],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\ndeploy failed: exit code {done.returncode}")
    return seconds


@contextlib.contextmanager
def one_host() -> Iterator[tuple[Lab, Host]]:
    """A lab of one host, for as long as it is needed."""
    spec = LabSpec.model_validate({"name": "bench", "subnet": "10.79.0.0/24", "hosts": ()})
    lab = Lab(spec.joined_by([HostSpec(name="b01")]))
    with contextlib.ExitStack() as stack:
        for place in fixtures.PLACES:  # nobody else has a lab meanwhile
            stack.enter_context(
                controller.turn(_say, "a test session is using its lab", place.lock)
            )
        build.build_all(lab.cache, _say)
        lab.down(_say)
        try:
            lab.up(_say)
            yield lab, lab.hosts["b01"]
        finally:
            lab.down(_say)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hub", type=float, default=8e6, help="bytes a second (%(default).0f)")
    parser.add_argument("--registry", type=float, default=2e6, help="the same (%(default).0f)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)s)")
    options = parser.parse_args()
    with (
        one_host() as (lab, host),
        tempfile.TemporaryDirectory() as folder,
        paced(str(lab.spec.gateway.ip), lab.spec.hub_port, options.hub) as hub,
        paced(str(lab.spec.gateway.ip), lab.spec.registry_port, options.registry) as registry,
    ):
        where = Path(folder)
        address = lab.spec.gateway.ip
        written = lab.inventory()
        written["all"]["vars"].update(
            roost_recipe="smollm2-135m",
            roost_lock_file=str(lab.lock_file),
            roost_settings={"image": standin_image(lab.cache, _say)},
            roost_hub_endpoint=f"http://{address}:{hub}",
            roost_registry_mirror=f"http://{address}:{registry}",
        )
        (where / "hosts.yml").write_text(yaml.safe_dump(written, sort_keys=False))
        trusted = json.dumps({"insecure-registries": [f"{address}:{registry}"]})
        host.exec(
            ["sh", "-c", "cat > /etc/docker/daemon.json; systemctl try-restart docker"],
            text_in=trusted,
        )
        _say(f"first deploy: {deploy(where, no_image=False, no_weights=False, host=host):.1f} s")
        cases = {
            "nothing to fetch": (False, False),
            "the image": (True, False),
            "the weights": (False, True),
            "both": (True, True),
        }
        runs: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(options.rounds):
            for case, (no_image, no_weights) in cases.items():
                seconds = deploy(where, no_image=no_image, no_weights=no_weights, host=host)
                runs[case].append(seconds)
                _say(f"round {number + 1}: {case} {seconds:.1f} s")
    report(runs)


def report(runs: Mapping[str, Sequence[float]]) -> None:
    """The table for docs/performance.md."""
    medians = {case: statistics.median(seconds) for case, seconds in runs.items()}
    fixed = medians["nothing to fetch"]
    longer = max(medians["the image"], medians["the weights"]) - fixed
    print("| to fetch | seconds | beyond a deploy that fetches nothing |")
    print("|---|---|---|")
    for case, seconds in medians.items():
        print(f"| {case} | {seconds:.1f} | {seconds - fixed:.1f} |")
    print(f"\nboth against the longer one: {(medians['both'] - fixed) / longer:.2f}")


if __name__ == "__main__":
    main()
