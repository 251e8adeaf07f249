from __future__ import annotations

import pytest

from tuner.core.redact import MASK, mask, mask_argv, mask_env, mask_json, secret_name

HIDDEN = [
    ("token hf_abcDEF0123456789xyz is used", "hf_abcDEF0123456789xyz"),
    ("using sk-proj-abcdefgh12345678", "proj-abcdefgh12345678"),
    ("id AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    ("ghp_0123456789abcdefghij", "0123456789abcdefghij"),
    ("xoxb-1234567890-abcdef", "1234567890-abcdef"),
    ("nvapi-AbCdEf-123456", "AbCdEf-123456"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "hbGciOiJIUzI1NiJ9"),
    ("Authorization: Bearer s3cr3t.value", "s3cr3t.value"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("(b'authorization', b'Bearer abcdef')", "abcdef"),
    ("http://user:hunter2@host:80/x", "hunter2"),
    ("https://user:p@ss@host/", "p@ss"),
    ("clone https://0123456789abcdef0123@github.com/a", "0123456789abcdef0123"),
    ("--api-key topsecret --port 3", "topsecret"),
    ("--admin-api-key=topsecret", "topsecret"),
    ("['--api-key', 'topsecret', '--tp', '2']", "topsecret"),
    ("ServerArgs(api_key='topsecret', tp_size=2)", "topsecret"),
    ('ServerArgs(admin_api_key="topsecret")', "topsecret"),
    ("'hf_token': 'plainword'", "plainword"),
    ('{"api_key": "topsecret", "x": 1}', "topsecret"),
    (r"{\"password\": \"top secret\"}", "top secret"),
    ("HF_TOKEN=plainword python x", "plainword"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ("password: hunter2", "hunter2"),
    ("DB_PASSWORD=12345678", "12345678"),
    ("credentials='aa:bb'", "aa:bb"),
    ("x-api-key: topsecret", "topsecret"),
    ("apikey=topsecret", "topsecret"),
    ("passphrase=correct-horse", "correct-horse"),
    ("MYSQL_PWD=hunter2 mysqldump", "hunter2"),
    ("'FOO_PASS': 'hunter2'", "hunter2"),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=Ab+c/9==;EndpointSuffix=x", "Ab+c/9=="),
    ("Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=Ab+c/9=", "Ab+c/9="),
    ("api_key=['first', 'k2']", "first"),
    ("api_key=['first', 'k2']", "k2"),
    ('{"api_keys": ["first", "k2"]}', "k2"),
    ("+ vllm serve m --api-key k1 k2 --port 1", "k1"),
    ("+ vllm serve m --api-key k1 k2 --port 1", "k2"),
    ("['vllm', '--api-key', 'k1', 'k2', '--port', '1']", "k2"),
    ("postgres://u:pa/ss@h/db", "pa/ss"),
    ("postgres://u:p@s/s@h/db", "p@s/s"),
    ("redis://:hunter2@h:6379/0", "hunter2"),
    ("POST https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXX", "T00000000/B00000000/XXXXXXXX"),
    ("GET /b/k?X-Amz-Expires=300&X-Amz-Signature=fe5f80f7", "fe5f80f7"),
    ("https://a.blob.core.windows.net/c?sv=2024&sig=aB%2Fc%3D", "aB%2Fc%3D"),
    ("Cookie: session=abc; theme=dark", "session=abc; theme=dark"),
    ("< Set-Cookie: id=a3fWa; Max-Age=2592000", "a3fWa"),
    ("{'cookie': 'session=abc'}", "session=abc"),
    ("(b'cookie', b'session=abc')", "session=abc"),
    ("OPENAI_API_KEY=123456789012", "123456789012"),
    ("export HF_TOKEN=123456789012", "123456789012"),
    ("SERVICE_TOKEN: 123456789012", "123456789012"),
    ("api_key=12345", "12345"),
]

SHOWN = [
    "[16:20:58 TP1] Decode batch, #running-req: 3, #token: 1423, token usage: 0.05, gen throughput (token/s): 95.3",
    "Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0, token usage: 0.00, #queue-req: 0",
    "max_total_num_tokens=123456, chunked_prefill_size=8192, max_prefill_tokens=16384",
    "tokenizer_path='/m', tokenizer_mode='auto', skip_tokenizer_init=False",
    "api_key=None, admin_api_key=None, ssl_keyfile=None, ssl_keyfile_password=None",
    "bos_token='<s>', eos_token='</s>', pad_token=None",
    "KeyError: 'api_key'",
    "--ssl-keyfile /etc/ssl/key.pem --port 30000",
    "Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
    "git@github.com:a/b and ssh://git@github.com/a/b",
    "hf_config hf_quant_config.json hf_transfer disk-12345678 task-abcdefgh",
    "Bearer token is required",
    "GET /v1/models HTTP/1.1 401 Unauthorized",
    "num_token_non_padded=None per_token: 0.02s next_token=17",
    "SGLANG_USE_CPU_ENGINE=1 TOKENIZERS_PARALLELISM=false",
    "cuda graph: True, key-value cache, keys: 4, monkey",
    "max_tokens=123456789, num_tokens_per_req=123456789, MAX_TOKENS=123456789",
    "token usage: 0.37, #new-token: 812, #new-token: 123456789",
    "forward pass: 3, num_pass=4, BACKWARD_PASS=2, PWD=/root OLDPWD=/",
    "key: model.layers.0.weight, value: 3",
    "http://0.0.0.0:30000/path@x http://localhost:8000/a?b=c@d tcp://[::1]:80/@x",
    "usage: vllm serve [--api-key API_KEY [API_KEY ...]] [--ssl-keyfile-password SSL_KEYFILE_PASSWORD]",
    "'watermark_key': '<redacted>'",
    "cookies are not sent; cookie=None",
    "api_key=[], admin_api_key=[None]",
    "design=3, --signature x, function signature: (a, b)",
]

LONG = 512 * 1024
"""Characters. Reading these again from each place inside would take minutes, longer than a test may run."""

REPEATED = [
    # The unit, what `mask` makes of many, and of many with a torn end; None: the same text.
    ("secret", None, None),
    ("secret_", None, None),
    ("passw", None, None),
    ("credential-", None, None),
    ("://a:", None, f"://a:{MASK}"),
    ("://a:@", f"://a:{MASK}@", f"://a:{MASK}@"),
    ("_hf_", None, f"_hf_{MASK}"),
    ("ghp_", f"ghp_{MASK}", f"ghp_{MASK}"),
    ("_sk-", f"_sk-{MASK}", f"_sk-{MASK}"),
    ("_eyJ", None, f"_eyJ{MASK}"),
    ("?sig=", f"?sig={MASK}", f"?sig={MASK}"),
    ("token=", f"token={MASK}", f"token={MASK}"),
    ("api_key=", f"api_key={MASK}", f"api_key={MASK}"),
    ("--token=", None, None),
    ("authorization=", f"authorization={MASK}", f"authorization={MASK}"),
    ("cookie=", f"cookie={MASK}", f"cookie={MASK}"),
]


@pytest.mark.parametrize(("text", "secret"), HIDDEN)
def test_a_secret_is_hidden(text: str, secret: str) -> None:
    masked = mask(text)
    assert secret not in masked
    assert MASK in masked
    assert mask(masked) == masked


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert mask(text) == text


def test_the_kind_of_a_token_and_the_rest_of_the_line_stay() -> None:
    assert mask("a hf_abcDEF0123456789xyz b") == f"a hf_{MASK} b"
    assert mask("http://user:hunter2@host/x?y") == f"http://user:{MASK}@host/x?y"
    assert mask("Authorization: Basic dXNlcg== , next") == f"Authorization: Basic {MASK} , next"


def test_what_stood_before_on_the_line_counts() -> None:
    assert mask("secret rest", before="--api-key=top") == f"{MASK} rest"
    assert mask("secret other --x", before="--api-key top") == f"{MASK} {MASK} --x"
    assert mask("f_abcDEF0123456789 x", before="token h") == f"f_{MASK} x"
    assert mask("DEF0123456789 x", before="token hf_abc") == f"{MASK} x"
    assert mask("clean\n", before="password=x ") == "clean\n"


def test_the_beginning_of_a_token_at_a_torn_end_is_hidden() -> None:
    assert mask("loading hf_abc", torn=True) == f"loading hf_{MASK}"
    assert mask("loading hf_abc") == "loading hf_abc"
    assert mask("fetch http://user:pas", torn=True) == f"fetch http://user:{MASK}"
    assert mask("at http://0.0.0.0:300", torn=True) == "at http://0.0.0.0:300"


def test_letters_that_grow_in_lower_case_do_not_shift_the_mask() -> None:
    assert mask("İİİ api_key='topsecret' İ") == f"İİİ api_key='{MASK}' İ"


def test_arguments() -> None:
    argv = (
        "python",
        "-m",
        "sglang",
        "--api-key",
        "a b",
        "--hf-token=x",
        "-e",
        "HF_TOKEN=y",
        "--port",
        "3",
        "--api-key",
    )
    assert mask_argv(argv) == (
        *("python", "-m", "sglang", "--api-key", MASK, f"--hf-token={MASK}", "-e", f"HF_TOKEN={MASK}"),
        *("--port", "3", "--api-key"),
    )
    assert mask_argv(("--api-key", "--port", "3")) == ("--api-key", "--port", "3")


def test_arguments_after_a_secret_one_are_whole_words() -> None:
    assert mask_argv(("--admin-api-key", "hf is 'odd' --x", "-v", "t")) == ("--admin-api-key", MASK, "-v", "t")
    assert mask_argv(("--api-key", "-k1", "k2", "-v", "t")) == ("--api-key", MASK, MASK, "-v", "t")


def test_environment() -> None:
    env = {
        "OPENAI_API_KEY": "abc",
        "HF_TOKEN_2": "abc",
        "MYSECRETS": "abc",
        "PGPASSWORD": "123",
        "GOOGLE_CREDENTIALS": "{}",
        "URL": "http://u:p4ss@h/",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_MAX_NEW_TOKENS_ESTIMATION": "4096",
        "PATH": "/bin",
        "EMPTY_TOKEN": "",
        "MYSQL_PWD": "abc",
        "FOO_PASS": "abc",
        "MY_AUTH_KEY": "123456789012",
        "PWD": "/root",
        "N_KEYS": "12",
    }
    assert mask_env(env) == {
        "OPENAI_API_KEY": MASK,
        "HF_TOKEN_2": MASK,
        "MYSECRETS": MASK,
        "PGPASSWORD": MASK,
        "GOOGLE_CREDENTIALS": MASK,
        "URL": f"http://u:{MASK}@h/",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_MAX_NEW_TOKENS_ESTIMATION": "4096",
        "PATH": "/bin",
        "EMPTY_TOKEN": "",
        "MYSQL_PWD": MASK,
        "FOO_PASS": MASK,
        "MY_AUTH_KEY": MASK,
        "PWD": "/root",
        "N_KEYS": "12",
    }


def test_json() -> None:
    body = {"api_key": "abc", "n": [1, {"auth_token": "x", "eos_token": "</s>"}], "argv": ["--api-key", "x"], "t": None}
    assert mask_json(body) == {
        "api_key": MASK,
        "n": [1, {"auth_token": MASK, "eos_token": "</s>"}],
        "argv": ["--api-key", MASK],
        "t": None,
    }
    harmless = {"max_tokens": 5, "api_key": None, "model": "m", "use_api_key": True, "hf_token": "", "n": ["a"]}
    assert mask_json(harmless) == harmless
    assert mask_json({"api_key": ["k1", "k2"], "password": 5}) == {"api_key": MASK, "password": MASK}


@pytest.mark.parametrize(
    "name", ["--api-key", "apiKey", "API_KEY", "aws_access_key_id", "hf-token", "token", "clientSecret"]
)
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name", ["--ssl-keyfile", "eos_token", "max_new_token", "tokenizer", "keyboard", "monkey", "port"]
)
def test_names_of_other_things(name: str) -> None:
    assert not secret_name(name)


@pytest.mark.parametrize(("unit", "whole", "torn"), REPEATED, ids=[unit for unit, *_ in REPEATED])
def test_a_line_made_to_be_slow_is_masked_like_any_other(unit: str, whole: str | None, torn: str | None) -> None:
    line = unit * (LONG // len(unit))
    assert mask(line) == (whole or line)
    assert mask(line, torn=True) == (torn or line)


def test_lists_made_to_be_slow_are_hidden_to_their_last_value() -> None:
    n = LONG // len("/--token ")
    assert mask("/--token " * n) == "/--token " + f"{MASK} " * (n - 1)
    assert mask("'token=[a'," * n) == "'token=[" + f"{MASK}','" * (n - 1) + f"{MASK}',"
    name = "secret" + "a" * LONG
    assert mask(f"{name}=[" + "b," * n) == f"{name}=[" + f"{MASK}," * n


def test_space_without_end_is_left_alone() -> None:
    for head in ("authorization:", "cookie:", "bearer", "--token", "token", "api_key="):
        line = head + " " * LONG + ";\n"
        assert mask(line).startswith(head + " ")


LETTERS = "aB3-" * 2_500


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"x sk-{LETTERS} y", f"x sk-{MASK} y"),
        (f"x eyJ{LETTERS}.{LETTERS}.{LETTERS} y", f"x eyJ{MASK} y"),
        (f"api_key='{LETTERS}', y", f"api_key='{MASK}', y"),
        (f"API_KEY={LETTERS} y", f"API_KEY={MASK} y"),
        (f"secret_{LETTERS}={LETTERS} y", f"secret_{LETTERS}={MASK} y"),
        (f"Authorization: Bearer {LETTERS} y", f"Authorization: Bearer {MASK} y"),
        (f"Set-Cookie: a={LETTERS}", f"Set-Cookie: {MASK}"),
        (f"https://user:{LETTERS}@host/", f"https://user:{MASK}@host/"),
        (f"https://{LETTERS}@host/", f"https://{MASK}@host/"),
        (f"GET /?sig={LETTERS}&x", f"GET /?sig={MASK}&x"),
        (f"api_key=[{'k1, ' * 300}'{LETTERS}']", f"api_key=[{f'{MASK}, ' * 300}'{MASK}']"),
    ],
    ids=lambda text: text[:12],
)
def test_a_long_secret_is_hidden_wholly(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_a_secret_inside_what_was_read_is_found() -> None:
    assert mask("secret=token='x y'") == f"secret={MASK}'{MASK}'"
    assert mask("authorization=authorization: Bearer xyz") == f"authorization={MASK} Bearer {MASK}"
    assert mask("cookie=none cookie=abc") == f"cookie=none cookie={MASK}"
    assert mask("x eyJaaaaaaaa.bbbb.eyJcccccccc.dddd.eeee") == f"x eyJ{MASK}"
    assert mask("hf_ab_hf_abcdefghABCD") == f"hf_ab_hf_{MASK}"


def test_a_variable_that_says_where_something_is_keeps_its_path() -> None:
    env = {
        "TIKTOKEN_CACHE_DIR": "/data/tiktoken",
        "HF_TOKEN_PATH": "~/.cache/token",
        "HF_TOKEN": "/x",
        "A_TOKEN_DIR": "q1",
    }
    assert mask_env(env) == {**env, "HF_TOKEN": MASK, "A_TOKEN_DIR": MASK}
