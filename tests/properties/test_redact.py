"""Whatever stands around a secret, and wherever the text is cut, it is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tuner.core.redact import MASK, mask, mask_argv

LOGS = sorted(path for path in (Path(__file__).parents[1] / "golden" / "logs").rglob("*") if path.suffix == ".log")
ALNUM = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
bodies = st.text(ALNUM, min_size=20, max_size=40).map(lambda s: s[:-2] + "Z9")
around = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r"), max_size=40)
carriers = st.sampled_from(
    ["hf_{}", "sk-{}", "ghp_{}", "--api-key {}", "api_key='{}'", "HF_TOKEN={}", '"password": "{}"', "Bearer {}",
     "Authorization: Basic {}", "http://user:{}@host/", "{{'admin_api_key': '{}'}}", "MYSQL_PWD={}", "FOO_PASS={}",
     "AccountKey={};", "api_key=['k', '{}']", "--api-key k {}", "postgres://u:pa/{}@h", "Set-Cookie: a={}",
     "https://hooks.slack.com/services/{}", "?X-Amz-Signature={}"]
)  # fmt: skip


@settings(deadline=None)
@given(around, carriers, bodies, around)
def test_a_secret_is_hidden_in_any_surroundings(left: str, carrier: str, body: str, right: str) -> None:
    assume(body not in left and body not in right)
    masked = mask(f"{left} {carrier.format(body)} {right}")
    assert body not in masked
    assert mask(masked) == masked


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_logs_of_real_servers_pass_unchanged(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    assert mask(text).splitlines() == text.splitlines()


@settings(deadline=None)
@given(st.sampled_from(LOGS), st.data())
def test_any_part_of_a_real_log_passes_unchanged(path: Path, data: st.DataObject) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    first = data.draw(st.integers(0, len(lines) - 1))
    text = "".join(lines[first : first + 20])
    assert mask(text) == text


@settings(deadline=None)
@given(st.text())
def test_any_text_is_taken_and_masking_is_stable(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
    assert once.count("\n") == text.count("\n")


@settings(deadline=None)
@given(carriers, bodies, st.data())
def test_a_cut_does_not_let_a_secret_through(carrier: str, body: str, data: st.DataObject) -> None:
    line = f"start {carrier.format(body)} end"
    cut = data.draw(st.integers(1, len(line) - 1))
    shown = mask(line[:cut], torn=True) + mask(line[cut:], before=line[:cut])
    for size in (8,):
        for at in range(len(body) - size + 1):
            assert body[at : at + size] not in shown


@settings(deadline=None)
@given(st.lists(st.text(ALNUM + "-= ", max_size=12), max_size=6), bodies)
def test_an_argument_after_its_flag_is_hidden(others: list[str], body: str) -> None:
    assert body not in "\0".join(mask_argv([*others, "x", "--api-key", body, *others]))
    assert MASK in mask_argv(["--api-key", body])
