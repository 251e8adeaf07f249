"""An operator who gives the answers that a test prepared."""

from __future__ import annotations

from tuner.domain.link import HostKeyQuestion, Question, SecretQuestion


class Operator:
    """An `Ask` that gives prepared answers in order, and remembers the questions."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> str | None:
        self.asked.append(question)
        assert self.answers, f"nobody expected to be asked {question}"
        return self.answers.pop(0)

    @property
    def keys(self) -> list[HostKeyQuestion]:
        return [question for question in self.asked if isinstance(question, HostKeyQuestion)]

    @property
    def secrets(self) -> list[SecretQuestion]:
        return [question for question in self.asked if isinstance(question, SecretQuestion)]
