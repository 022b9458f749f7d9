"""The command line: which verb, or a run. Imports nothing heavy: `-h` and wrong words answer at once."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from orchestrator import __version__
from orchestrator.cli.verbs import VERBS
from orchestrator.config.errors import OrchestratorError, UsageError
from orchestrator.config.nearest import nearest
from orchestrator.records.redact import redact_text
from orchestrator.report.text import plain

PROGRAM = "python -m orchestrator"

_ABOUT = "Measures what a Megatron Bridge training job should recompute, and keeps the results in a database."

_EXAMPLES = f"""\
examples:
  {PROGRAM} -m study=demo
  {PROGRAM} -m 'recompute_modules=[],[core_attn],[mla_up_proj]'
  {PROGRAM} -m 'recompute_modules=[],[moe]' parallelism=two_experts dry_run=true
  {PROGRAM} recompute=full_uniform recompute_num_layers=2
  {PROGRAM} --cfg job
  {PROGRAM} compare demo

overrides are Hydra's: GROUP=FILE chooses a file of conf/GROUP (yours in ./conf come first),
KEY=VALUE sets a value, A,B sweeps with -m. dry_run=true shows the plan and runs nothing.

verbs ({PROGRAM} VERB -h):
"""

_EXIT_CODES = """
exit codes: 0 ok, also where trials failed; 1 the environment failed; 2 wrong usage or configuration;
3 asked, and nothing qualifies"""

_VALUED_FLAGS = frozenset({"--db", "--cfg", "-c", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p"})
_DATABASE_MODULES = frozenset({"sqlite3", "sqlalchemy", "psycopg"})
_SETTINGS = {"dry_run": "true", "strict": "true", "results_dir": "DIR"}
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Errors for users become one line on stderr."""
    try:
        code = _dispatch(list(arguments))
        sys.stdout.flush()
        return code
    except OrchestratorError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        if error.filename is None and _has_lost_stdout():
            return _fail(f"The standard output could not be written: {error.strerror or error}.", 1)
        return _fail(_explained(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "orchestrator"):
            raise
        return _fail(_missing(package), 1)
    except RuntimeError as error:
        if "home directory" not in str(error):  # pathlib's only way to say so
            raise
        return _fail("A path begins with ~, and that user's home is not known here: write the path in full.", 2)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _DATABASE_MODULES:
            raise
        said = getattr(error, "orig", None) or error  # without the statement and its values
        return _fail(f"The database failed: {redact_text(' '.join(str(said).split()))}.", 1)


def entry() -> NoReturn:
    """The console script."""
    _open_standard_streams()
    _show_every_character()
    code = main(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    raise SystemExit(code)


def _open_standard_streams() -> None:
    """Put the null device where a stream was closed (`>&-`, a daemon): its number would go to the next file that is
    opened, a record or the database, and what is printed would go into that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _show_every_character() -> None:
    """Print what a stream's encoding lacks (a `·` in ASCII) as its escape: an answer must not end in an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _has_lost_stdout() -> bool:
    """Whether it is the standard output that cannot be written; what it still holds is then given up."""
    try:
        os.write(sys.stdout.fileno(), b"")  # a device that is full refuses nothing, too
        sys.stdout.flush()
    except OSError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _dispatch(arguments: list[str]) -> int:
    word = _first_word(arguments)
    if word is None:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(help_text())
            return 0
        if arguments[0] == "--version":
            print(f"orchestrator {__version__}")
            return 0
    elif word in VERBS:
        return _run_verb(word, arguments)
    elif "=" not in word and not word.startswith("~"):
        match = nearest(word, VERBS)
        hint = f"did you mean {match}?" if match is not None else f"there is {', '.join(VERBS)}"
        raise UsageError(f"{word!r} is no verb and no override KEY=VALUE; {hint}")
    return _run_study(arguments)


def _first_word(arguments: Sequence[str]) -> str | None:
    """The first argument that is neither a flag nor a flag's value."""
    skip = False
    for argument in arguments:
        if skip or argument in _INFO:
            skip = False
        elif argument.startswith("-") and len(argument) > 1:
            skip = argument in _VALUED_FLAGS
        else:
            return argument
    return None


def _run_verb(word: str, arguments: list[str]) -> int:
    arguments.remove(word)
    module = importlib.import_module(VERBS[word].module)
    parser = _Parser(prog=PROGRAM, add_help=False)
    subparsers = parser.add_subparsers(dest="verb", parser_class=_Parser)
    module.add_parser(subparsers)
    verb_parser = subparsers.choices[word]
    add_common_flags(verb_parser, database=VERBS[word].database)
    # Settings may stand before and behind options, as for a run.
    given, unknown = verb_parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise UsageError(_unrecognized(unknown, verb_parser))
    return _exit_code(module, given)


def _run_study(arguments: list[str]) -> int:
    parser = run_parser()
    if "-h" in arguments or "--help" in arguments:
        print(help_text())
        return 0
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise UsageError(_unrecognized(unknown, parser))
    shows = [flag for flag in ("cfg", "info", "shell_completion") if getattr(given, flag)]
    if len(shows) + given.multirun > 1:
        raise UsageError("Only one of -m, --cfg, --info and --shell-completion can be given.")
    if given.resolve and given.cfg is None:
        raise UsageError("--resolve needs --cfg.")
    if given.shell_completion and any(word.startswith("query=") for word in given.overrides):
        from orchestrator.cli.completion import query

        return query(given)
    if shows:
        from orchestrator.config.display import display

        return display(given)
    return _exit_code(importlib.import_module("orchestrator.cli.run"), given)


def _exit_code(module: ModuleType, given: argparse.Namespace) -> int:
    code: int = module.run(given)
    return code


def _unrecognized(words: list[str], parser: argparse.ArgumentParser) -> str:
    first = words[0].partition("=")[0]
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    match = nearest(first, flags) if first.startswith("-") else None
    hint = f"; did you mean {match}?" if match is not None else ""
    setting = first.lstrip("-").replace("-", "_")
    if setting in _SETTINGS:
        hint = f"; settings have no dashes: {setting}={_SETTINGS[setting]}"
    return f"unrecognized arguments: {' '.join(words)}{hint} (see {parser.prog} -h)"


def run_parser() -> argparse.ArgumentParser:
    """Flags of a run: Hydra's, under Hydra's names, and those of every verb."""
    parser = _Parser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--multirun", "-m", action="store_true", help="run every value of swept overrides")
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="the primary configuration, instead of config")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a conf folder that comes before all others")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"], help="show the configuration and run nothing")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations first")
    parser.add_argument("--package", "-p", metavar="PACKAGE", help="with --cfg: show only this part")
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=_INFO,
        metavar="WHAT",
        help=f"where the configuration comes from: {', '.join(_INFO)}",
    )
    parser.add_argument("--shell-completion", "-sc", action="store_true", help="install=bash, or zsh, fish")
    add_common_flags(parser)
    return parser


def add_common_flags(parser: argparse.ArgumentParser, *, database: bool = True) -> None:
    """Those that every command has, unless it has its own; --db where it asks a database."""
    known = parser._option_string_actions
    if "--json" not in known:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    if database and "--db" not in known:
        parser.add_argument(
            "--db",
            metavar="URL",
            help="the database, a URL or a file (default: ORCHESTRATOR_DB, or results/store.sqlite)",
        )


class _Parser(argparse.ArgumentParser):
    """Ends wrong usage with one line, like every other error here."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} -h)")


def help_text() -> str:
    """What `-h` prints."""
    parser = run_parser()
    flags = parser.format_help().partition("options:\n")[2]
    verbs = "\n".join(f"  {name:<11}{verb.summary}" for name, verb in VERBS.items())
    return (
        f"usage: {PROGRAM} [-m] OVERRIDE...\n       {PROGRAM} VERB ...\n\n{_ABOUT}\n\n{_EXAMPLES}{verbs}\n\n"
        f"options:\n  -h, --help            this text\n{flags.rstrip()}\n{_EXIT_CODES}"
    )


def _missing(package: str) -> str:
    root = Path(__file__).resolve().parents[2]
    lines = [f"The package {package} is not installed for {sys.executable}."]
    ours = root / ".venv" / "bin" / "python"
    if (root / ".venv" / "installed").exists() and Path(sys.prefix).resolve() != root / ".venv":
        lines.append(f"The one that make set up is {ours}: run that, or `. {root}/.venv/bin/activate` first.")
    else:
        source = f"-e '{root}'" if (root / "pyproject.toml").exists() else "recompute-orchestrator"
        lines.append(f"`{sys.executable} -m pip install {source}` brings what the command line needs.")
    return " ".join(lines)


def _fail(message: str, code: int) -> int:
    text = plain(" ".join(message.split()))
    start = "\033[31merror:\033[0m" if _is_colourful() else "error:"
    print(f"{start} {text}", file=sys.stderr)
    return code


def _is_colourful() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _explained(error: OSError) -> str:
    where = error.filename or "a file"
    if error.errno == errno.ENOSPC:
        return f"The disk is full: {where} could not be written. Nothing was half-written; free some space and retry."
    if error.errno == errno.EDQUOT:
        return f"The disk quota is used up: {where} could not be written. Free some space and retry."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"No permission: {where} ({error.strerror or error})."
    return f"{error.strerror or error}: {where}." if error.filename else f"{error}."
