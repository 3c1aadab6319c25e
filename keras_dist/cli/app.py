"""`app`: all commands, with `--debug`, short errors and exit codes.

Exit codes: 1 where the check failed (a plan does not fit, a rule matches nothing), 2 for wrong input, 3 for any other
error. CI must tell these apart.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from keras_dist import __version__
from keras_dist.cli.commands import convert, devices, doctor, train
from keras_dist.cli.demo import demo
from keras_dist.cli.launch import LaunchCommand, launch
from keras_dist.cli.planning import auto, check, explain, plan
from keras_dist.errors import KerasDistError, printable

USAGE, FAILURE = 2, 3
_LARGEST_OWN = 3  # largest code of commands; larger codes come from training that a signal ended

_EXIT_CODES = """\b
Exit codes:
  0    success
  1    the check failed: the plan does not fit, a check found problems, a
       checkpoint is damaged, a rule matches nothing, the demo's accuracy is low
  2    wrong arguments or config, or nothing to examine
  3    another error, of the system or of code that a config names
  4    plan: it is not known whether the step fits; compile it
  75   the training saved its state after a signal: start it again
  130  Ctrl-C
  launch returns 0, 2, 75, 128 plus the number of the signal that ended it, or
  the code of the failed process

Errors take a few lines; --debug shows the traceback.
"""

_DEBUG = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="show the traceback of an error")],
)

app = typer.Typer(
    name="keras-dist",
    help="Plan layouts of arrays, train, launch jobs, and check what was saved.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # keeps the lines of the epilog, and does not load rich
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command in the arguments of this process, and exit with its code."""
    app(prog_name="keras-dist")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keras_dist {__version__}")
        raise typer.Exit()


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Take the options before a command."""


def _add(act: Callable[..., int], **options: Any) -> None:
    """Add a command with the option `--debug`; `act` returns its exit code."""

    @functools.wraps(act)
    def command(*, debug: bool, **given: Any) -> None:
        try:
            raise typer.Exit(act(**given))
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            is_ours = isinstance(error, KerasDistError)
            if debug:
                traceback.print_exc()
            else:
                hint = "" if is_ours else "\n(--debug shows the traceback)"
                sys.stderr.write(printable(f"{type(error).__name__}: {error}{hint}\n"))
            raise typer.Exit(USAGE if is_ours else FAILURE) from error
        except SystemExit as ended:  # of code that a config names, not one of the codes above
            if isinstance(ended.code, int) and ended.code > _LARGEST_OWN:
                raise
            sys.stderr.write(f"the program called exit({'' if ended.code is None else repr(ended.code)})\n")
            raise typer.Exit(FAILURE) from ended

    signature = inspect.signature(act, eval_str=True)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _DEBUG])  # type: ignore[attr-defined]
    app.command(act.__name__, **options)(command)


for _act in (train, plan, auto, explain, check, devices, doctor, convert, demo):
    _add(_act)
_add(launch, cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
