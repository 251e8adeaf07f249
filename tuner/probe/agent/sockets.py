"""Listening sockets, and the network namespaces of processes."""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import List, Optional, Set

from .base import HOST_ROOT, PROC, link_of, slurp


class Listener:
    """A listening TCP socket."""

    __slots__ = ("address", "inode", "port", "uid")

    def __init__(self, address: str, port: int, inode: int, uid: int) -> None:
        self.address = address
        self.port = port
        self.inode = inode
        self.uid = uid


_LISTEN = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) [0-9A-F]+:0000 0A \S+ \S+ \S+ +(\d+) +\d+ +(\d+)", re.M)


def listeners_here() -> Optional[List[Listener]]:
    """Return the listening TCP sockets of our own network namespace; None where the kernel does not list them.

    The tables in /proc iterate over every possible connection: 4 ms each on a large host.
    """
    out: List[Listener] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as sock:  # NETLINK_SOCK_DIAG
            sock.settimeout(1.0)
            for family in (socket.AF_INET, socket.AF_INET6):
                # SOCK_DIAG_BY_FAMILY: a dump of the TCP sockets in state LISTEN.
                sock.sendto(struct.pack("=IHHIIBBHI48x", 72, 20, 0x301, 0, 0, family, 6, 0, 1 << 10), (0, 0))
                while _take_listeners(sock.recv(65_536), out):
                    pass
    except (OSError, AttributeError, struct.error):
        return None
    return out


def _take_listeners(data: bytes, out: List[Listener]) -> bool:
    """Collect the sockets of a netlink answer; return False after the last one. Raises OSError."""
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind != 20:  # the end, or an error
            if kind == 3:
                return False
            raise OSError("sock_diag does not answer")
        wide = data[16] == socket.AF_INET6
        (port,) = struct.unpack_from("!H", data, 20)
        uid, inode = struct.unpack_from("=II", data, 80)
        out.append(Listener(address_in(data[24 : 40 if wide else 28]), port, inode, uid))
        data = data[(length + 3) & ~3 :]
    return True


def listeners_of(pid: int) -> List[Listener]:
    """Return the listening TCP sockets in a process's network namespace."""
    ours = None if HOST_ROOT else link_of("/proc/self/ns/net")
    found = listeners_here() if ours is not None and ours == link_of("%s/%d/ns/net" % (PROC, pid)) else None
    if found is not None:
        return found
    out: List[Listener] = []
    for name in ("tcp", "tcp6"):
        data = b""
        for path in ("%s/%d/net/%s" % (PROC, pid, name), "%s/net/%s" % (PROC, name)):
            try:
                data = slurp(path, 1 << 24)
                break
            except OSError:
                continue
        for address, port, uid, inode in _LISTEN.findall(data):
            out.append(Listener(address_of(address.decode("ascii")), int(port, 16), int(inode), int(uid)))
    return out


def same_network(pid: int) -> bool:
    """Return whether a process is known to be in our network namespace."""
    theirs = link_of("%s/%d/ns/net" % (PROC, pid))
    if theirs is not None:
        return theirs == link_of("/proc/self/ns/net")
    # The link of another user's process may be unreadable. Socket inodes are unique across namespaces, so a common one
    # means a common namespace.
    tables = ("%s/%d/net/tcp" % (PROC, pid), "/proc/self/net/tcp")
    try:
        their_sockets, our_sockets = ({int(found[3]) for found in _LISTEN.findall(slurp(t, 1 << 24))} for t in tables)
    except OSError:
        return False
    return bool(their_sockets & our_sockets - {0})


def address_of(text: str) -> str:
    """Return an address of /proc/net/tcp, which has words in the host's byte order, in its usual notation."""
    return address_in(b"".join(struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8)))


def address_in(raw: bytes) -> str:
    """Return an address in its usual notation from its 4 or 16 bytes."""
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def sockets_of(pid: int) -> Optional[Set[int]]:
    """Return the inodes of the sockets that a process holds; None where they may not be read."""
    folder = "%s/%d/fd" % (PROC, pid)
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    out: Set[int] = set()
    for name in names:
        target = link_of(folder + "/" + name)
        if target is not None and target.startswith("socket:["):
            out.add(int(target[8:-1]))
    return out
