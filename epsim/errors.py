"""The errors that a user of `epsim` meets."""


class InputError(ValueError):
    """An argument or file breaks a rule.

    The message is one sentence: the field, its value, and the rule that it breaks.
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        """Say that `field` holds `value` and breaks `rule`."""
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field} is {value!r}: {rule}")


class MissingExtraError(RuntimeError):
    """An optional part is not installed; the message says how to get it."""
