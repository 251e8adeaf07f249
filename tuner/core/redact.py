"""Hides secrets in everything that comes from a host, before anything is shown or written.

What is looked for: tokens by their shape (`hf_...`, `sk-...`, `AKIA...`), values after a name that says so
(`api_key=...`, `--admin-api-key ...`, `HF_TOKEN=...`, `"password": "..."`), `Authorization`, `Bearer` and cookies, and
credentials in URLs. Text is masked by whole lines: a caller that cuts elsewhere passes what stood before on the line.

Speed matters, because every log byte passes here: searches for plain words find the few places worth a closer look.
The text is a stranger's, so the work must grow with its length and no faster: what runs on without bound (a name, a
value, a token) is read once, and places inside what was read are not read from again.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "***"

_KEY = re.compile(r"key(?=(?:s|[_-]?id)?['\"=\\:\s])")
_TOKEN = re.compile(r"token(?:['\"=\\]|(?<=[_-]token)[: ](?!\s*[\d.]{1,7}(?!\d)))")
_PASS = re.compile(r"pass(?=w|phrase|['\"=\\:])")
_STRONG_WORDS = ("secret", "credential", "_pwd", "_auth", "-signature")
_HEADS = ("hf_", "sk-", "github_pat_", "glpat-", "nvapi-", "xox")
_CODE_HOST = re.compile(r"gh[pousr]_")
_CLOUD = re.compile(r"A(?:[KS]IA|Iza)")
"""Where a secret may begin. Many searches for plain words, and expressions that begin with one, read 50 MB/s
together; a single expression with all of it would read 15."""

_SHAPE = re.compile(
    r"""(?x)
    (?:(?<![A-Za-z0-9])hf_) (?: (?=[a-z]*[A-Z0-9]) [A-Za-z0-9]{8,} | [A-Za-z0-9]{16,} )
  | (?:(?<![A-Za-z0-9-])sk-) [A-Za-z0-9_-]{8,}
  | (?:(?<![A-Za-z0-9])(?:AKIA|ASIA)) [A-Z0-9]{12,}
  | (?:(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_)) [A-Za-z0-9_]{10,}
  | (?:(?<![A-Za-z0-9])(?:glpat-|nvapi-|xox[a-z]-)) [A-Za-z0-9_-]{8,}
  | (?:(?<![A-Za-z0-9])AIza) [A-Za-z0-9_-]{20,}
  | (?:(?<![A-Za-z0-9])eyJ) [A-Za-z0-9_-]{8,} \. [A-Za-z0-9_-]{4,} (?: \. [A-Za-z0-9_-]* )?
    """
)
_SHAPE_HEAD = re.compile(r"hf_|sk-|AKIA|ASIA|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AIza|eyJ")
_SHAPE_TORN = re.compile(
    r"(?<![A-Za-z0-9-])(?:hf_|sk-|AKIA|ASIA|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AIza|eyJ)(?=[A-Za-z0-9_.-])"
)
_SHAPE_LETTERS = string.ascii_letters + string.digits + "_.-"
_JWT_HEAD = re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]*")
_BEARER = re.compile(
    r"(?i)bearer\s+\\?[\"']?"
    r"(?!(?:tokens?|auth|authentication|authorization|scheme|is|was|required|header|prefix|for|in|of|and|or)\b)"
    r"(?P<secret>[A-Za-z0-9._~+/=-]{4,})"
)
_HEADER = re.compile(
    r"(?i)authorization\\?[\"']?\s*[:=]\s*+(?:\\?[\"']\s*+|\\\s*+)?+"
    r"(?:(?:basic|bearer|token|digest|negotiate)\s+)?(?=[^\s\"'\\,;)\]}])"
)
_HEADER_REST = re.compile(r"[^\s\"'\\,;)\]}]*")
_COOKIE = re.compile(r"(?i)cookie(?:\\?[\"']\s*[:,]|[:=])\s*b?\\?[\"']?(?=[^\r\n\"'\\])")
_COOKIE_REST = re.compile(r"[^\r\n\"'\\]*")
_URL = re.compile(
    # A password may hold a slash; what begins with a port is no password.
    r"://(?:[^\s/:@\[\"'\\]*:(?!\d{1,5}[/?#])|(?P<user>[^\s/:@\"'\\]{16,})@)"
)
_URL_REST = re.compile(r"[^\s\"'\\]*")
_URL_TORN = re.compile(r"://[^\s/:@\[\"'\\]*:(?!\d{1,5}(?:[/?#]|\Z))(?=.)")
_WEBHOOK = re.compile(r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[\w/-]+)")
_SIGNATURE = re.compile(r"(?<=[?&])sig=(?=[^\s&\"'\\])")
_SIGNATURE_REST = re.compile(r"[^\s&\"'\\]*")
_NAME = re.compile(
    r"(?i)(?:(?:keys?|token)(?:[_-]?id)?(?![\w-])|pass(?![\w-])|_(?:pwd|auth)(?![\w-])|-signature(?![\w-])"
    r"|(?:secret|passw|passphrase|credential)[\w-]*)"
)
_ASSIGN = re.compile(r"\\?[\"']?[ \t]*(?:[:=]|=>)[ \t]*")
_FLAG_GAP = re.compile(r"(?P<words>[ \t]+)|=|\\?[\"'](?P<list>,\s*)(?=\\?[\"'])")
_LIST = re.compile(r"[\[(][ \t]*")
_COMMA = re.compile(r"\\?[\"']?[ \t]*,[ \t]*")
_SPACE = re.compile(r"\\?[\"']?[ \t]+")
_NEXT_FLAG = re.compile(r"\\?[\"']?--")
_NO_VALUE = re.compile(r"\\?[\"']?[-&|<>]")
_VALUE = re.compile(
    r"""(?x)
    \\" (?P<a>[^"\\\n]*) | \\' (?P<b>[^'\\\n]*)
  | " (?P<c>(?:\\.|[^"\\\n])*) | ' (?P<d>(?:\\.|[^'\\\n])*)
  | (?P<e>[^\s,;()\[\]{}"'\\]+)
    """
)
_PLAIN = re.compile(r"(?i)none|null|nil|true|false|yes|no|optional|str|string|auto|\*+|\.+|-+|<[\w -]+>")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?(?:ms|us|s|%|k|m)?", re.I)
_LONG_NUMBER = 8
_IDENTIFIER_BEFORE = re.compile(r"(?<![\w.-])[\w.-]*\Z")
_NAME_BEFORE = 64
_NAME_KEPT = 256
"""Characters of a name that are read before its telling part, and characters of a name that are kept."""
_PLACES = ("_dir", "_path", "_file", "_home", "-dir", "-path", "-file")
"""Ends of names whose value, if it is a path, only says where something is: `TIKTOKEN_CACHE_DIR`, `HF_TOKEN_PATH`."""
_TEXT_TOKENS = frozenset(
    re.findall(
        r"\w+",
        "bos eos pad unk mask sep cls stop image audio video think start end special placeholder new per num max min "
        "cached draft verify next last first out output input prompt text speculative s tool reasoning mm",
    )
)
"""Words before `token` that make it a word of the LLM's vocabulary or a count, not a secret: `eos_token`."""
_HARMLESS_END = re.compile(r"(?i)(?:file|path|dir|len|length|count|type|name)\Z")
_HARMLESS_LONGEST = len("length")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STRONG = re.compile(
    r"(?i)secret|passw|passphrase|credential|(?:api|account|access)[_-]?keys?|x-(?:amz|goog)-signature"
)
_ENV_ITEM = re.compile(r"([A-Za-z_]\w*)=(.+)", re.S)


def mask(text: str, before: str = "", *, torn: bool = False) -> str:
    """Return text with its secrets replaced.

    Args:
        text: Lines, or a part of one.
        before: What stood before `text` on its first line. Not part of the result.
        torn: The end of `text` is no end of a line: what may be the beginning of a token there is hidden too.
    """
    whole = before + text if before else text
    lower = whole.lower()
    if len(lower) != len(whole):
        # A letter whose lower case is two letters: positions must agree.
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in whole)
    spans = list(_spans(whole, lower, torn))
    if torn:
        spans.extend(_torn(whole))
    if not spans:
        return text
    return _replace(whole, len(before), sorted(spans))


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return arguments with secrets replaced: `--api-key X Y`, `--api-key=X`, `-e HF_TOKEN=X` and what `mask` finds."""
    result: list[str] = []
    stop = ""
    """Beginning by which the next argument is no secret value; empty: no secret value is expected."""
    for word in argv:
        if stop and not word.startswith(stop):
            result.append(MASK if word else word)
            stop = "-"
            continue
        flag, equals, value = word.partition("=")
        stop = ""
        if word.startswith("-") and secret_name(flag):
            stop = "" if equals else "--"
            result.append(f"{flag}={MASK}" if value and not _harmless(flag, value) else word)
        elif (item := _ENV_ITEM.fullmatch(word)) and secret_name(item[1], anywhere=True):
            result.append(word if _harmless(item[1], item[2]) else f"{item[1]}={MASK}")
        else:
            result.append(mask(word))
    return tuple(result)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with secrets replaced: by the variable's name, else by what its value looks like."""
    return {
        name: MASK if value and secret_name(name, anywhere=True) and not _harmless(name, value) else mask(value)
        for name, value in env.items()
    }


def mask_json(value: Any, name: str = "") -> Any:
    """Return decoded JSON, or settings, with secrets replaced: by a value's name, else as `mask` does.

    Args:
        value: Anything that JSON can say.
        name: Key under which it stands.
    """
    if name and value and not isinstance(value, bool) and secret_name(name) and not _harmless(name, str(value)):
        return MASK
    match value:
        case str():
            return mask(value)
        case dict():
            return {key: mask_json(item, key if isinstance(key, str) else "") for key, item in value.items()}
        case list():
            if name in ("argv", "args", "cmdline") and all(isinstance(item, str) for item in value):
                return list(mask_argv(value))
            return [mask_json(item) for item in value]
        case _:
            return value


def secret_name(name: str, *, anywhere: bool = False) -> bool:
    """Return whether a name says that its value is secret.

    Args:
        name: A flag, setting or variable, in any spelling (`--api-key`, `apiKey`, `API_KEY`).
        anywhere: `KEY` and `TOKEN` count at any place in the name, as befits environment variables.
    """
    if _STRONG.search(name):
        return not _HARMLESS_END.search(name[-_HARMLESS_LONGEST:])
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    last = words[-1]
    if (last == "id" and before == "key") or (last == "pwd" and before):
        return True
    if last in ("pass", "auth", "cookie") and before and name.isupper():
        return True
    if last == "token" and before in _TEXT_TOKENS:
        return False
    if anywhere:
        return any(
            word in ("key", "keys", "token") or (word.endswith(("token", "key")) and len(word) > 5) for word in words
        )
    return last in ("key", "token") or (last == "keys" and before in ("auth", "admin"))


def _harmless(name: str, value: str) -> bool:
    """Return whether a value cannot be a secret: nothing, a switch, the name itself, or a number where one fits."""
    if _PLAIN.fullmatch(value) or value == name.lstrip("-").replace("-", "_").upper():
        return True
    if value.startswith(("/", "~/")) and name.lower().endswith(_PLACES):
        return True
    if not _NUMBER.fullmatch(value) or _STRONG.search(name):
        return False
    return not (name.isupper() and len(value) >= _LONG_NUMBER)


def _spans(text: str, lower: str, torn: bool) -> Iterator[tuple[int, int]]:
    """Yield where the secrets are; spans may overlap."""
    names = [place.start() for form in (_KEY, _TOKEN, _PASS) for place in form.finditer(lower)]
    names += [start for word in _STRONG_WORDS for start in _places(lower, word)]
    yield from _named(text, sorted(names), torn)
    for head in _HEADS:
        yield from _shaped(text, _places(lower, head))
    for shapes in (_CODE_HOST, _CLOUD):
        yield from _shaped(text, (place.start() for place in shapes.finditer(text)))
    yield from _shaped(text, _jwt_heads(text))
    for start in _places(lower, "bearer"):
        if (found := _BEARER.match(text, start)) and not _is_name_part(text, start):
            yield found.span("secret")
    for start, end in _runs(text, _places(lower, "authorization"), _HEADER, _HEADER_REST):
        if text[start:end].lower() not in ("bearer", "basic"):
            yield start, end
    yield from _runs(text, _places(lower, "cookie"), _COOKIE, _COOKIE_REST, but=_PLAIN)
    yield from _in_urls(text)
    for start in _places(text, "hooks.slack"):
        if found := _WEBHOOK.match(text, start):
            yield found.span("secret")
    yield from _runs(text, _places(text, "sig="), _SIGNATURE, _SIGNATURE_REST)


def _places(text: str, word: str) -> Iterator[int]:
    start = text.find(word)
    while start >= 0:
        yield start
        start = text.find(word, start + len(word))


def _runs(
    text: str, starts: Iterable[int], head: re.Pattern[str], rest: re.Pattern[str], but: re.Pattern[str] | None = None
) -> Iterator[tuple[int, int]]:
    """Yield what follows each head, as long as `rest`, unless it begins like `but`. A head inside it adds nothing."""
    reach = 0
    for start in starts:
        if (found := head.match(text, start)) is None or found.end() < reach:
            continue
        if (but is None or not but.match(text, found.end())) and (run := rest.match(text, found.end())):
            reach = run.end()
            yield run.span()


def _in_urls(text: str) -> Iterator[tuple[int, int]]:
    """Yield passwords in URLs, up to the last `@` of the word, and tokens in place of a user."""
    reach = last = 0
    for start in _places(text, "://"):
        if (found := _URL.match(text, start)) is None:
            continue
        if found["user"]:
            yield found.span("user")
            continue
        if found.end() >= reach and (word := _URL_REST.match(text, found.end())):
            reach = word.end()
            last = text.rfind("@", found.end(), reach)
        if found.end() < last:
            yield found.end(), last


def _torn(text: str) -> Iterator[tuple[int, int]]:
    """Yield what may be the beginning of a secret at the very end."""
    if not text or text[-1].isspace():
        return
    word = text.rsplit(None, 1)[-1]
    start = len(text) - len(word)
    if found := _SHAPE_TORN.search(text, start + len(word.rstrip(_SHAPE_LETTERS))):
        yield found.end(), len(text)
    if found := _URL_TORN.search(text, start + 1 + max(word.rfind(mark) for mark in "@\"'\\")):
        yield found.end(), len(text)


def _shaped(text: str, starts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield tokens that are recognised by their shape."""
    reach = 0
    for start in starts:
        if start >= reach and (found := _SHAPE.match(text, start)):
            # The same head inside a token begins one that ends at the same place.
            reach = found.end() if text[start] != "e" else 0
            yield _after_head(text, start), found.end()


def _jwt_heads(text: str) -> Iterator[int]:
    """Yield where a JWT may begin: once in a run of its letters, because the first dot decides for all of them."""
    reach = 0
    for start in _places(text, "eyJ"):
        if start >= reach and (run := _JWT_HEAD.match(text, start)):
            reach = run.end()
            yield start


def _named(text: str, starts: Iterable[int], torn: bool) -> Iterator[tuple[int, int]]:
    """Yield the value, or the values, after each name that marks them as secret.

    Args:
        text: Lines.
        starts: Where the telling part of a name may begin, in order.
        torn: As for `mask`.
    """
    name_end = gap_start = reach = 0
    kinds: dict[str, tuple[bool, ...]] = {}
    """By name: what decides over its values; empty if they are no secrets."""
    walked: set[tuple[object, ...]] = set()
    """Positions in lists of values that were processed, and by which rule."""
    for start in starts:
        if start < name_end or (found := _NAME.match(text, start)) is None:
            continue
        name_end = found.end()
        assign = _ASSIGN.match(text, name_end)
        gap = assign or _FLAG_GAP.match(text, name_end)
        if gap is None:
            continue
        left = _IDENTIFIER_BEFORE.search(text[max(gap_start, start - _NAME_BEFORE) : start])
        gap_start = name_end
        at = gap.end()
        if at < reach:
            # The name is inside a bare value that is hidden and ends at the same place.
            continue
        name = (left[0] if left else "") + found[0]
        is_flag = name.startswith("--")
        if (kind := kinds.get(name)) is None:
            # In free text a bare `key` names no secret.
            is_secret = name.lower() != "key" and secret_name(name)
            kind = kinds[name] = (is_flag, bool(_STRONG.search(name)), name.isupper()) if is_secret else ()
        if not kind or not (assign or is_flag):
            continue
        separator: re.Pattern[str] | None = None
        if not assign:
            separator = _SPACE if gap["words"] else _COMMA if gap["list"] else None
        elif opener := _LIST.match(text, at):
            separator, at = _COMMA, opener.end()
        if separator and (at, separator, kind) in walked and not _NO_VALUE.match(text, at):
            continue
        name = name[:_NAME_KEPT]
        stop = _NEXT_FLAG
        first = at
        while not (is_flag and stop.match(text, at)) and (value := _VALUE.match(text, at)):
            group = value.lastgroup or "e"
            secret = value[group]
            # A number at a torn end may be the beginning of something else.
            unfinished = torn and value.end() == len(text) and not _PLAIN.fullmatch(secret)
            if secret and (unfinished or not _harmless(name, secret)):
                yield value.span(group)
                if group == "e" and at == first:
                    reach = value.end()
            more = separator.match(text, value.end()) if separator else None
            if more is None or (more.end(), separator, kind) in walked:
                break
            walked.add((more.end(), separator, kind))
            at, stop = more.end(), _NO_VALUE


def _is_name_part(text: str, start: int) -> bool:
    return start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")


def _after_head(text: str, start: int) -> int:
    """Return where a token's secret part begins: its head, which tells its kind, stays readable."""
    head = _SHAPE_HEAD.match(text, start)
    return head.end() if head else start


def _replace(text: str, cut: int, spans: Sequence[tuple[int, int]]) -> str:
    """Return `text[cut:]` with the spans masked; spans may overlap and may begin before the cut."""
    parts: list[str] = []
    done = cut
    reach = -1
    for start, end in spans:
        if end <= cut or end <= reach:
            continue
        if start >= reach:
            parts.append(text[done : max(start, cut)])
            parts.append(MASK)
        reach = end
        done = end
    parts.append(text[done:])
    return "".join(parts)
