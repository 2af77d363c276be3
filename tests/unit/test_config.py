"""Configuration: four sources, one schema, and errors that name the place to correct."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coterie.config import SECTIONS, NodeSettings, add_flags, flags_of, load_config, plain, spellings
from coterie.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def test_without_any_source_there_are_the_defaults() -> None:
    config = load_config(None, {}, {})
    assert config.node == NodeSettings()


def test_the_file_is_stronger_than_the_defaults_the_environment_than_the_file_and_flags_than_all(file: Path) -> None:
    file.write_text('[node]\nname = "file"\ngroup = "file"\nadvertise = "::1"\n')
    env = {"COTERIE_NODE_GROUP": "env", "COTERIE_NODE_ADVERTISE": "127.0.0.1"}
    node = load_config(file, env, {"node": {"advertise": "127.0.0.2"}}).node
    assert (node.name, node.group, node.advertise, node.bind) == ("file", "env", "127.0.0.2", "127.0.0.1:7800")


def test_a_list_is_an_array_in_toml_and_has_commas_elsewhere(file: Path) -> None:
    file.write_text('[cluster]\nsize = 2\n[node]\npeers = ["127.0.0.1:1", "127.0.0.1:2"]\n')
    assert load_config(file, {}, {}).node.peers == ("127.0.0.1:1", "127.0.0.1:2")
    env = {"COTERIE_CLUSTER_SIZE": "2", "COTERIE_NODE_PEERS": "localhost:3, [::1]:4"}
    assert load_config(None, env, {}).node.peers == ("localhost:3", "[::1]:4")


def refusal(path: Path | None, env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, env or {}, {"node": flags or {}})
    return str(caught.value)


def test_an_error_names_the_file_and_the_section(file: Path) -> None:
    file.write_text("[node]\nname = 7\n")
    assert refusal(file) == f"{file}, [node]: name must be a text, not 7"


def test_an_error_names_the_environment_variable() -> None:
    assert refusal(None, {"COTERIE_NODE_LOG_LEVEL": "loud"}) == (
        "environment, COTERIE_NODE_LOG_LEVEL: log_level must be one of debug, info, warning, error, not 'loud'"
    )


def test_an_error_names_the_flag() -> None:
    assert refusal(None, flags={"log_format": "xml"}) == (
        "command line, --log-format: log_format must be one of text, json, not 'xml'"
    )


def test_an_unknown_name_is_refused_with_the_one_that_was_probably_meant(file: Path) -> None:
    file.write_text('[node]\ngruop = "x"\n')
    assert "there is no setting 'gruop' (did you mean 'group'?)" in refusal(file)
    file.write_text("[nod]\n")
    assert "there is no section [nod] (did you mean 'node'?)" in refusal(file)
    assert "there is no setting 'bnd' (did you mean 'bind'?)" in refusal(None, {"COTERIE_NODE_BND": "x"})


def test_variables_that_belong_to_somebody_else_are_left_alone() -> None:
    assert load_config(None, {"COTERIE_HOME": "/", "PATH": "/bin", "COTERIE_NODES": "3"}, {}).node == NodeSettings()


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(file: Path) -> None:
    assert refusal(file) == f"{file}: cannot be read: No such file or directory"
    file.write_text("[node\n")
    assert f"{file}: not TOML: " in refusal(file)
    file.write_bytes(b'[node]\nname = "\xff"\n')
    assert refusal(file) == f"{file}: not UTF-8 text"


def test_a_section_must_be_a_section(file: Path) -> None:
    file.write_text("node = 3\n")
    assert "'node' must be a section, [node], not 3" in refusal(file)


def test_a_stack_is_no_setting_of_a_broker(file: Path) -> None:
    file.write_text('[[stack]]\nprotocol = "TCP"\n')
    assert f"{file}: there is no section [stack]" in refusal(file)
    file.write_text('[node]\nstack = "reliable"\n')
    assert "there is no setting 'stack'" in refusal(file)


def test_every_setting_but_the_secret_has_a_flag_and_what_was_given_by_flags_is_read_back() -> None:
    parser = argparse.ArgumentParser()
    for section in SECTIONS:
        add_flags(parser, section)
    text = parser.format_help()
    for item in spellings():
        assert item.flag in text
    assert [item.name for item in spellings() if not item.flag] == ["secret"]
    words = ["--name", "alpha", "--log-level", "debug", "--peers", "localhost:1,localhost:2", "--cluster-size", "2"]
    given = flags_of(parser.parse_args(words))
    node = {"name": "alpha", "log_level": "debug", "peers": "localhost:1,localhost:2"}
    assert given == {"node": node, "cluster": {"size": "2"}}
    assert load_config(None, {}, given).node.peers == ("localhost:1", "localhost:2")


def test_values_are_shown_as_a_user_would_write_them() -> None:
    assert [plain(value) for value in (True, 0.5, 2.0, ("a", 1), (), None, "x")] == [
        "true", "0.5", "2", "a,1", "", "", "x",
    ]  # fmt: skip


# The secret.

SECRET = "a secret of the whole cluster"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def clustered(**variables: str) -> dict[str, str]:
    return {"COTERIE_CLUSTER_SIZE": "3", **{f"COTERIE_NODE_{name.upper()}": value for name, value in variables.items()}}


def test_the_secret_is_that_of_its_file_or_variable_without_the_end_of_the_line(secret_file: Path) -> None:
    assert load_config(None, clustered(secret_file=str(secret_file)), {}).node.secret == SECRET
    assert load_config(None, clustered(secret=f"{SECRET}\n"), {}).node.secret == SECRET


def test_a_secret_file_that_is_no_good_is_refused_with_what_to_do(tmp_path: Path) -> None:
    missing, empty, binary, large = (tmp_path / name for name in ("missing", "empty", "binary", "large"))
    for path, data in ((empty, b"\n"), (binary, b"\xff\xfe"), (large, b"x" * 5000)):
        path.write_bytes(data)
        path.chmod(0o600)
    assert "missing: cannot be read: No such file" in refusal(None, clustered(secret_file=str(missing)))
    assert "is empty: make one with `coterie cluster init`" in refusal(None, clustered(secret_file=str(empty)))
    assert "not UTF-8 text" in refusal(None, clustered(secret_file=str(binary)))
    assert "over 4096 bytes" in refusal(None, clustered(secret_file=str(large)))
    assert "cannot be read: Is a directory" in refusal(None, clustered(secret_file=str(tmp_path)))
    both = clustered(secret_file=str(empty), secret=SECRET)
    assert refusal(None, both) == "both 'secret' and 'secret_file' say what the secret is: leave one out"
    assert "node: secret must have at least 16 characters" in refusal(None, clustered(secret="too short"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it(
    file: Path, secret_file: Path, mode: int
) -> None:
    secret_file.chmod(mode)
    assert f"others can read it: chmod 600 {secret_file}" in refusal(None, clustered(secret_file=str(secret_file)))
    file.write_text(f'[cluster]\nsize = 3\n[node]\nsecret = "{SECRET}"\n')
    file.chmod(mode)
    assert f"others can read it: chmod 600 {file}" in refusal(file)
    file.chmod(0o600)
    assert load_config(file, {}, {}).node.secret == SECRET
    file.write_text('[node]\nname = "no secret in it"\n')
    file.chmod(mode)
    assert load_config(file, {}, {}).node.name == "no secret in it"


def test_a_secret_is_not_shown() -> None:
    config = load_config(None, clustered(secret=SECRET), {})
    assert SECRET not in repr(config)
    assert SECRET not in repr(config.group_port)


# Who reaches the port of the group.


@pytest.mark.parametrize(
    "given",
    [
        {"bind": "0.0.0.0:7800"}, {"bind": "[::]:7800"}, {"bind": "10.0.0.7:7800"}, {"bind": "broker-1:7800"},
        {"advertise": "broker-1"}, {"advertise": "10.0.0.7"}, {"peers": "127.0.0.1:7801,broker-2:7800"},
        {"peers": "[fe80::1%eth0]:7800"}, {"peers": "localhost.example.org:7800"}, {"peers": "[::ffff:10.0.0.1]:1"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("clustered_too", [False, True])
def test_what_other_machines_reach_needs_a_secret_and_the_line_says_what_to_do(
    given: dict[str, str], clustered_too: bool
) -> None:
    env = clustered(**given)
    if not clustered_too:
        del env["COTERIE_CLUSTER_SIZE"]
    told = refusal(None, env)
    (name,) = given
    assert f"node.{name} " in told
    assert "is not on loopback and the cluster has no secret" in told
    assert "make one with `coterie cluster init`" in told
    assert "--secret-file" in told
    with_one = load_config(None, {**env, **clustered(secret=SECRET)}, {}).group_port
    assert with_one.tcp() == {"secret": SECRET, "encrypt": True}
    assert with_one.encrypted()


def test_on_loopback_a_secret_may_be_left_out_and_nothing_is_encrypted_unless_told_to() -> None:
    here = {"bind": "127.0.0.9:7800", "advertise": "localhost", "peers": "[::1]:7801,[::ffff:127.0.0.1]:1"}
    assert load_config(None, clustered(**here), {}).group_port.tcp() == {}
    assert load_config(None, clustered(**here, secret=SECRET), {}).group_port.tcp() == {"secret": SECRET}
    always = load_config(None, clustered(**here, secret=SECRET, encrypt="always"), {}).group_port
    assert always.tcp() == {"secret": SECRET, "encrypt": True}
    assert "needs a secret" in refusal(None, clustered(**here, encrypt="always"))


def test_who_does_not_encrypt_between_machines_is_warned() -> None:
    never = load_config(None, clustered(bind="0.0.0.0:7800", secret=SECRET, encrypt="never"), {}).group_port
    assert never.tcp() == {"secret": SECRET}
    assert not never.encrypted()
    assert load_config(None, clustered(secret=SECRET, encrypt="never"), {}).group_port.exposed() == ""


def test_the_operators_certificates_take_the_place_of_those_made_of_the_secret(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("key")
    key.chmod(0o600)
    files = {"group_tls_cert": "cert.pem", "group_tls_key": str(key), "group_tls_ca": "ca.pem"}
    there = {"bind": "0.0.0.0:7800", **files}
    assert "has no secret" in refusal(None, clustered(**there))
    assert load_config(None, clustered(**there, secret=SECRET), {}).group_port.tcp() == {
        "secret": SECRET, "tls_cert": "cert.pem", "tls_key": str(key), "tls_ca": "ca.pem",
    }  # fmt: skip
    assert "contradict" in refusal(None, clustered(**files, encrypt="never"))
    assert "set all three, or none" in refusal(None, clustered(group_tls_cert="cert.pem"))
    key.chmod(0o644)
    assert f"group_tls_key: {key}: others can read it: chmod 600 {key}" in refusal(None, clustered(**files))
    key.unlink()
    assert f"group_tls_key: {key}: cannot be read" in refusal(None, clustered(**files))


# Settings without effect.


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"COTERIE_NODE_PEERS": "127.0.0.1:7801"}, "set cluster.size"),
        ({"COTERIE_NODE_BIND": "127.0.0.1:7801"}, "set cluster.size"),
        ({"COTERIE_NODE_SECRET": SECRET}, "set cluster.size"),
        ({"COTERIE_CLUSTER_LEASE": "1"}, "set cluster.size"),
        ({"COTERIE_CLUSTER_SIZE": "3", "COTERIE_CLUSTER_OWNERSHIP_TIME": "1"}, "cluster.dispatch is not ownership"),
        ({"COTERIE_STORE_PENDING_MAX": "1000000"}, "set node.data"),
        ({"COTERIE_NODE_TRACE_SEGMENT_SECONDS": "1"}, "set node.trace"),
        ({"COTERIE_NODE_TRACE_HOLD": "1"}, "set node.trace_publish"),
        ({"COTERIE_LISTEN_TLS_CERT": "cert.pem"}, "set listen.amqps or listen.console_tls"),
        ({"COTERIE_LISTEN_TLS_CLIENTS": "required"}, "set listen.amqps"),
        ({"COTERIE_LISTEN_TLS_RELOAD": "1"}, "or node.group_tls_cert"),
        ({"COTERIE_AUDIT_WINDOW": "3"}, "there is no audit log"),
        ({"COTERIE_LISTEN_CONSOLE": "", "COTERIE_LISTEN_CONSOLE_TLS": "true"}, "the console is shut"),
        ({"COTERIE_LISTEN_CONSOLE": "", "COTERIE_CONSOLE_BODY_MAX": "5000"}, "the console is shut"),
        ({"COTERIE_LISTEN_PROBES": "", "COTERIE_CONSOLE_PROBE_TIMEOUT": "9"}, "set listen.probes"),
        ({"COTERIE_LISTEN_AMQPS_ALLOW": "10.0.0.0/8"}, "set listen.amqps"),
        ({"COTERIE_LISTEN_AMQP": "", "COTERIE_LISTEN_AMQP_ALLOW": "10.0.0.0/8"}, "set listen.amqp"),
        ({"COTERIE_LISTEN_CONSOLE": "", "COTERIE_LISTEN_CONSOLE_ALLOW": "10.0.0.0/8"}, "set listen.console"),
        ({"COTERIE_LISTEN_AMQP": "", "COTERIE_AMQP_HEARTBEAT": "9"}, "set listen.amqp or listen.amqps"),
        ({"COTERIE_AMQP_CERTIFICATE_NAME": "distinguished_name"}, "set listen.amqps"),
        ({"COTERIE_REPLICATION_QUEUES": "^r"}, "set replication.to"),
        ({"COTERIE_AUDIT_SEGMENTS_KEPT": "3"}, "set audit.folder"),
        ({"COTERIE_AUDIT_HOLD": "3"}, "set audit.publish"),
        ({"COTERIE_AUDIT_LINES_IN_ALL": "3"}, "there is no audit log"),
        ({"COTERIE_BROKER_QUEUE_RESIDENT_MAX": "3"}, "has node.data"),
        ({"COTERIE_BROKER_MEMORY_HIGH": "0", "COTERIE_BROKER_MEMORY_LOW": "0.5"}, "set broker.memory_high"),
    ],
)
def test_a_setting_that_has_no_effect_is_refused_with_where_it_stands(given: dict[str, str], remedy: str) -> None:
    told = refusal(None, given)
    assert f"environment, {list(given)[-1]}: " in told
    assert "has no effect: " in told
    assert remedy in told


def test_the_limits_of_probes_hold_without_a_console() -> None:
    shut = {"COTERIE_LISTEN_CONSOLE": "", "COTERIE_CONSOLE_PROBE_TIMEOUT": "9"}
    assert load_config(None, shut, {}).console.probe_timeout == 9


def test_a_setting_at_its_default_asks_for_nothing() -> None:
    load_config(None, {"COTERIE_NODE_SECRET_FILE": "", "COTERIE_CLUSTER_LEASE": "1.5"}, {})
