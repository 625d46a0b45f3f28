"""Inventory variables and what is resolved from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment

from roost import site
from roost.deployment import from_variables
from roost.errors import RefusedError, UsageError

CPU = {"roost_hardware": "cpu", "roost_recipe": "smollm2-135m"}


def test_defaults_are_those_of_the_design() -> None:
    given = site.from_variables("h", CPU)
    assert (given.listen, given.port, given.model_dir) == (
        "127.0.0.1",
        8000,
        "/var/lib/roost/models",
    )


def test_text_from_the_command_line_is_taken_for_what_it_says() -> None:
    given = site.from_variables("h", {**CPU, "roost_port": "8001", "roost_install_docker": "false"})
    assert (given.port, given.install_docker) == (8001, False)


def test_subclasses_that_ansible_hands_out_are_plain_again() -> None:
    class Tagged(str):
        __slots__ = ()

    given = site.from_variables(
        "h", {**CPU, "roost_settings": {Tagged("moe_backend"): Tagged("humming")}}
    )
    ((key, value),) = given.settings.items()
    assert type(key) is str
    assert type(value) is str


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "h: roost_hardware is not set; roost_recipe is not set\n  fix: set it in"),
        (
            {**CPU, "roost_x": 1},
            "roost_x is no variable of roost\n  fix: variables are: roost_h",
        ),
        ({**CPU, "roost_prot": 1}, "roost_prot is no variable of roost, did you mean roost_port?"),
        ({**CPU, "roost_port": 99999}, "roost_port: Input should be less than or equal to 65535"),
        ({**CPU, "roost_port": "http"}, "roost_port: Input should be a valid integer"),
        ({**CPU, "roost_model_dir": "models"}, "roost_model_dir: String should match pattern"),
        ({**CPU, "roost_model_dir": "/a:b"}, "roost_model_dir: String should match pattern"),
        ({**CPU, "roost_hub_endpoint": "hub"}, "roost_hub_endpoint: String should match pattern"),
        ({**CPU, "roost_listen": "localhost"}, "roost_listen: Value error, 'localhost' does not"),
        ({**CPU, "roost_listen": "10.0.0.1:80"}, "roost_listen: Value error"),
        ({**CPU, "roost_settings": []}, "roost_settings: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        site.from_variables("h", variables)
    assert message in str(caught.value)


def test_variables_of_others_are_ignored() -> None:
    assert site.from_variables("h", {**CPU, "ansible_host": "x", "site_name": 1}).port == 8000


def test_deployment_without_lock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="is not pinned") as caught:
        from_variables("h", CPU, tmp_path)
    assert caught.value.why.endswith(f", and there is no lock {tmp_path}/roost.lock.yml")
    (tmp_path / "own.yml").touch()
    with pytest.raises(RefusedError, match="is not pinned") as caught:
        from_variables("h", {**CPU, "roost_lock_file": "own.yml"}, tmp_path)
    assert f", and {tmp_path}/own.yml does not say" in caught.value.why
    assert f"roost lock smollm2-135m --lock-file {tmp_path}/own.yml" in caught.value.fix


def test_a_lock_that_is_named_and_not_there_is_a_wrong_variable(tmp_path: Path) -> None:
    """Also of a recipe that pins all by itself: what is misspelt would never be read."""
    with pytest.raises(UsageError) as caught:
        from_variables("h", {**CPU, "roost_lock_file": "ohter.yml"}, tmp_path)
    assert caught.value.what == f"h: roost_lock_file: {tmp_path}/ohter.yml: no such file"
    assert "roost lock -i INVENTORY" in caught.value.fix


def test_deployment_has_what_roles_need(tmp_path: Path) -> None:
    got = deployment(tmp_path, "cpu", listen="0.0.0.0", port=9000)
    assert got.base_url == "http://127.0.0.1:9000"
    assert [w.revision for w in got.weights] == ["3" * 40, "4" * 40]
    assert got.image_digest == "sha256:" + "5" * 64
    assert got.requirements.weights_bytes == 310_000_000
    assert got.speculates
    assert not deployment(tmp_path, "cpu", speculation="none").speculates
    (first, _) = got.gate.requests
    assert first["model"] == "smollm2-135m"
    assert first["temperature"] == 0
    assert "chat_template_kwargs" not in first
    ornith = deployment(tmp_path, "gb10").gate.requests[0]
    assert ornith["chat_template_kwargs"] == {"enable_thinking": False}


def test_wrong_setting_names_host_and_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="host-01: roost_settings: max_len: no such setting"):
        deployment(tmp_path, "cpu", settings={"max_len": 1})


SECRETS = [
    ("roost_hub_token", "hf_mine"),
    ("roost_registry_logins", [{"registry": "ghcr.io", "username": "me", "password": "hf_mine"}]),
]


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_a_secret_of_the_site_is_no_part_of_its_deployment(
    tmp_path: Path, name: str, value: Any
) -> None:
    assert "hf_mine" not in repr(site.from_variables("spark-01", {**CPU, name: value}))
    assert (
        "hf_mine"
        not in deployment(tmp_path, **{name.removeprefix("roost_"): value}).model_dump_json()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("roost_hub_token", "hf mine"),
        ("roost_hub_token", ["hf_mine"]),
        ("roost_registry_logins", [{"registry": "ghcr.io", "password": "hf_mine"}]),
        ("roost_registry_logins", [{"username": "me", "registry": "x", "password": "hf mine"}]),
        ("roost_registry_logins", "hf_mine"),
    ],
)
def test_a_secret_that_is_wrong_is_not_shown(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        site.from_variables("spark-01", {**CPU, name: value})
    assert name in str(caught.value)
    assert "mine" not in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"roost_hub_endpoint": "https://ops:s3cret@hub.example"},
        {"roost_pip_args": ["--index-url", "https://ops:s3cret@wheels.example/simple"]},
        {"roost_pip_args": ["--find-links=https://s3cret@wheels.example"]},
    ],
)
def test_an_account_in_an_address_is_refused_and_not_shown(variables: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="holds an account, and would show it") as caught:
        site.from_variables("h", {**CPU, **variables})
    assert "s3cret" not in str(caught.value)
    assert next(iter(variables)) in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "hub", "token"),
    [
        (None, None, "hf_mine"),
        (None, "https://huggingface.co", "hf_mine"),
        ("https://mirror", None, "hf_mine"),
        ("https://mirror", "https://mirror/", "hf_mine"),
        # A mirror's key is for nobody else to see.
        ("https://mirror", "https://huggingface.co", None),
    ],
)
def test_a_token_goes_to_the_hub_that_it_is_for(
    endpoint: str | None, hub: str | None, token: str | None
) -> None:
    given = {**CPU, "roost_hub_token": "hf_mine", "roost_hub_endpoint": endpoint}
    assert site.from_variables("spark-01", given).token(hub) == token
    assert site.from_variables("spark-01", CPU).token(hub) is None


def test_a_token_that_is_empty_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"roost_hub_token: .*is empty"):
        site.from_variables("spark-01", {**CPU, "roost_hub_token": ""})
