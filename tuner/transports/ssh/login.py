"""Authenticate to a server by agent, key files, keyboard-interactive and password, in this order.

Nothing typed is kept. A passphrase is only asked for if the server would accept the key; the unlocked key stays in
memory, so that a lost link can be restored without the operator.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType

import asyncssh

from tuner.core.logtext import clean
from tuner.domain.link import SecretQuestion
from tuner.transports import Ask
from tuner.transports.ssh.route import Hop

MAX_PROMPT = 500
"""Largest number of characters shown of a server's question."""
ATTEMPTS = 3
"""Number of attempts for a passphrase, a password or an answer."""
LOGIN_S = 20.0
"""Longest wait for the server's next step of the login, seconds, once TCP is connected; time in which the operator is
asked does not count."""


class Patience:
    """A time limit, as an async context, whose error names what was waited for.

    Args:
        connect_s: Limit for the connection itself, seconds.
        message: Message of the error if this limit was exceeded.

    Raises:
        TimeoutError: The limit was exceeded; raised with the message at the end of the block.
    """

    def __init__(self, connect_s: float, message: str) -> None:
        self._limit = asyncio.timeout(connect_s)
        self._message = message

    async def __aenter__(self) -> Patience:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            raise TimeoutError(self._message) from expired

    def connected(self, message: str) -> None:
        """Note that TCP is connected; from now on `LOGIN_S` limits the server's silence, with this message."""
        self._message = message
        self._restart()

    async def ask(self, question: Awaitable[str | None]) -> str | None:
        """Wait for the operator's answer without a time limit; then start the server's limit anew."""
        self._limit.reschedule(None)
        try:
            return await question
        finally:
            self._restart()

    def _restart(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + LOGIN_S)


class KeyFile:
    """A private key on disk, perhaps locked by a passphrase.

    Args:
        path: Path of the private key; certificate and public key are searched beside it.
        certificates: Paths of further certificates, one of which may be for this key.
    """

    def __init__(self, path: Path, certificates: Sequence[Path] = ()) -> None:
        self.path = path
        self.pairs: list[asyncssh.SSHKeyPair] = []
        """Key pairs ready to sign; empty while the key is locked."""
        self.public: asyncssh.SSHKey | None = None
        """Public key; None if it cannot be read without the passphrase."""
        self.locked = False
        """Whether the file needs a passphrase, also after it was unlocked."""
        self._certificates = certificates
        try:
            self.pairs = self._load(None)
        except asyncssh.KeyImportError as error:
            # The library reports a missing passphrase only in the text of its error.
            self.locked = "assphrase" in str(error)
        except (OSError, ValueError):
            return
        for candidate in (path.with_name(path.name + ".pub"), path):
            with contextlib.suppress(OSError, asyncssh.KeyImportError):
                self.public = asyncssh.read_public_key(candidate)
                break
        if self.public is None and self.pairs:
            self.public = asyncssh.import_public_key(_openssh(self.pairs[0].key_public_data))

    @property
    def certificate(self) -> asyncssh.SSHCertificate | None:
        """The certificate for this key; None if there is none."""
        for candidate in (self.path.with_name(self.path.name + "-cert.pub"), *self._certificates):
            with contextlib.suppress(OSError, asyncssh.KeyImportError):
                certificate = asyncssh.read_certificate(candidate)
                if self.public and certificate.key.public_data == self.public.public_data:
                    return certificate
        return None

    def unlock(self, passphrase: str) -> bool:
        """Try a passphrase; return whether it was right. Call it in a thread: the file format makes it slow."""
        try:
            self.pairs = self._load(passphrase)
        except (ValueError, asyncssh.Error):
            return False
        return True

    def _load(self, passphrase: str | None) -> list[asyncssh.SSHKeyPair]:
        return list(
            asyncssh.load_keypairs([str(self.path)], passphrase, [str(p) for p in self._certificates if p.exists()])
        )


class LockedKey(asyncssh.SSHKeyPair):
    """A key pair that offers the public key and unlocks the private one only if the server asks for a signature."""

    _key_type = "locked"

    def __init__(
        self,
        public: asyncssh.SSHKey,
        certificate: asyncssh.SSHCertificate | None,
        unlock: Callable[[], Awaitable[Sequence[asyncssh.SSHKeyPair]]],
    ) -> None:
        super().__init__(
            public.algorithm,
            public.algorithm,
            public.sig_algorithms,
            public.sig_algorithms,
            public.public_data,
            None,
            certificate,
        )
        self._unlock = unlock

    async def sign_async(self, data: bytes) -> bytes:
        """Unlock the key, asking the operator, and sign.

        Raises:
            ValueError: The key was not unlocked.
        """
        for pair in await self._unlock():
            if pair.public_data == self.public_data:
                pair.set_sig_algorithm(self.sig_algorithm)
                return pair.sign(data)
        raise ValueError("the key stayed locked")


class Login(asyncssh.SSHClient):
    """Answers the requests of one server during one login.

    Args:
        hop: The server.
        target: Name of the target that questions belong to.
        ask: Function that puts a question to the operator.
        patience: Time limit, which is suspended while the operator is asked.
        files: Key files of the hop.
        trusted: Function that decides on a host key that the known_hosts files do not contain.
    """

    def __init__(
        self,
        hop: Hop,
        target: str,
        ask: Ask,
        patience: Patience,
        files: Sequence[KeyFile],
        trusted: Callable[[asyncssh.SSHKey], bool],
    ) -> None:
        self._hop = hop
        self._target = target
        self._ask_operator = ask
        self._patience = patience
        self._files = files
        self._trusted = trusted
        self._offers: AsyncIterator[asyncssh.SSHKeyPair] = self._pairs()
        self._agent: asyncssh.SSHAgentClient | None = None
        self._asked = {"password": 0, "keyboard-interactive": 0}
        self._answered: set[str] = set()
        self.given_up = False
        """Whether the operator declined to answer."""
        self.unanswered: list[str] = []
        """Methods that could not be tried or failed too often, in words, for the message about a refused login."""
        self.began = False
        """Whether the host key was accepted, so that authentication has begun."""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide on a host key that the known_hosts files do not contain."""
        return self._trusted(key)

    def begin_auth(self, username: str) -> None:
        """Note that the host key was accepted."""
        self.began = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the agent after the connection was lost."""
        self.close()

    def auth_completed(self) -> None:
        """Release the agent after the login succeeded."""
        self.close()

    def close(self) -> None:
        """Close the connection to the agent."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    async def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        """Return the next key to try; None after the last one."""
        pair = await anext(self._offers, None)
        return [pair] if pair is not None else None

    async def password_auth_requested(self) -> str | None:
        """Ask for the password, anew each time; None if the operator declines or after the last attempt."""
        return await self._secret("password", f"Password of {self._hop.label}")

    async def kbdint_auth_requested(self) -> str | None:
        """Return an empty text to try keyboard-interactive, None after the last attempt."""
        if not self._may_ask("keyboard-interactive", "what was typed"):
            return None
        return ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Put the server's questions to the operator; None if they decline."""
        answers: list[str] = []
        for prompt, echo in prompts:
            # The text comes from the server and is shown on the terminal, so control sequences are removed.
            text = clean(" ".join(" ".join((name, instructions, prompt)).split()))[:MAX_PROMPT]
            answer = await self._question(
                "keyboard-interactive", f"{self._hop.label}: {text}", self._asked["keyboard-interactive"], echo
            )
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def _pairs(self) -> AsyncIterator[asyncssh.SSHKeyPair]:
        """Yield keys in the order in which ssh tries them: the agent's (configured ones first), files, locked files."""
        named = [file.public.public_data for file in self._files if file.public]
        held = await self._agent_pairs()
        held.sort(key=lambda pair: named.index(pair.public_data) if pair.public_data in named else len(named))
        for pair in held:
            if pair.public_data in named or not self._hop.identities_only:
                yield pair
        offered = {pair.public_data for pair in held}
        for file in self._files:
            for pair in file.pairs:
                if pair.public_data not in offered:
                    yield pair
        for file in self._files:
            if not file.locked or file.pairs:
                continue
            if file.public is None:
                # An old format encrypts the public key too, so the file must be unlocked before anything is offered.
                for pair in await self._unlock(file):
                    yield pair
            elif file.public.public_data not in offered:
                for certificate in (file.certificate, None) if file.certificate else (None,):
                    yield LockedKey(file.public, certificate, lambda file=file: self._unlock(file))  # type: ignore[misc]

    async def _agent_pairs(self) -> list[asyncssh.SSHKeyPair]:
        if not self._hop.agent:
            return []
        try:
            self._agent = await asyncssh.connect_agent(self._hop.agent)
            return list(await self._agent.get_keys())
        except (OSError, ValueError, asyncssh.Error):
            # An agent that ended may leave its socket behind; the key files still work.
            return []

    async def _unlock(self, file: KeyFile) -> Sequence[asyncssh.SSHKeyPair]:
        wrong = f"the passphrase was wrong {ATTEMPTS} times"
        for attempt in range(1, ATTEMPTS + 1):
            if file.pairs or self.given_up:
                break
            passphrase = await self._question("passphrase", f"Passphrase of {file.path}", attempt, False)
            if passphrase is None:
                wrong = "no passphrase was given"
                break
            await asyncio.to_thread(file.unlock, passphrase)
        if not file.pairs:
            self.unanswered.append(f"{wrong}, so the key {file.path} was not tried")
        return file.pairs

    async def _secret(self, kind: str, prompt: str) -> str | None:
        if not self._may_ask(kind, f"the {kind}"):
            return None
        return await self._question(kind, prompt, self._asked[kind], False)

    def _may_ask(self, kind: str, what: str) -> bool:
        """Count an attempt and return whether it is allowed; False after the last one or if the operator gave up."""
        if self.given_up:
            return False
        if self._asked[kind] >= ATTEMPTS:
            # A server may offer the method and refuse without a question; then nothing was answered wrongly.
            if kind in self._answered:
                self.unanswered.append(f"{what} was wrong {ATTEMPTS} times")
            return False
        self._asked[kind] += 1
        return True

    async def _question(self, kind: str, prompt: str, attempt: int, echo: bool) -> str | None:
        answer = await self._patience.ask(
            self._ask_operator(
                SecretQuestion(
                    target=self._target,
                    host=self._hop.label,
                    kind=kind,
                    prompt=prompt,
                    attempt=attempt,
                    echo=echo,
                )
            )
        )
        if answer is None and kind != "passphrase":
            self.given_up = True
            self.unanswered.append("no password was given" if kind == "password" else "no answer was given")
        if answer is not None:
            self._answered.add(kind)
        return answer


def _openssh(public_data: bytes) -> bytes:
    """Format a public key as a line of a `.pub` file."""
    length = int.from_bytes(public_data[:4], "big")
    return public_data[4 : 4 + length] + b" " + base64.b64encode(public_data)
