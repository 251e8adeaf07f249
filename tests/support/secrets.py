"""Command lines and environments with secrets that every masker must hide, on the laptop and on the host.

Each occurrence of `SECRET` must be masked; everything else must stay as it is.
"""

from __future__ import annotations

SECRET = "S3cr3tOfTheMine"
DIGITS = "123456789012"
"""A secret made of digits."""

ARGV: tuple[tuple[str, ...], ...] = (
    ("python", "-m", "sglang.launch_server", "--api-key", SECRET, "--port", "30000"),
    ("vllm", "serve", "m", "--api-key", SECRET, SECRET, "--max-num-seqs", "5"),
    ("sglang", "serve", f"--admin-api-key={SECRET}", "--tokenizer-path", "/t"),
    ("x", "--hf-token", SECRET),
    ("x", f"--hf-token={SECRET}"),
    ("x", "--ssl-keyfile-password", SECRET, "--ssl-keyfile", "/etc/key.pem"),
    ("x", "--api-key", DIGITS, "--max-total-tokens", "123456789"),
    ("x", "--tokenizer", "/t", "--num-reserved-decode-tokens", "512", "--api-key"),
)

ENV: tuple[dict[str, str], ...] = (
    {"HF_TOKEN": SECRET, "OPENAI_API_KEY": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "PATH": "/bin"},
    {"OPENAI_API_KEY": DIGITS, "SGLANG_MAX_NEW_TOKENS_ESTIMATION": "4096", "MAX_TOKENS": "8"},
    {"MYSQL_PWD": SECRET, "FOO_PASS": SECRET, "PWD": "/root", "OLDPWD": "/"},
    {"PGPASSWORD": SECRET, "DB_PASSWORD": DIGITS, "REDIS_AUTH": SECRET},
    {"GOOGLE_CREDENTIALS": SECRET, "CLIENT_SECRET": SECRET, "TOKENIZERS_PARALLELISM": "false"},
    {"EMPTY_TOKEN": "", "HF_HOME": "/models", "VLLM_USE_V1": "1"},
)


def hidden(word: str, mark: str) -> str:
    """Return a word as it must be shown."""
    return word.replace(SECRET, mark).replace(DIGITS, mark)
