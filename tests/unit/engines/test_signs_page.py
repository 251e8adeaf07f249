"""The page of signs says what the data files say."""

from __future__ import annotations

import os

from tests.support.signs_page import PAGE, page


def test_signs_md_is_generated_from_the_data_files() -> None:
    text = page()
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text, "run: UPDATE_DOCS=1 pytest tests/unit/engines/test_signs_page.py"
