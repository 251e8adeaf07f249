"""The SSH transport against a real OpenSSH server: configuration, host keys, logins, and what can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from tests.support.asking import Operator
from tests.support.sshd import USER, Sshd, SshWorld, free_port, keygen, public_key, world
from tuner import transports
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.transports import Opener, RemoteProcess, Transport
from tuner.transports.ssh.failures import explain
from tuner.transports.ssh.route import Hop

pytestmark = pytest.mark.sshd


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshWorld]:
    with world(tmp_path / "home") as made:
        monkeypatch.setenv("HOME", str(made.home))
        yield made


def at(server: Sshd, **fields: object) -> Target:
    return Target(**{"name": "box", "host": "127.0.0.1", "port": server.port, **fields})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def connected(target: Target | Opener, ask: Operator | None = None) -> AsyncIterator[Transport]:
    transport = (transports.opener(target) if isinstance(target, Target) else target)()
    try:
        await transport.connect(ask or Operator())
        yield transport
    finally:
        await transport.aclose()


async def refused(target: Target | Opener, ask: Operator | None = None) -> ConnectionFailed:
    """Connecting fails with one line."""
    with pytest.raises(ConnectionFailed) as failed:
        async with connected(target, ask):
            pass
    assert "\n" not in str(failed.value)
    return failed.value


async def said(transport: Transport, *argv: str) -> str:
    process: RemoteProcess = await transport.spawn(argv)
    words = b""
    while block := await process.read():
        words += block
    await process.wait()
    return words.decode().strip()


def fingerprint(server: Sshd) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", server.host_key], capture_output=True, check=True, text=True)
    return done.stdout.split()[1]


def openssh_accepts(home: SshWorld, server: Sshd) -> bool:
    """OpenSSH's own client finds the key in the file."""
    done = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", home.known_hosts], capture_output=True, check=False
    )
    return done.returncode == 0


def ssh_keygen(*argv: str | Path) -> None:
    subprocess.run(["ssh-keygen", "-q", *argv], check=True, timeout=30)


# Configuration


async def test_an_alias_with_everything_in_the_configuration(home: SshWorld) -> None:
    other = keygen(home.home / "keys" / "other")
    server = home.server()
    server.authorize(other)
    (home.ssh / "conf.d").mkdir()
    (home.ssh / "conf.d" / "gpu").write_text(f"Host gpu-*\n  Port {server.port}\n  User {USER}\n")
    home.config(f"Include conf.d/*\nHost gpu-1\n  HostName 127.0.0.1\n  IdentityFile {other}\n  IdentitiesOnly yes\n")
    async with connected(Target(name="gpu-1", host="gpu-1")) as transport:
        assert await said(transport, "echo", "there") == "there"
        assert transport.notes == ()


async def test_what_was_typed_beats_the_configuration(home: SshWorld) -> None:
    server = home.server()
    home.config("Host gpu\n  HostName 127.0.0.1\n  Port 1\n  User nobody\n")
    async with connected(Target(name="gpu", host="gpu", user=USER, port=server.port)) as transport:
        assert await said(transport, "id", "-un") == USER


async def test_match_blocks(home: SshWorld) -> None:
    server = home.server()
    home.config(
        f"Match originalhost gpu exec true\n  Port {server.port}\nMatch exec false\n  Port 1\n"
        "Host gpu\n  HostName 127.0.0.1\n"
    )
    async with connected(Target(name="gpu", host="gpu")) as transport:
        assert await said(transport, "echo", "there") == "there"


async def test_options_without_effect_are_named(home: SshWorld) -> None:
    server = home.server()
    home.config(
        "Host box\n  HostName 127.0.0.1\n  ControlMaster auto\n  ControlPath ~/x\n  LocalForward 1 localhost:1\n"
        "  StrictHostKeyChecking no\n  ForwardAgent yes\n  ForwardX11 no\nHost other\n  PKCS11Provider /x\n"
    )
    async with connected(at(server, host="box")) as transport:
        assert [note.split()[0] for note in transport.notes] == [
            "ControlMaster", "LocalForward", "StrictHostKeyChecking", "ForwardAgent",
        ]  # fmt: skip


async def test_a_broken_line_is_named(home: SshWorld) -> None:
    server = home.server()
    home.config("Host box\n  HostName 127.0.0.1\n  Port many\n")
    failure = await refused(at(server, host="box"))
    assert failure.final
    assert f"{home.ssh / 'config'} line 3" in str(failure)


async def test_comments_at_the_end_of_a_line(home: SshWorld) -> None:
    server = home.server()
    (home.ssh / "more").write_text(f"Port {server.port} # here\nSetEnv 'X=a # b'\n")
    home.config("Host gpu # the big one\n  HostName 127.0.0.1\t# loopback\n  Include more # and so on\n")
    async with connected(Target(name="gpu", host="gpu")) as transport:
        assert await said(transport, "echo", "there") == "there"


async def test_a_proxy_command_carries_the_connection(home: SshWorld, tmp_path: Path) -> None:
    server = home.server()
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    home.config(
        f"Host inside\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyCommand {sys.executable} {relay} %h %p\n"
    )
    async with connected(Target(name="inside", host="inside")) as transport:
        assert await said(transport, "echo", "there") == "there"


async def test_a_host_of_our_own_leaves_the_users_files_alone(home: SshWorld, tmp_path: Path) -> None:
    ours = keygen(tmp_path / "ours" / "key")
    server = home.server(known=False)
    server.authorize(ours)
    known = tmp_path / "ours" / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {public_key(server.host_key)}\n")
    home.config("Host *\n  Port 1\n  User nobody\n  this is no configuration\n")
    options = {"known_hosts": str(known), "identity": str(ours), "config": "none"}
    async with connected(at(server, user=USER, options=options)) as transport:
        assert await said(transport, "echo", "there") == "there"
    known.write_text("")
    asked = Operator("refuse")
    await refused(at(server, user=USER, options=options), asked)
    assert not home.known_hosts.exists()


# Jump hosts


async def test_a_jump_host_is_checked_as_well(home: SshWorld) -> None:
    jump = home.server("jump", known=False)
    server = home.server("inside", known=False)
    home.config(
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\nHost inside\n  HostName 127.0.0.1\n"
        f"  Port {server.port}\n  ProxyJump jump\n"
    )
    ask = Operator("save", "once")
    async with connected(Target(name="inside", host="inside"), ask) as transport:
        assert await said(transport, "echo", "there") == "there"
    assert [(key.port, key.fingerprint) for key in ask.keys] == [
        (jump.port, fingerprint(jump)),
        (server.port, fingerprint(server)),
    ]
    assert openssh_accepts(home, jump)
    assert not openssh_accepts(home, server)


async def test_a_chain_of_jump_hosts(home: SshWorld) -> None:
    first, second, server = (home.server(name) for name in ("first", "second", "inside"))
    home.config(
        f"Host first\n  HostName 127.0.0.1\n  Port {first.port}\n"
        f"Host inside\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"  ProxyJump first,{USER}@127.0.0.1:{second.port}\n"
    )
    async with connected(Target(name="inside", host="inside")) as transport:
        connection = await said(transport, "sh", "-c", "echo $SSH_CONNECTION")
    assert connection.endswith(f"127.0.0.1 {server.port}")
    for hop in (first, second, server):
        assert "Accepted publickey" in hop.log.read_text()


async def test_a_jump_host_that_needs_one_itself(home: SshWorld) -> None:
    first, second, server = (home.server(name) for name in ("first", "second", "inside"))
    home.config(
        f"Host first\n  HostName 127.0.0.1\n  Port {first.port}\n"
        f"Host second\n  HostName 127.0.0.1\n  Port {second.port}\n  ProxyJump first\n"
        f"Host inside\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump second\n  LocalForward 1 a:1\n"
    )
    async with connected(Target(name="inside", host="inside")) as transport:
        assert await said(transport, "echo", "there") == "there"
        assert [note.split(":")[0] for note in transport.notes] == ["LocalForward 1 a"]
    assert "Accepted publickey" in first.log.read_text()


async def test_jumping_in_circles_is_refused(home: SshWorld) -> None:
    home.config("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    failure = await refused(Target(name="a", host="a"))
    assert failure.final
    assert "circles" in str(failure)


async def test_a_host_that_the_jump_host_cannot_reach(home: SshWorld) -> None:
    jump = home.server("jump")
    home.config(f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n")
    home.config(
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        f"Host inside\n  HostName 127.0.0.1\n  Port {free_port()}\n  ProxyJump jump\n"
    )
    failure = await refused(Target(name="inside", host="inside"))
    assert not failure.final
    assert "jump host cannot reach" in str(failure)


async def test_a_changed_key_of_a_jump_host_is_refused(home: SshWorld) -> None:
    jump = home.server("jump", start=False)
    server = home.server("inside")
    jump.new_host_key()
    jump.start()
    home.config(f"Host inside\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump {USER}@127.0.0.1:{jump.port}\n")
    failure = await refused(Target(name="inside", host="inside"))
    assert failure.final
    assert "CHANGED" in str(failure)


# Host keys


async def test_an_unknown_key_asks_with_its_fingerprint(home: SshWorld) -> None:
    server = home.server(known=False)
    ask = Operator("refuse")
    failure = await refused(at(server), ask)
    assert failure.final
    (question,) = ask.keys
    assert (question.host, question.port, question.key_type) == ("127.0.0.1", server.port, "ssh-ed25519")
    assert question.fingerprint == fingerprint(server)
    assert fingerprint(server) in str(failure)
    assert not home.known_hosts.exists()


async def test_a_key_accepted_once_is_good_for_the_reconnects_of_a_session_only(home: SshWorld) -> None:
    server = home.server(known=False)
    opener = transports.opener(at(server))
    async with connected(opener, Operator("once")):
        pass
    async with connected(opener, Operator()):
        pass
    assert not home.known_hosts.exists()
    ask = Operator("refuse")
    await refused(at(server), ask)
    assert len(ask.keys) == 1


@pytest.mark.parametrize("hashed", [False, True])
async def test_a_saved_key_is_known_to_us_and_to_openssh(home: SshWorld, hashed: bool) -> None:
    server = home.server(known=False)
    home.config(f"HashKnownHosts {'yes' if hashed else 'no'}\n")
    home.known_hosts.write_text("# mine, without end of line")
    async with connected(at(server), Operator("save")):
        pass
    assert openssh_accepts(home, server)
    lines = home.known_hosts.read_text().splitlines()
    assert lines[0] == "# mine, without end of line"
    assert len(lines) == 2
    assert ("127.0.0.1" in lines[1]) is not hashed
    async with connected(at(server), Operator()):
        pass
    assert home.known_hosts.stat().st_mode & 0o077 in (0o044, 0)


async def test_a_new_known_hosts_file_is_the_users_own(home: SshWorld) -> None:
    server = home.server(known=False)
    async with connected(at(server), Operator("save")):
        pass
    assert home.known_hosts.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("checking", ["", "StrictHostKeyChecking no\n", "StrictHostKeyChecking accept-new\n"])
async def test_a_changed_key_is_refused_with_file_and_line(home: SshWorld, checking: str) -> None:
    server = home.server(start=False)
    home.known_hosts.write_text("# a comment\n" + home.known_hosts.read_text())
    home.config(checking)
    server.new_host_key()
    server.start()
    failure = await refused(at(server))
    assert failure.final
    assert f"{home.known_hosts} line 2" in str(failure)
    assert fingerprint(server) in str(failure)


async def test_a_key_that_changed_its_kind_is_a_changed_key(home: SshWorld) -> None:
    server = home.server(known=False)
    rsa = keygen(home.home / "rsa", kind="rsa")
    home.known_hosts.write_text(f"[127.0.0.1]:{server.port} {public_key(rsa)}\n")
    failure = await refused(at(server))
    assert failure.final
    assert "CHANGED" in str(failure)


async def test_the_kind_of_key_that_is_known_is_asked_for(home: SshWorld) -> None:
    rsa = keygen(home.home / "host_rsa", kind="rsa")
    server = home.server(known=False, options=f"HostKey {rsa}")
    home.known_hosts.write_text(f"[127.0.0.1]:{server.port} {public_key(rsa)}\n")
    async with connected(at(server)):
        pass


async def test_a_revoked_key_is_refused(home: SshWorld) -> None:
    server = home.server()
    with home.known_hosts.open("a") as file:
        file.write(f"@revoked * {public_key(server.host_key)}\n")
    failure = await refused(at(server))
    assert failure.final
    assert "revoked" in str(failure)
    assert f"{home.known_hosts} line 2" in str(failure)


async def test_no_known_hosts_file_at_all_does_not_turn_checking_off(home: SshWorld) -> None:
    server = home.server()
    home.config("UserKnownHostsFile none\nGlobalKnownHostsFile none\n")
    ask = Operator("once")
    async with connected(at(server), ask):
        pass
    assert len(ask.keys) == 1
    failure = await refused(at(server), Operator("save"))
    assert "cannot be saved" in str(failure)


async def test_an_alias_for_the_host_key(home: SshWorld) -> None:
    server = home.server(known=False)
    home.known_hosts.write_text(f"cluster {public_key(server.host_key)}\n")
    home.config("HostKeyAlias cluster\n")
    async with connected(at(server)):
        pass


async def test_a_host_certificate(home: SshWorld) -> None:
    authority = keygen(home.home / "ca")
    server = home.server(
        known=False, start=False, options=f"HostCertificate {home.home / 'host' / 'host_key-cert.pub'}"
    )
    ssh_keygen("-s", authority, "-I", "host", "-h", "-n", "127.0.0.1", f"{server.host_key}.pub")
    server.start()
    ask = Operator("once")
    async with connected(at(server), ask):
        pass
    assert ask.keys[0].fingerprint == fingerprint(server)
    home.known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {public_key(authority)}\n")
    async with connected(at(server)):
        pass


# Logins


def locked(home: SshWorld, server: Sshd, passphrase: str = "open sesame") -> Path:
    """The only key that the server takes has a passphrase."""
    home.key.unlink()
    home.key.with_name("id_ed25519.pub").unlink()
    key = keygen(home.key, passphrase=passphrase)
    server.authorize(key)
    return key


async def test_a_passphrase_is_asked_for_until_it_is_right_and_not_again(home: SshWorld) -> None:
    server = home.server()
    key = locked(home, server)
    opener = transports.opener(at(server))
    ask = Operator("wrong", "open sesame")
    async with connected(opener, ask):
        pass
    assert [(secret.kind, secret.attempt, secret.echo) for secret in ask.secrets] == [
        ("passphrase", 1, False),
        ("passphrase", 2, False),
    ]
    assert str(key) in ask.secrets[0].prompt
    async with connected(opener, Operator()):
        pass


async def test_three_wrong_passphrases_are_enough(home: SshWorld) -> None:
    server = home.server()
    locked(home, server)
    ask = Operator("a", "b", "c")
    failure = await refused(at(server), ask)
    assert failure.final
    assert "refused the login" in str(failure)
    assert f"the passphrase was wrong 3 times, so the key {home.key} was not tried" in str(failure)
    assert "authorized_keys" not in str(failure)


async def test_giving_up_a_passphrase(home: SshWorld) -> None:
    server = home.server()
    locked(home, server)
    failure = await refused(at(server), Operator(None))
    assert failure.final
    assert f"no passphrase was given, so the key {home.key} was not tried" in str(failure)


async def test_a_passphrase_is_not_asked_for_a_key_that_the_server_does_not_take(home: SshWorld) -> None:
    server = home.server()
    keygen(home.ssh / "id_rsa", kind="rsa", passphrase="other")
    server.authorize(keygen(home.home / "elsewhere"))
    failure = await refused(at(server), Operator())
    assert failure.final


async def test_after_a_refusal_an_unlocked_key_is_forgotten(home: SshWorld) -> None:
    server = home.server()
    key = locked(home, server)
    opener = transports.opener(at(server))
    async with connected(opener, Operator("open sesame")):
        pass
    server.authorize()
    await refused(opener, Operator())
    server.authorize(key)
    ask = Operator("open sesame")
    async with connected(opener, ask):
        pass
    assert len(ask.secrets) == 1


async def test_a_refused_key_is_one_clear_line(home: SshWorld) -> None:
    server = home.server()
    server.authorize()
    failure = await refused(at(server))
    assert failure.final
    assert f"{USER}@127.0.0.1:{server.port} refused the login" in str(failure)


async def test_a_key_file_that_does_not_exist_or_is_none_is_passed_over(home: SshWorld) -> None:
    server = home.server()
    (home.ssh / "broken").write_text("no key")
    home.config(f"IdentityFile ~/.ssh/absent\nIdentityFile ~/.ssh/broken\nIdentityFile {home.key}\n")
    async with connected(at(server)):
        pass


async def test_the_agent_is_used_and_never_forwarded(home: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = home.server()
    agent = home.agent()
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    home.add_to_agent(home.key, agent)
    home.key.unlink()
    home.config("ForwardAgent yes\n")
    async with connected(at(server)) as transport:
        assert await said(transport, "sh", "-c", "echo agent=$SSH_AUTH_SOCK") == "agent="


async def test_a_locked_key_that_the_agent_holds_is_not_asked_for(
    home: SshWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = home.server()
    agent = home.agent()
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    home.add_to_agent(home.key, agent)
    ssh_keygen("-p", "-P", "", "-N", "locked now", "-f", home.key)
    async with connected(at(server), Operator()):
        pass


async def test_only_named_keys_of_the_agent_are_offered_where_that_is_asked_for(
    home: SshWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = home.server()
    agent = home.agent()
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    home.add_to_agent(home.key, agent)
    other = keygen(home.home / "keys" / "other")
    home.config(f"IdentityFile {other}\nIdentitiesOnly yes\n")
    assert (await refused(at(server))).final
    home.config(f"IdentityFile {home.key}.pub\nIdentitiesOnly yes\n")
    async with connected(at(server)):
        pass
    home.config(f"IdentityAgent none\nIdentityFile {other}\n")
    assert (await refused(at(server))).final


async def test_an_agent_that_is_gone_is_no_reason_to_fail(home: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home.home / "gone.sock"))
    async with connected(at(home.server())):
        pass


async def test_too_many_keys(home: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = home.server(options="MaxAuthTries 2")
    server.authorize()
    agent = home.agent()
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    for number in range(4):
        home.add_to_agent(keygen(home.home / "keys" / str(number)), agent)
    failure = await refused(at(server))
    assert failure.final
    assert "IdentitiesOnly" in str(failure)


async def test_a_certificate_of_a_user(home: SshWorld) -> None:
    authority = keygen(home.home / "ca")
    server = home.server(options=f"TrustedUserCAKeys {authority}.pub")
    server.authorize()
    ssh_keygen("-s", authority, "-I", "me", "-n", USER, f"{home.key}.pub")
    async with connected(at(server)):
        pass


# What can go wrong on the way


async def test_nothing_listens(home: SshWorld) -> None:
    port = free_port()
    failure = await refused(Target(name="box", host="127.0.0.1", port=port))
    assert not failure.final
    assert f"nothing listens on port {port}" in str(failure)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "cannot be reached: No route to host"),
        # What asyncio says when a name has several addresses.
        (
            OSError(
                "Multiple exceptions: [Errno 101] Connect call failed ('::1', 22, 0, 0), "
                "[Errno 113] Connect call failed ('10.0.0.7', 22)"
            ),
            "cannot be reached: Network is unreachable. Is the network",
        ),
        (
            OSError("Multiple exceptions: [Errno 101] Connect call failed, [Errno 111] Connect call failed"),
            "refused the connection",
        ),
        (asyncssh.ConnectionLost("Connection lost"), "took the connection and closed it. Is 22 its SSH port"),
    ],
)
def test_why_a_host_is_not_reached(error: Exception, words: str) -> None:
    hop = Hop(name="box", user="root", host="10.0.0.7", port=22)
    assert words in str(explain(hop, error, reached_before=False))


async def test_a_name_that_nobody_has(home: SshWorld) -> None:
    failure = await refused(Target(name="no-such-host.invalid", host="no-such-host.invalid"))
    assert "no-such-host.invalid" in str(failure)


async def test_a_port_that_speaks_something_else(home: SshWorld) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n" * 2000)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        failure = await refused(Target(name="box", host="127.0.0.1", port=port))
        server.close()
    assert failure.final
    assert "does not speak SSH" in str(failure)


async def test_a_port_that_says_nothing(home: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.transports.ssh.login.LOGIN_S", 0.3)
    gone = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        failure = await refused(Target(name="box", host="127.0.0.1", port=port))
        await asyncio.wait_for(gone.wait(), 10)
        server.close()
    assert not failure.final
    assert "said nothing" in str(failure)


async def test_a_server_that_is_stopped(home: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = home.server()
    opener = transports.opener(at(server))
    async with connected(opener):
        pass
    server.stop()
    failure = await refused(opener)
    assert not failure.final
    server.start()
    async with connected(opener):
        pass
