"""The page of causes is what the table says, and every cause that a judge names is in the table."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture import findings_page
from tuner.core.causes import CAUSES

JUDGES = Path(__file__).parents[2] / "tuner" / "core"
_NAMED = re.compile(r'finding\(\s*"([a-z0-9-]+)"')


def test_page_is_in_step() -> None:
    assert findings_page.PAGE.read_text("utf-8") == findings_page.page()


def test_every_cause_that_a_judge_names_is_in_the_table() -> None:
    named = {
        cause
        for path in (*JUDGES.glob("diagnosis/*.py"), JUDGES / "advice.py", JUDGES / "hang.py")
        for cause in _NAMED.findall(path.read_text("utf-8"))
    }
    assert len(named) > 30
    assert named <= CAUSES.keys()


def test_every_cause_in_the_table_is_named_by_a_judge() -> None:
    source = "\n".join(
        path.read_text("utf-8") for path in (*JUDGES.glob("diagnosis/*.py"), JUDGES / "advice.py", JUDGES / "hang.py")
    )
    assert [cause for cause in CAUSES if f'"{cause}"' not in source] == []
