"""Refusals that no judge knows: what the engine says is the finding, and no more than it says."""

from __future__ import annotations

import pytest

from tests.support.small_logs import SIGQUIT, findings, proposed, raised, sglang, shown, verdict, wrong_and_sure
from tuner.domain.findings import Confidence

MAIN = (("launch_server.py", "run_server"), ("srt/entrypoints/engine.py", "_launch_subprocesses"))
TEMPLATE = (*MAIN, ("srt/parser/template_manager.py", "load_chat_template"))


def of_main(error: str, *frames: tuple[str, str]) -> str:
    """A traceback of the main process."""
    places = "".join(f'  File "/opt/sglang/{path}", line 11, in {name}\n    x()\n' for path, name in frames or MAIN)
    return f"Traceback (most recent call last):\n{places}{error}\n"


def test_a_message_that_quotes_a_setting_is_about_it() -> None:
    error = "RuntimeError: Chat template /models/x.jinja is not a built-in template name or a valid path."
    text = sglang("args", chat_template="/models/x.jinja") + of_main(error, *TEMPLATE)
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("bad-argument", "args", None)
    assert finding.confidence is Confidence.MEDIUM
    assert shown(finding)["chat_template"] == "/models/x.jinja"
    assert "chat_template" in proposed(finding)
    assert wrong_and_sure(text, ["bad-argument"]) == []


def test_a_rank_that_names_a_variable() -> None:
    error = (
        "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set, in this case the number of ranks should be at most 1."
    )
    text = sglang("dist-init") + raised("TP1", ("srt/utils/numa_utils.py", "init_threads_binding"), error=error)
    finding = verdict(text + SIGQUIT)
    assert (finding.cause, finding.phase, finding.ranks) == ("bad-argument", "dist-init", (1,))
    assert finding.confidence is Confidence.MEDIUM
    assert [remedy.env for remedy in finding.remedies] == ["SGLANG_CPU_OMP_THREADS_BIND"]
    assert wrong_and_sure(text, ["bad-argument"]) == []


def test_an_argument_that_is_no_json() -> None:
    error = "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    frames = (("srt/server_args.py", "resolve_once"), ("srt/configs/model_config.py", "__init__"))
    finding = verdict(sglang("args") + of_main(error, *frames))
    assert (finding.cause, finding.phase) == ("bad-argument", "args")
    assert "JSON" in finding.remedies[0].why


def test_a_main_process_that_names_nothing_is_a_guess() -> None:
    finding = verdict(sglang("args") + of_main("ValueError: Something is wrong with the thing."))
    assert (finding.cause, finding.confidence) == ("bad-argument", Confidence.LOW)
    assert "Something is wrong with the thing" in finding.explanation


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            sglang("dist-init") + raised("TP0", ("srt/x.py", "run"), error="RuntimeError: Try --enable-thing-b then."),
            id="advice in a rank's error",
        ),
        pytest.param(
            sglang("graph-capture")
            + raised("TP0", ("srt/x.py", "capture"), error="ValueError: no memory; lower --mem-fraction-static"),
            id="advice about memory",
        ),
        pytest.param(
            sglang("serving") + raised("TP0", ("srt/x.py", "event_loop"), error="ValueError: bad --thing-of-request"),
            id="while serving",
        ),
        pytest.param(
            sglang("dist-init") + raised("TP0", ("srt/x.py", "run"), error="ValueError: default of it"),
            id="a word that is some setting's value",
        ),
    ],
)
def test_what_only_recommends_an_argument_is_no_refusal(text: str) -> None:
    assert verdict(text + SIGQUIT).cause == "inconclusive"


def test_a_backend_for_another_gpu_is_not_the_arguments() -> None:
    error = "ValueError: TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."
    frames = (("srt/server_args.py", "_handle_attention_backend_compatibility"),)
    finding = verdict(of_main(error, *frames) + sglang("args"))
    assert (finding.cause, finding.phase) == ("unsupported-arch", "args")
    assert "attention_backend" in proposed(finding)


def test_what_a_module_runs_into_while_it_is_imported_tells_no_phase() -> None:
    error = "ImportError: /venv/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda14ExchangeDeviceEa"
    frames = (
        ("srt/server_args.py", "resolve_once"),
        ("srt/model_loader/__init__.py", "<module>"),
        ("srt/model_loader/loader.py", "<module>"),
    )
    finding = findings(of_main(error, *frames) + sglang("args"))[0]
    assert (finding.cause, finding.phase) == ("binary-mismatch", "args")
