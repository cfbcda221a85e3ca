"""What a simulation can find."""


class Broken(Exception):
    """An invariant does not hold. `what` is its name (I1 .. I7), `core` for a contract between core and
    shell."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what
