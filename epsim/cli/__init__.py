"""The command line: the only place that reads argv and the environment, and prints."""


def main() -> None:
    """Run the `epsim` command."""
