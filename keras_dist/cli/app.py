"""`app`: all commands, with what they share: errors as lines, `--debug`, exit codes."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from keras_dist import __version__
from keras_dist.cli.demo import demo
from keras_dist.cli.devices import devices
from keras_dist.cli.doctor import doctor
from keras_dist.cli.launch import launch
from keras_dist.cli.migrate import migrate
from keras_dist.cli.planning import auto, check, explain, plan
from keras_dist.cli.train import train
from keras_dist.errors import KerasDistError

USAGE, FAILURE = 2, 3
_LARGEST_OWN = 3  # of the codes of commands; larger ones are of training that was ended by a signal

_EXIT_CODES = """\b
Exit codes:
  0    done, and what was asked is so
  1    the answer is no: does not fit, the check found problems, a checkpoint
       is damaged, a rule matches nothing, the demo's accuracy is too low
  2    what was given is wrong, as the error says, or there is nothing to look at
  3    another error: of the code that a config names, of the system
  75   the training has saved its state after a signal: start it again
  130  ended by Ctrl-C
  launch has 0, 2, 75, 128 and the number of the signal that ended it, or the
  code of the process that died

A command without --debug says errors in a few lines; with it, it shows the traceback.
"""

_DEBUG = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="show the traceback of an error")],
)

app = typer.Typer(
    name="keras-dist",
    help="Know where every array lives, train there, and look after what was saved.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # loads nothing, and keeps the lines of what is written above
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command that the arguments of this process name; the exit code says how it went."""
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # as `python -m` does: configs name modules of the current folder
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
    """Add a command, whose exit code `act` returns, with the option `--debug`."""

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
                sys.stderr.write(f"{type(error).__name__}: {error}{hint}\n")
            raise typer.Exit(USAGE if is_ours else FAILURE) from error
        except SystemExit as ended:  # of the code that a config names, which knows nothing of our codes
            if isinstance(ended.code, int) and ended.code > _LARGEST_OWN:
                raise
            sys.stderr.write(f"the program has called exit({'' if ended.code is None else repr(ended.code)})\n")
            raise typer.Exit(FAILURE) from ended

    signature = inspect.signature(act, eval_str=True)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _DEBUG])  # type: ignore[attr-defined]
    app.command(act.__name__, **options)(command)


for _act in (train, plan, auto, explain, check, devices, doctor, migrate, demo):
    _add(_act)
_add(launch, context_settings={"allow_interspersed_args": False})
