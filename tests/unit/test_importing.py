"""Drafts from other tools' recipes: they load, they launch, and what is missing is listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.disks import full_disk

from roost import catalog, importing, yamlfile
from roost.catalog import Catalog
from roost.catalog_schema import Recipe
from roost.errors import RoostError, UsageError
from roost.importing import Draft, Format
from roost.importing_cli import import_
from roost.launch import resolving
from roost.settings import Settings

SAMPLES = Path(__file__).parent / "data" / "import"
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def known() -> Catalog:
    return catalog.builtin()


def of(known: Catalog, name: str, form: Format | None = None) -> Draft:
    return importing.draft(yamlfile.read(SAMPLES / f"{name}.yaml"), known, form)


def parse(known: Catalog, text: str, form: Format | None = None) -> Draft:
    return importing.draft(yamlfile.parse(text, Path("their/recipe.yaml")), known, form)


@pytest.mark.parametrize("path", sorted(SAMPLES.iterdir()), ids=lambda path: path.stem)
def test_every_draft_loads_and_launches(known: Catalog, path: Path) -> None:
    made = importing.draft(yamlfile.read(path), known)
    recipe = yamlfile.validate(yamlfile.parse(made.text, path), Recipe)
    together = known.model_copy(update={"recipes": {recipe.id: recipe}})
    spec = resolving.resolve(
        together,
        recipe.id,
        "gb10",
        overrides=Settings(image=f"org/image@{DIGEST}", engine_version="0.26"),
    ).spec
    assert spec.image == f"org/image@{DIGEST}"


def test_sparkrun_with_dflash(known: Catalog) -> None:
    made = of(known, "sparkrun-dflash")
    recipe = yaml.safe_load(made.text)
    assert recipe["model"] == {
        "repo": "example-org/Example-35B-NVFP4",
        "revision": {"commit": "59d473210f0b9ee3ea559a867fc23e7059473944"},
    }
    assert recipe["served_name"] == "example"
    assert recipe["image"] == {
        "repository": "vllm/vllm-openai",
        "digest": DIGEST,
        "engine_version": "0.26.0",
    }
    assert recipe["settings"] == {
        "gpu_memory_utilization": 0.85,
        "max_model_len": 131072,
        "max_num_seqs": 24,
        "kv_cache_bytes": 8589934592,
        "kv_cache_dtype": "fp8",
        "attention_backend": "TRITON_ATTN",
        "moe_backend": "marlin",
        "prefix_caching": False,
        "enforce_eager": True,
        "extra_args": [
            "--tool-call-parser",
            "qwen3_xml",
            "--enable-auto-tool-choice",
            "--chat-template",
            "/workspace/mods/template.jinja",
        ],
    }
    assert recipe["default_speculation"] == "dflash"
    assert recipe["speculation"]["dflash"] == {
        "method": "dflash",
        "drafter": {"repo": "example-org/Example-DFlash", "revision": {"branch": "main"}},
        "options": {"draft_sample_method": "greedy"},
        "settings": {"num_speculative_tokens": 15, "drafter_attention_backend": "FLASH_ATTN"},
    }
    assert recipe["env"] == {"OMP_NUM_THREADS": "1", "CUTE_DSL_ARCH": "sm_121a"}
    # Nobody of roost ran it, so it is verified nowhere.
    assert recipe["hardware"] == {}
    assert [item.partition(":")[0] for item in made.lost] == [
        "mods",
        "pre_exec",
        "metadata.model_params",
        "metadata.kv_dtype",
        "defaults.performance_mode",
        "command",
        "--host",
        "--port",
        "--served-model-name",
        "--chat-template",
        "--seed",
        "env.HF_TOKEN",
    ]
    assert all(f"# - {item}" in made.text for item in made.lost)


def test_spark_vllm_docker_with_mtp(known: Catalog) -> None:
    made = of(known, "spark-vllm-docker-mtp")
    recipe = yaml.safe_load(made.text)
    assert recipe["speculation"]["mtp"] == {
        "method": "mtp",
        "settings": {"num_speculative_tokens": 5},
    }
    assert recipe["settings"]["extra_args"] == [
        "--trust-remote-code",
        "--override-generation-config",
        '{"temperature":0.7,"top_p":0.95}',
    ]
    assert "tensor_parallel" not in recipe["settings"]
    assert "image" not in recipe
    assert any("made for a cluster (tensor parallel 2" in item for item in made.lost)
    assert any(item.startswith("container: vllm-node is in no registry") for item in made.lost)


def test_sparkrun_without_a_command(known: Catalog) -> None:
    made = of(known, "sparkrun-sglang")
    recipe = yaml.safe_load(made.text)
    assert recipe["engine"] == "sglang"
    assert recipe["settings"] == {
        "gpu_memory_utilization": 0.85,
        "max_model_len": 131072,
        "max_num_seqs": 32,
        "kv_cache_dtype": "fp8_e4m3",
        "extra_args": ["--trust-remote-code"],
    }
    assert recipe["image"]["tag"] == "v0.5.20-cu130"
    assert recipe["image"]["engine_version"] == "0.5.20"
    assert [item.partition(":")[0] for item in made.lost] == ["defaults.fp8_gemm_backend", "--port"]


def test_a_chain_of_nextn_is_mtp(known: Catalog) -> None:
    recipe = yaml.safe_load(of(known, "sparkrun-sglang-nextn").text)
    assert recipe["settings"] == {"prefix_caching": False}
    assert recipe["speculation"]["mtp"]["settings"] == {"num_speculative_tokens": 3}
    assert "options" not in recipe["speculation"]["mtp"]


VLLM = "model: org/m\ncontainer: vllm/vllm-openai:v0.26.0\ncommand: vllm serve {model} "


@pytest.mark.parametrize(
    ("config", "choice", "lost"),
    [
        (
            '{"method":"dflash","model":"o/d","num_speculative_tokens":4}',
            {
                "method": "dflash",
                "drafter": {"repo": "o/d", "revision": {"branch": "main"}},
                "settings": {"num_speculative_tokens": 4},
            },
            ["roost gives it the target's, TRITON_ATTN"],
        ),
        (
            '{"method":"dflash","model":"o/d","attention_backend":"TRITON_ATTN",'
            '"moe_backend":"humming","revision":"31977fbe13a8"}',
            {
                "method": "dflash",
                "drafter": {"repo": "o/d", "revision": {"prefix": "31977fbe13a8"}},
            },
            [],
        ),
        ('{"method":"ngram","prompt_lookup_max":4}',
         {"method": "ngram", "options": {"prompt_lookup_max": 4}}, []),
        ('{"method":"eagle3","model":"o/e"}', None, ["not spelled for vllm here; left out"]),
        ('{"method":"dflash"}', None, ["names no drafter; left out"]),
        ('{"method":"mtp","nested":{"a":1},"attention_backend":"FLASHINFER"}',
         {"method": "mtp", "settings": {"drafter_attention_backend": "FLASHINFER"}},
         ["nested {'a': 1}"]),
    ],
)  # fmt: skip
def test_speculative_configurations(
    known: Catalog, config: str, choice: dict[str, Any] | None, lost: list[str]
) -> None:
    backends = "--attention-backend TRITON_ATTN --moe-backend humming"
    made = parse(known, VLLM + f"{backends} --speculative-config '{config}'\n")
    speculation = yaml.safe_load(made.text)["speculation"]
    speculation.pop("none")
    assert list(speculation.values()) == ([choice] if choice else [])
    assert len(made.lost) == len(lost), made.lost
    assert all(wanted in said for said, wanted in zip(made.lost, lost, strict=True))


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("a: [1\n", None, "their/recipe.yaml:2: "),
        ("just text\n", None, "(the whole file): "),
        ("recipe_version: '3'\n", None, "recipe_version: '3' is not read"),
        ("recipe_version: '1'\n", "sparkrun", "'1' is not read as a recipe of sparkrun"),
        ("recipe_version: '1'\n", None, "command: is missing"),
        ("recipe_version: '2'\n", None, "model: is missing"),
        ("model: [1]\n", None, "their/recipe.yaml:1: model: input should be a valid string"),
        ("model: o/m\nruntime: llama-cpp\n", None, "'llama-cpp' is no engine of roost"),
        ("model: o/m:Q4_K_M\ncontainer: o/i:1\n", None, "'o/m:Q4_K_M' is no repository of the hub"),
        ("model: /models/m\ncontainer: o/i:1\n", None, "is no repository of the hub"),
        ("model: o/m\ncontainer: 'o/i:1 x'\n", None, "'o/i:1 x' is not the name of an image"),
        ("model: o/m\ncontainer: O/I:1\n", None, "'O/I:1' is not the name of an image"),
        ("model: o/m\ncommand: ''\n", None, "it is empty"),
        ("model: o/m\ncommand: vllm serve {model}; reboot\n", None, "has ';' in it"),
        ("command: vllm serve {a}\ndefaults: {a: '{b}{b}', b: '{a}{a}'}\n", None,
         "refer to each other without end"),
        ("command: vllm serve {a}\ndefaults: {a: '{a} '}\n", None, "without end"),
        ("recipe_version: '1'\ncommand: 'vllm serve {0.__class__}'\n", None,
         "{0.__class__} is no plain placeholder"),
        ("recipe_version: '1'\ncommand: 'vllm serve {a[b]}'\n", None, "is no plain placeholder"),
        ("recipe_version: '1'\ncommand: 'vllm serve {a!r:>99999999}'\n", None,
         "is no plain placeholder"),
        ("recipe_version: '1'\ncommand: 'vllm serve {'\n", None, "str.format"),
        ("recipe_version: '1'\ncommand: vllm serve o/m -sc '{\"method\":\"mtp\"}'\n", None,
         "write every brace that is meant, as in JSON, twice"),
        ("model: o/m\ncommand: vllm serve {model} --served-model-name 'a b'\n", None,
         "served_name: "),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_message(
    known: Catalog, text: str, form: Format | None, message: str
) -> None:
    with pytest.raises(RoostError) as caught:
        parse(known, text, form)
    assert str(caught.value).startswith("their/recipe.yaml")
    assert message in str(caught.value)


def test_secrets_stay_out_of_drafts(known: Catalog) -> None:
    env = "env: {HF_TOKEN: hf_literal, MY_API_KEY: sk-1, VLLM_PASSWORD: p, OMP_NUM_THREADS: 1}\n"
    made = parse(known, env + VLLM + "--api-key sk-2\n")
    assert yaml.safe_load(made.text)["env"] == {"OMP_NUM_THREADS": "1"}
    assert not [word for word in ("hf_literal", "sk-1", "sk-2") if word in made.text]
    assert len(made.lost) == 4


def test_nothing_of_a_file_reaches_the_terminal_as_it_is(known: Catalog) -> None:
    made = parse(known, 'name: "a\\e[31mb"\n"x\\ny\\e[2J": 1\n' + VLLM + "--x 'c\td'\n")
    assert "\x1b" not in made.text + "".join(made.lost)
    assert made.lost == ["x y [2J: not known here"]


def test_what_a_user_sees(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "roost.cli", "import", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    sample = str(SAMPLES / "sparkrun-dflash.yaml")
    printed = run(sample)
    assert printed.returncode == 0
    assert yaml.safe_load(printed.stdout)["id"] == "example-35b-nvfp4-with-dflash"
    assert "not carried over:\n  - mods: " in printed.stderr
    target = tmp_path / "recipes" / "mine.yml"
    assert run(sample, "-o", str(target)).returncode == 1
    target.parent.mkdir()
    written = run(sample, "-o", str(target))
    assert (written.returncode, written.stdout) == (0, "")
    assert "mine" in catalog.load(catalog.ROOT, tmp_path).recipes
    before = target.read_text()
    again = run(sample, "-o", str(target))
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert target.read_text() == before
    assert "a catalogue reads only .yml" in run(sample, "-o", str(tmp_path / "x.yaml")).stderr
    assert "does not exist" in run(str(tmp_path / "absent.yaml")).stderr


def test_no_half_of_a_draft_is_left(tmp_path: Path) -> None:
    target = tmp_path / "mine.yml"
    words = [str(SAMPLES / "sparkrun-dflash.yaml"), "-o", str(target)]
    with full_disk(100):
        done = CliRunner().invoke(import_, words)
    assert isinstance(done.exception, RoostError)
    assert f"{target}: cannot be written" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
    assert CliRunner().invoke(import_, words).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", ":2: "),
        (b"- a\n", ":1: (the whole file): must be a mapping of keys"),
        (b"a: \xff", ": is not UTF-8 text"),
        (b"command: 7\n", ":1: command: is int 7 because it is not quoted"),
        (b"#" * 1_000_001, ": 1000001 bytes, which no file of this kind needs"),
    ],
    ids=lambda value: value[:12],
)
def test_a_file_that_is_no_recipe_is_the_user_s_mistake(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "their.yaml"
    path.write_bytes(content)
    done = CliRunner().invoke(import_, [str(path)])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("mode: cluster", True),
        ("min_nodes: 2", True),
        ("cluster_only: true", True),
        ("mode: auto\nmin_nodes: 1\nmax_nodes: 4", False),
        ("mode: solo\nsolo_only: true", False),
    ],
)
def test_what_is_made_for_several_machines_is_told(known: Catalog, says: str, told: bool) -> None:
    text = "recipe_version: '2'\nmodel: Qwen/Qwen3-8B\nruntime: vllm\ncontainer: image:tag\n"
    made = parse(known, f"{text}{says}\n")
    assert any("made for a cluster" in item for item in made.lost) == told, made.lost


def test_a_wrong_id_is_the_option_s_and_not_the_file_s() -> None:
    file = str(SAMPLES / "sparkrun-dflash.yaml")
    done = CliRunner().invoke(import_, [file, "--id", "A B"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.fix == "name another --id"


def test_a_folder_that_is_missing_is_to_be_made(tmp_path: Path) -> None:
    place = tmp_path / "own catalogue" / "recipes"
    words = [str(SAMPLES / "sparkrun-dflash.yaml"), "-o", str(place / "x.yml")]
    done = CliRunner().invoke(import_, words)
    assert isinstance(done.exception, RoostError)
    assert done.exception.fix == f"mkdir -p '{place}'"
