"""Parser of one command's arguments: words and flags in any order, and errors of two lines."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NoReturn

from quire.config import GROUPS, TYPE_WORDS
from quire.errors import UsageError
from quire.other_engines import OPTIONS_ELSEWHERE
from quire.plugins.registry import did_you_mean

NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
PHRASES = {  # of argparse -> ours, after the name of the flag
    r"expected one argument": "needs a value",
    r"expected at least one argument": "needs at least one value",
    r"expected (\d+) arguments": r"needs \1 values",
    r"not allowed with argument (\S+)": r"cannot be used with \1",
    r"ignored explicit argument (.*)": r"takes no value, got \1",
    r"invalid \S+ value: (.*)": r"cannot be \1",
}


@dataclass(frozen=True, slots=True)
class Word:
    """An argument that is not a flag.

    Attributes:
        dest: Name of the value.
        metavar: Name in the usage.
        choices: The allowed values; empty: any.
    """

    dest: str
    metavar: str
    help: str
    is_required: bool = False
    choices: tuple[str, ...] = ()


class CommandParser(argparse.ArgumentParser):
    """Parser of a command's arguments.

    Args:
        path: Words that name the command after `quire`, such as `("plugins", "list")`.
        summary: One line about the command.

    Attributes:
        path: The same words.
        words: Arguments that are not flags, in order.
    """

    def __init__(self, path: Sequence[str], summary: str = "") -> None:
        super().__init__(
            prog=" ".join(("quire", *path)),
            description=summary,
            allow_abbrev=False,
            add_help=False,
        )
        self.path = tuple(path)
        self.words: list[Word] = []
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="store_true", help="show this help")

    @property
    def flags(self) -> Mapping[str, argparse.Action]:
        """The action of each flag."""
        return MappingProxyType(self._option_string_actions)

    def add_word(
        self,
        dest: str,
        help_text: str,
        *,
        metavar: str = "",
        is_required: bool = False,
        choices: Sequence[str] = (),
    ) -> None:
        """Declare an argument that is not a flag. With fewer words the last declared ones count."""
        word = Word(dest, metavar or dest.upper(), help_text, is_required, tuple(choices))
        self.words.append(word)
        # Shown in the help only: argparse takes a word for the first argument that may be left out.
        self.add_argument(
            dest,
            nargs=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            metavar=word.metavar,
            help=help_text.replace("%", "%%"),
        )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; those after `--` are words.

        Raises:
            UsageError: A flag is unknown, or a value is missing, not allowed or superfluous.
        """
        argv = list(argv)
        end = argv.index("--") if "--" in argv else len(argv)
        arguments, others = self.parse_known_args(argv[:end])
        for word in others:
            if _is_flag(word):
                self._refuse_flag(word)
        self._assign(arguments, others + argv[end + 1 :])
        return arguments

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message in our words."""
        found = re.fullmatch(r"argument (\S+): (.*)", message, re.DOTALL)
        if found is not None:
            flag = next(name for name in found[1].split("/") if name.startswith("--"))
            message = f"{flag} {self._phrase(flag, found[2])}"
        message = re.sub("^one of the arguments (.*) is required$", r"needs one of \1", message)
        raise self.usage_error(re.sub("^the following arguments are required:", "needs", message))

    def _phrase(self, flag: str, phrase: str) -> str:
        found = re.fullmatch(r"invalid choice: '(.*)' \(choose from .*\)", phrase)
        if found is not None:
            choices = [str(choice) for choice in self.flags[flag].choices or ()]
            hint = did_you_mean(found[1], choices)
            return f"must be one of {', '.join(choices)}, got {found[1]!r}{hint}"
        for pattern, ours in PHRASES.items():
            phrase = re.sub(f"^{pattern}$", ours, phrase)
        return phrase

    def usage_error(self, message: str) -> UsageError:
        """Return an error that refers to this command's help."""
        return UsageError(message, hint=f"see `{self.prog} --help`")

    def format_usage(self) -> str:
        """Return the usage in one line."""
        shown = (word.metavar if word.is_required else f"[{word.metavar}]" for word in self.words)
        return " ".join(("usage:", self.prog, "[options]", *shown)) + "\n"

    def format_help(self) -> str:
        """Return the usage, the description, and all arguments."""
        self.usage = self.format_usage().removeprefix("usage: ").rstrip()
        return super().format_help()

    def _assign(self, arguments: argparse.Namespace, given: Sequence[str]) -> None:
        if len(given) > len(self.words):
            self._refuse_words(given)
        values = dict(zip(reversed(self.words), reversed(given), strict=False))
        for word in self.words:
            value = values.get(word)
            earlier = getattr(arguments, word.dest, None)  # of a flag with the same meaning
            if value is None and earlier is None and word.is_required:
                raise self.usage_error(f"`{self.prog}` needs a {word.metavar}: {word.help}")
            if value is not None and word.choices and value not in word.choices:
                hint = did_you_mean(value, word.choices)
                known = ", ".join(word.choices)
                raise self.usage_error(
                    f"{word.metavar} must be one of {known}, got {value!r}{hint}"
                )
            if value is not None and earlier is not None:
                raise self.usage_error(
                    f"{word.dest} is given twice: {earlier!r} and {value!r}; quote a text of "
                    "several words"
                )
            setattr(arguments, word.dest, earlier if value is None else value)

    def _refuse_words(self, given: Sequence[str]) -> NoReturn:
        surplus = given[len(self.words)]
        names = " and ".join(word.metavar for word in self.words)
        takes = f"takes only {names}" if names else "takes only flags"
        quote = "; quote a text of several words" if len(self.words) > 1 else ""
        raise self.usage_error(f"`{self.prog}` {takes}, and {surplus!r} is one too many{quote}")

    def _refuse_flag(self, word: str) -> NoReturn:
        flag = word.partition("=")[0]
        hint = _elsewhere(flag) or self._near_flag(flag)
        raise self.usage_error(f"there is no option {flag!r}{hint}")

    def _near_flag(self, flag: str) -> str:
        """Return "; did you mean ...?", by the names without hyphens, which all flags have."""
        known = [other.lstrip("-") for other in self.flags if other.startswith("--")]
        return did_you_mean(flag.lstrip("-"), known).replace("'", "'--", 1)


def number(kind: type[int] | type[float], least: float | None = None) -> Callable[[str], Any]:
    """Return the type of an argument that is a number.

    Args:
        kind: int or float.
        least: Smallest value that is allowed; None: any.
    """

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {TYPE_WORDS[kind]}, got {text!r}") from None
        if least is not None and not value >= least:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        return value

    return parse


def _is_flag(word: str) -> bool:
    """Return whether a word that argparse did not take is a flag; `-`, numbers, texts are not."""
    return word.startswith("-") and word != "-" and " " not in word and not NUMBER.match(word)


def _elsewhere(flag: str) -> str:
    """Return what to say about a flag that has a meaning, but not for this command."""
    name = flag.removeprefix("--").replace("-", "_")
    if (way_out := OPTIONS_ELSEWHERE.get(name.removeprefix("no_"))) is not None:
        return f"; {way_out}"
    is_option = any(name == option.name for kind in GROUPS.values() for option in fields(kind))
    return "; it is an option of `quire serve`" if is_option else ""
