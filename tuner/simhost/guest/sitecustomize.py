"""The users of the simulated host: root is who runs commands there, and alice has an account.

Only Pythons that are started through the simulated host's `python3` load this.
"""

from __future__ import annotations

import os
import pwd

_USERS = {0: "root", 1001: "alice"}
_getpwuid = pwd.getpwuid


def _user(uid: int) -> pwd.struct_passwd:
    name = _USERS.get(uid)
    if name is None:
        return _getpwuid(uid)
    home = "/root" if uid == 0 else "/home/" + name
    return pwd.struct_passwd((name, "x", uid, uid, name, home, "/bin/bash"))


pwd.getpwuid = _user
os.getuid = os.geteuid = lambda: 0
