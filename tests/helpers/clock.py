from dataclasses import dataclass


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now
