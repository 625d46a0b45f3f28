"""Inventories as Ansible sees them: hosts, their templated variables, and how to reach them.

Variables come from Ansible's own command line, so group_vars, templates, vault, inventory plugins,
``ansible.cfg`` and the environment mean here what they mean in a deploy. One call reads all hosts
without touching any of them, in about 0.6 s.
"""

from __future__ import annotations

import difflib
import getpass
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost import ansible_environment
from roost.errors import RoostError, UsageError
from roost.root import expanded, repository_root

#: Options of Ansible's ssh connection plugin. Its ``config`` lookup resolves each from host
#: variables, environment and ansible.cfg in Ansible's own order of precedence.
_SSH_OPTIONS = (
    "host",
    "port",
    "remote_user",
    "private_key_file",
    "password",
    "ssh_args",
    "ssh_common_args",
    "ssh_extra_args",
)
_TIMEOUT_S = 120
#: Characters of what Ansible says that are passed on.
_LONGEST_MESSAGE = 600
#: Of one range in a host pattern; more is a slip.
_MOST_NUMBERS = 10_000
#: The group of hosts that stand before others and serve nothing themselves.
GATEWAYS = "gateways"


@dataclass(frozen=True)
class Connection:
    """How to reach one host, as Ansible would.

    ``None`` leaves the choice to ``~/.ssh/config`` and ssh's defaults.
    """

    address: str
    port: int | None = None
    user: str | None = None
    key_file: Path | None = None
    known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] | None = None
    identities_only: bool | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    config_file: Path | None = None
    password: str | None = field(default=None, repr=False)
    local: bool = False


@dataclass(frozen=True)
class Host:
    """One host: its ``roost_*`` variables, templated, and its connection."""

    name: str
    # Some are secret, and a traceback shows what an object looks like.
    variables: Mapping[str, Any] = field(repr=False)
    connection: Connection


@dataclass(frozen=True)
class Inventory:
    """A loaded inventory; hosts are sorted by name."""

    path: Path
    hosts: Mapping[str, Host]

    def host(self, name: str) -> Host:
        """One host by its inventory name.

        Raises:
            UsageError: There is no such host; near misses are named.
        """
        if name in self.hosts:
            return self.hosts[name]
        near = difflib.get_close_matches(name, self.hosts, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"{self.path}: no host {name!r}",
            fix=f"{hint}hosts are: {', '.join(self.hosts)}",
        )


def resolve_path(path: str | Path) -> Path:
    """The absolute path of an inventory, given relative to here or to the repository root.

    Ansible runs zero hosts and calls it success where a relative inventory is not found, so only
    existing absolute paths leave this function.

    Raises:
        UsageError: The path is empty, there is no such file or directory, or it is a directory that
            holds more than inventories.
    """
    if not str(path).strip():
        raise UsageError(
            "the inventory's path (-i) is empty",
            why="to Ansible that is this directory, and it would run every executable file in it",
            fix="is a variable of the shell unset?",
        )
    given = expanded(path)
    roots = list(dict.fromkeys([Path.cwd(), _root()]))
    for root in roots:
        if (root / given).exists():
            _refuse_to_run_everything(root / given)
            return (root / given).absolute()
    known = sorted(f"inventory/{entry.name}" for entry in (_root() / "inventory").glob("*/"))
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"no such inventory: {path}",
        why="looked in " + " and ".join(str(root) for root in roots),
        fix=hint + (f"inventories are: {', '.join(known)}" if known else ""),
    )


def _refuse_to_run_everything(path: Path) -> None:
    """Ansible runs every executable file below an inventory directory, to ask it for hosts.

    Raises:
        UsageError: It is the checkout or the home directory, or one of those is inside it.
    """
    folders = {}
    with suppress(UsageError):
        folders["the checkout"] = repository_root()
    with suppress(RuntimeError):  # a user without one
        folders["the home directory"] = Path.home()
    for what, folder in folders.items():
        if folder.resolve().is_relative_to(path.resolve()):
            inside = "is" if folder.resolve() == path.resolve() else "holds"
            raise UsageError(
                f"{path} is no inventory: it {inside} {what}",
                why="Ansible would run every executable file below it to ask for hosts",
                fix="name the inventory's own file or directory, as in inventory/spark",
            )


def pattern(limit: str | None) -> str | None:
    """A host pattern as Ansible is to be given it.

    ``spark-0[1-4]`` means to everybody what it means to a shell. To Ansible brackets at the end are
    places in the list of hosts that what stands before them matches: here in that of ``spark-0``,
    which is empty. As an expression it says what was meant; places are written with a colon.

    Raises:
        UsageError: It is empty, which for Ansible is every host.
    """
    if limit is None:
        return None
    if not limit.strip():
        raise UsageError(
            "the host pattern (--limit) is empty",
            why="to Ansible that is every host",
            fix="is a variable of the shell unset? without --limit every host is meant",
        )
    return re.sub(
        r"(?<![^,:\s])([!&]?)((?:[^\s,:~@!&][^\s,:~]*?)?)\[(\d+)-(\d+)\](?![^,:\s])", _range, limit
    )


def _range(found: re.Match[str]) -> str:
    """One pattern with such a range at its end, as an expression."""
    sign, before, first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= _MOST_NUMBERS:
        return found[0]
    width = len(first) if len(first) == len(last) else 0
    start = re.sub(r"\[[^\]]*\]|.", _as_expression, before)
    return f"{sign}~{start}({'|'.join(f'{number:0{width}}' for number in numbers)})$"


def _as_expression(found: re.Match[str]) -> str:
    """What a part of a shell's pattern is in a regular expression."""
    part = found[0]
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^", 1)
    return {"*": ".*", "?": "."}.get(part) or re.escape(part)


def _root() -> Path:
    try:
        return repository_root()
    except UsageError:
        return Path.cwd()


def load(path: str | Path, limit: str | None = None) -> Inventory:
    """Read an inventory and the variables of its hosts; gateways are left out.

    Args:
        path: File or directory, relative to the working directory or the repository root.
        limit: An Ansible host pattern; hosts it does not match are left out.

    Raises:
        UsageError: No such inventory, no hosts in it, none that match, or a variable of a host
            that cannot be templated; or Ansible cannot read it (bad YAML, a vault without its
            password).
        RoostError: Ansible is missing, or took too long.
    """
    inventory = resolve_path(path)
    results, messages = _ask_ansible(inventory, pattern(limit) or "all")
    hosts = {}
    for name, result in sorted(results.items()):
        if "msg" not in result or result.get("failed"):
            raise UsageError(
                f"{inventory}: the variables of {name} cannot be resolved",
                why=_last_cause(str(result.get("msg", result))),
            )
        if result["msg"]:
            hosts[name] = _host(name, result["msg"])
    if not hosts:
        raise _no_hosts(inventory, limit, messages)
    return Inventory(path=inventory, hosts=hosts)


def _expression() -> str:
    options = ", ".join(
        f"'{name}': lookup('ansible.builtin.config', '{name}', plugin_type='connection', "
        "plugin_name='ssh')"
        for name in _SSH_OPTIONS
    )
    variables = (
        "hostvars[inventory_hostname] | dict2items | selectattr('key', 'match', 'roost_') "
        "| items2dict"
    )
    connection = "ansible_connection | default('ssh')"
    return (
        f"{{{{ {{'variables': {variables}, 'ssh': {{{options}}}, 'connection': {connection}}} "
        f"if '{GATEWAYS}' not in group_names else {{}} }}}}"
    )


def _ask_ansible(inventory: Path, pattern: str) -> tuple[dict[str, Any], str]:
    """Every host's result of one ``debug`` task, and what Ansible said beside it."""
    beside = Path(sys.executable).with_name("ansible")
    program = str(beside) if beside.is_file() else shutil.which("ansible")
    if program is None:
        raise RoostError(
            "Ansible is not installed",
            why=f"no `ansible` beside {sys.executable} or on PATH",
            fix="install roost with its dependencies: pip install -e .",
        )
    command = [program, "-i", str(inventory), pattern, "-m", "ansible.builtin.debug"]
    command += ["-a", json.dumps({"msg": _expression()})]
    environment = {
        **os.environ,
        **ansible_environment.environment(),
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        # As little as possible beside the document, and no variables in a log file.
        "ANSIBLE_VERBOSITY": "0",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOG_PATH": os.devnull,
    }
    try:
        done = subprocess.run(
            command,
            cwd=_root(),  # where a site's ansible.cfg is
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RoostError(
            f"{inventory}: Ansible did not read it within {_TIMEOUT_S} s",
            fix="a dynamic inventory may hang: try ansible-inventory --list -i " + str(inventory),
        ) from None
    try:
        # A site's own callbacks may print before and after the document.
        start = re.search(r"^\{", done.stdout, flags=re.MULTILINE)
        document, _ = json.JSONDecoder().raw_decode(done.stdout, start.start() if start else 0)
        tasks = document["plays"][0]["tasks"]
    except (ValueError, KeyError, IndexError):
        tasks = None
    if tasks is None or _unreadable(done.stderr):
        raise UsageError(
            f"{inventory}: Ansible cannot read it",
            why=message(done.stderr) or f"exit status {done.returncode}",
            fix=_vault_fix(done.stderr),
        )
    return (dict(tasks[0]["hosts"]) if tasks else {}), done.stderr


def _unreadable(stderr: str) -> bool:
    # Ansible carries on with the implicit localhost when a source does not parse.
    return "Unable to parse" in stderr or "Failed to parse inventory" in stderr


def _vault_fix(stderr: str) -> str:
    if "vault" in stderr.lower():
        return "name the password's file: export ANSIBLE_VAULT_PASSWORD_FILE=…"
    return ""


def message(output: str) -> str:
    """The reasons in what Ansible prints when it fails, without blank lines and decoration.

    Of several plugins that tried to read a file the one that can say where it failed is the right
    one; the others' reasons are about another format.
    """
    placed = re.findall(
        r"Failed to parse inventory with '\w+' plugin: (.+?)\n.*?^Origin: (\S+:\d+(?::\d+)?)$",
        output,
        flags=re.MULTILINE | re.DOTALL,
    )
    if placed:
        reasons = (f"{' '.join(reason.split()).rstrip('.')} ({place})" for reason, place in placed)
        return "; ".join(dict.fromkeys(reasons))[:_LONGEST_MESSAGE]
    flat = " ".join(output.partition("Traceback (most recent call last)")[0].split())
    for marker in ("[ERROR]: ", "ERROR! ", "ERROR: ", "[WARNING]: "):
        _, found, after = flat.partition(marker)
        if found:
            return after[:_LONGEST_MESSAGE].replace("[WARNING]: ", "; ")
    return flat[:_LONGEST_MESSAGE]


def _last_cause(message: str) -> str:
    """The innermost part of Ansible's nested "A failed: B failed: C"."""
    return message.rsplit("Error while resolving value for 'msg': ", 1)[-1]


def _no_hosts(inventory: Path, limit: str | None, messages: str) -> UsageError:
    if limit:
        return UsageError(
            f"{inventory}: no host matches {limit!r}",
            fix=f"list the hosts: ansible-inventory -i {inventory} --graph"
            + ("; the first two of a group: NAME[0:1]" if "[" in limit else ""),
        )
    return UsageError(
        f"{inventory}: no hosts in it",
        why=message(messages) if "Unable to parse" in messages else "",
        fix="add hosts to its hosts.yml",
    )


def _host(name: str, data: Mapping[str, Any]) -> Host:
    return Host(
        name=name,
        variables=dict(data["variables"]),
        connection=_connection(name, data["ssh"], str(data["connection"])),
    )


def _connection(name: str, ssh: Mapping[str, Any], kind: str) -> Connection:
    """One host's connection from the options of Ansible's ssh plugin."""
    words: list[str] = []
    for option in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        try:
            words += shlex.split(str(ssh.get(option) or ""))
        except ValueError as error:
            raise UsageError(
                f"{name}: ansible_{option} cannot be read", why=f"{error}: {ssh[option]!r}"
            ) from None
    said = _ssh_options(words)
    key = ssh.get("private_key_file") or said.get("identityfile")
    port = ssh.get("port") or said.get("port")
    return Connection(
        address=str(ssh.get("host") or name),
        port=int(port) if port else None,
        user=str(ssh.get("remote_user") or said.get("user") or "") or None,
        key_file=_expand(str(key)) if key else None,
        known_hosts=_paths(said.get("userknownhostsfile")),
        global_known_hosts=_paths(said.get("globalknownhostsfile")) or None,
        identities_only=_yes(said.get("identitiesonly")),
        proxy_jump=_unless_none(said.get("proxyjump")),
        proxy_command=_unless_none(said.get("proxycommand")),
        config_file=_expand(said["configfile"]) if "configfile" in said else None,
        password=str(ssh["password"]) if ssh.get("password") else None,
        local=kind in {"local", "ansible.builtin.local"},
    )


_SHORT = {"-J": "proxyjump", "-p": "port", "-l": "user", "-i": "identityfile", "-F": "configfile"}


def _ssh_options(words: Sequence[str]) -> dict[str, str]:
    """Options of an ssh command line by lower-case name; the first value wins, as in ssh."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words):
        flag, value = words[at][:2], words[at][2:]
        at += 1
        if flag != "-o" and flag not in _SHORT:
            continue
        if not value and at < len(words):
            value = words[at]
            at += 1
        if flag == "-o":
            # Both `Key=value` and `Key value` are ssh's.
            name, _, value = value.replace("=", " ", 1).strip().partition(" ")
            found.setdefault(name.lower(), value.strip().strip('"'))
        else:
            found.setdefault(_SHORT[flag], value)
    return found


def _unless_none(value: str | None) -> str | None:
    return None if value is None or value.lower() == "none" else value


def _yes(value: str | None) -> bool | None:
    return None if value is None else value.lower() in {"yes", "true"}


def _paths(value: str | None) -> tuple[Path, ...]:
    return tuple(_expand(item) for item in (value or "").split())


def _expand(path: str) -> Path:
    return Path(path.replace("%d", str(Path.home())).replace("%u", getpass.getuser())).expanduser()
