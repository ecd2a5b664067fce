"""lm_eval's own command line with the model "winnow" in it."""

from lm_eval.__main__ import cli_evaluate

from .hook import register


def main() -> None:
    register()
    cli_evaluate()


if __name__ == "__main__":
    main()
