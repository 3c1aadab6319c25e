"""`keras-dist plan`, `auto`, `explain` and `check`, which allocate nothing."""

from __future__ import annotations

import pathlib
import sys
import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keras_dist.cli.arguments import (
    AsJson,
    Config,
    Mesh,
    Settings,
    find_programs,
    load,
    of_config,
    overrides,
    show,
    show_toml,
    to_stderr,
)

if TYPE_CHECKING:
    from keras_dist.config import RunConfig

Target = Annotated[
    str | None,
    typer.Option(metavar="v5p:4x4x4", help="the machine to plan for, which need not exist here: cpu:8, h100:1x2x8"),
]
Compile = Annotated[bool, typer.Option("--compile/--no-compile", help="whether XLA compiles the step for the target")]


def plan(
    config: Config,
    mesh: Mesh = None,
    settings: Settings = None,
    target: Target = None,
    compile_it: Compile = True,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="batch|remat|offload", help="plan other batches and options, too; may be repeated"),
    ] = None,
    html: Annotated[
        pathlib.Path | None, typer.Option(dir_okay=False, metavar="PLAN.HTML", help="also write a page with pictures")
    ] = None,
    json: AsJson = False,
) -> int:
    """Report the costs of a step, and whether it fits.

    The report has layouts, communication and costs; nothing is allocated. The exit code is 1 if the run does not fit
    into the memory of the target's devices, and 4 if this is not known before the step is compiled.
    """
    from keras_dist import planner
    from keras_dist.distribution.render import render_bytes
    from keras_dist.errors import ConfigError
    from keras_dist.planner.search_result import toml_of

    with to_stderr():
        inputs = _inputs(load(config, mesh, settings), target)
        inputs |= {"target": target, "compiles": compile_it}
        if not search:
            inputs["config_lines"] = lambda found: of_config(toml_of(found), config)
        if search and html is not None:
            raise ConfigError("--html shows a single plan", given="--search and --html", fix="leave one of them out")
        report: Any = planner.plan(**inputs, search=search or ())
    show(report, json)
    if html is not None:
        report.to_html(html)
        print(f"wrote {html} ({render_bytes(html.stat().st_size)})", file=sys.stderr)
    return report.exit_code


def explain(
    path: Annotated[str, typer.Argument(metavar="PATH", help="path of a weight, or of an output as d1/output")],
    config: Config = pathlib.Path("run.toml"),
    mesh: Mesh = None,
    settings: Settings = None,
    target: Target = None,
    json: AsJson = False,
) -> int:
    """Explain the layout of an array."""
    from keras_dist import planner

    with to_stderr():
        report = planner.plan(**_inputs(load(config, mesh, settings), target))
    show(report.explain(path), json)
    return 0


def auto(
    config: Config,
    mesh: Mesh = None,
    settings: Settings = None,
    target: Target = None,
    any_mesh: Annotated[bool, typer.Option("--any-mesh", help="try all meshes data x model of these devices")] = False,
    objective: Annotated[
        Literal["step_time", "memory"] | None, typer.Option(help="quantity to minimize; by default the step time")
    ] = None,
    memory_limit: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="memory of a device; by default from the target")
    ] = None,
    compile_it: Compile = True,
    json: AsJson = False,
) -> int:
    """Find a layout, and print it for the config.

    Nothing is allocated. stdout has the tables [mesh] and [distribution] in the format of the config, stderr the
    candidates. Options replace objective, target and memory_limit of strategy = "auto" in the config. The exit code is
    1 if no candidate fits into the memory of a device. CPU devices have no limit but --memory-limit.
    """
    from keras_dist import planner
    from keras_dist.config import AutoConfig, ModelParallelConfig

    with to_stderr():
        run = load(config, mesh, settings)
        chosen = run.distribution if isinstance(run.distribution, AutoConfig) else AutoConfig()
        inputs = _inputs(run.model_copy(update={"distribution": ModelParallelConfig()}), target)
        given = inputs.pop("distribution").device_mesh
        finder = planner.AutoParallel(
            list(given.devices.flat) if any_mesh else given,
            objective or chosen.objective,
            target or chosen.target,
            memory_limit or chosen.memory_limit,
            compiles=compile_it,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "nothing fits")  # the explanation begins with it
            found = finder.search(**inputs)
    show_toml(found, json, config)
    return 1 if found.fits is False else 0


def check(
    config: Config, mesh: Mesh = None, settings: Settings = None, target: Target = None, json: AsJson = False
) -> int:
    """Find mistakes in a config and its layout rules.

    Mistakes of all kinds are listed, as far as each can be found without the others. Nothing is allocated. The exit
    code is 1 if a rule cannot be applied or has no effect, 2 if the config is wrong.
    """
    from keras_dist import planner
    from keras_dist.assembly.components import joined_error, with_nested
    from keras_dist.assembly.distributions import valid_inputs
    from keras_dist.config.loader import load_valid
    from keras_dist.errors import KerasDistError

    report = None
    find_programs()
    with to_stderr():
        run, wrong = load_valid(config, overrides(mesh, settings))
        inputs, errors = (None, []) if run is None else valid_inputs(run, target)
        if wrong is not None:  # what it names is missing in the run
            errors = [wrong, *(error for error in errors if "is missing" not in error.summary)]
        try:
            report = None if inputs is None else planner.check(**vars(inputs))
        except KerasDistError as error:
            errors.append(error)
    if report is not None and (report.problems or not errors):
        show(report, json)
    if errors:
        raise joined_error(errors if run is None else with_nested(run, errors))
    return 1 if report is not None and report.problems else 0


def _inputs(run: RunConfig, target: str | None) -> dict[str, Any]:
    """Return the arguments of `kd.plan` for a run."""
    from keras_dist import assembly

    return dict(vars(assembly.plan_inputs(run, target)))
