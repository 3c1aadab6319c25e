"""`plan_generation`: memory and least times of the two programs of `kd.generate`, which are traced and not run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import PyTree
from keras_dist._unstable import shardy
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.plan import LayoutPlan, Row, make_row
from keras_dist.distribution.render import layout_table, render_bytes, render_seconds
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.planner.backends import users_of
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.propagation import propagate
from keras_dist.planner.sharded_module import ShardedModule, returned_by
from keras_dist.planner.targets import Target
from keras_dist.planner.tracing import StepProgram, forward_of, planning
from keras_dist.planner.verdict import Verdict, judge
from keras_dist.training.generation import Generation, Sampling, check_positions
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward

_PROGRAMS = {"prefill": "all prompts", "decode": "a new token of each row"}


@dataclasses.dataclass(frozen=True)
class Phase:
    """One of the two programs, of one device.

    Attributes:
        read_nbytes: bytes of weights and cache that it reads, each once; of `prefill` with the cache that it writes.
            Tables of which a token of each row is looked up do not count.
        step: *propagated*: collectives and FLOPs; of one turn of the loop.
        verdict: its memory, and its least time, which is propagated; None without a target.
    """

    read_nbytes: int
    step: Propagated
    verdict: Verdict | None

    @property
    def least_seconds(self) -> float | None:
        """Least time of the program, or of one turn [s]; None without a target."""
        return None if self.verdict is None else self.verdict.rooflines["propagated"].step_seconds


@dataclasses.dataclass(frozen=True, repr=False)
class GenerationReport:
    """Memory and least times of `kd.generate` for prompts of one size. Printing it shows tables.

    Attributes:
        state: *exact*: layouts of the weights.
        cache: *propagated*: layouts of the cache of keys and values, as the first program returns it.
        prompts: number of prompts.
        rows: rows of the programs: prompts, padded to a power of two of what the mesh divides. Lengths are padded, too,
            to 32 times a power of two; the cache has slots for these and for new tokens, in steps of 64 or a quarter.
        new_tokens: new tokens of each row.
        phases: `prefill`, which reads the prompts, and `decode`, one turn of the loop, for a new token of each row.
    """

    state: LayoutPlan
    cache: LayoutPlan
    prompts: int
    rows: int
    new_tokens: int
    phases: dict[str, Phase]

    @property
    def fits(self) -> bool | None:
        """Whether both programs fit on the target; None if not known."""
        found = [None if each.verdict is None else each.verdict.fits for each in self.phases.values()]
        return False if False in found else None if None in found else True

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the cache on one device. *Propagated*."""
        return self.cache.nbytes_per_device

    @property
    def least_seconds(self) -> float | None:
        """Least time of a call [s]: of the prompts, and of each token after the first; None without a target."""
        times = {name: each.least_seconds for name, each in self.phases.items()}
        first, turn = times["prefill"], times.get("decode", 0.0)
        return None if first is None or turn is None else first + (self.new_tokens - 1) * turn

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists, strings and numbers."""
        return {
            "exact": self.state.to_dict(),
            "propagated": {
                "cache": self.cache.to_dict()["rows"],
                "cache_nbytes": self.cache_nbytes,
                "least_seconds": self.least_seconds,
                **{name: dataclasses.asdict(each.step) for name, each in self.phases.items()},
            },
            "read_nbytes": {name: each.read_nbytes for name, each in self.phases.items()},
            "prompts": self.prompts,
            "rows": self.rows,
            "new_tokens": self.new_tokens,
            "fits": self.fits,
            "verdicts": {name: each.verdict and each.verdict.to_dict() for name, each in self.phases.items()},
        }

    def __str__(self) -> str:
        layouts = layout_table([*self.state.rows, *self.cache.rows], f"Layout on mesh {self.state.mesh.describe()}")
        headers = ("program", "reads", "collectives", "FLOPs", "least time", "limited by")
        table = Table("Programs of generate, of one device (propagated)", headers, headers[1:5], rows=[*self._lines()])
        sizes = (render_bytes(nbytes) for nbytes in (self.state.nbytes_per_device, self.cache_nbytes))
        notes = ["weights {} (exact), cache {} (propagated)".format(*sizes)]
        if seconds := self.least_seconds:
            rate = f"at most {self.prompts * self.new_tokens / seconds:,.0f} tokens/s"
            what = f"{self.prompts} prompts, {self.new_tokens} new tokens of each"
            notes.append(f"{what}: at least {render_seconds(seconds)}, {rate}")
        verdicts = {name: each.verdict for name, each in self.phases.items() if each.verdict}
        notes += [f"{name}: {each.memory}" for name, each in verdicts.items()]
        notes += dict.fromkeys(f"not compiled: {each.note}" for each in verdicts.values() if each.note)
        return render(layouts, table, *notes)

    def _lines(self) -> Iterator[tuple[str, ...]]:
        for name, each in self.phases.items():
            moved = render_bytes(sum(each.step.nbytes_by_axes().values()))
            found = each.verdict and each.verdict.rooflines["propagated"]
            time = (render_seconds(found.step_seconds), found.bottleneck) if found else ("-", "-")
            yield f"{name}: {_PROGRAMS[name]}", render_bytes(each.read_nbytes), moved, f"{each.step.flops:,}", *time


def plan_generation(
    model_or_factory: Any,
    generate: Any,
    distribution: Distribution | None,
    target: Target | None,
    *,
    compiles: bool,
    timeout_seconds: float,
) -> GenerationReport:
    """Return the report for `generate=(prompts, tokens of a prompt, new tokens)`; see `plan`."""
    count, length, new_tokens = _checked(generate)
    if distribution is not None:
        check_distribution("distribution", distribution)
    rows = [np.broadcast_to(np.int32(0), (length,))] * count
    platform = None if target is None else target.platform
    with planning(platform), distribution.scope() if distribution else contextlib.nullcontext():
        tokens = jax.ShapeDtypeStruct((count, length), "int32")
        forward, _ = forward_of(model_or_factory, tokens, distribution)
        check_positions(forward.graph.described(), length, new_tokens)
        network = _Unrun(forward, platform)
        Generation(network, rows, new_tokens, Sampling(True, None, False))((), 0, (np.float32(1), np.float32(1)))
    phases: dict[str, Phase] = {}
    for name, (lowered, operands) in network.programs.items():
        step, verdict = propagate(lowered), None
        read = step.interface_nbytes if name == "prefill" else _read_nbytes(lowered)
        if target is not None:
            program = StepProgram(lowered, network.plan, operands, (), (), network.distribution, keeps_data=False)
            read_once = dataclasses.replace(step, accessed_nbytes=read, interface_nbytes=read)
            verdict = judge(program, read_once, target, compiles=compiles, timeout_seconds=timeout_seconds)
            line = verdict.rooflines["propagated"]  # XLA's programs do not say how often the loop runs
            verdict = dataclasses.replace(verdict, rooflines={"propagated": line})
        phases[name] = Phase(read, step, verdict)
    return GenerationReport(network.plan, network.returned["prefill"], count, network.rows, new_tokens, phases)


def _checked(generate: Any) -> tuple[int, int, int]:
    """Return the numbers of prompts, of tokens of a prompt and of new tokens."""
    found: tuple[Any, ...] = tuple(generate) if isinstance(generate, Sequence) and len(generate) == 3 else ()
    if not found or not all(is_int(number, 1, 2**20) for number in found):
        raise argument_error("generate", generate, "(prompts, tokens of a prompt, new tokens)", example=(8, 1024, 256))
    return int(found[0]), int(found[1]), int(found[2])


class _Unrun:
    """A network of shapes, which lowers the programs that it is to run."""

    def __init__(self, forward: Forward, platform: str | None) -> None:
        self.distribution, self._platform = forward.distribution, platform
        self.plan = forward.distribution.plan_variables(forward.graph.specs, forward.graph.treedef)
        self._cell, _ = StateCell.of_own_module(forward.graph, self.plan, self.plan.shapes)
        self._forward = dataclasses.replace(forward, plan=self.plan)
        self.programs: dict[str, tuple[jax.stages.Lowered, LayoutPlan]] = {}
        self.returned: dict[str, LayoutPlan] = {}
        self.rows = 0

    def placed(self, array: np.ndarray) -> Any:
        """Return the array's shape with the layout that `generate` gives it."""
        mesh = self.distribution.device_mesh
        layout = self.distribution.get_data_layout(array.shape)
        if array.shape[0] % mesh.axis_size(layout.axes[0]):
            layout = TensorLayout.replicated(array.ndim, mesh)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout.backend_layout)

    def run_compiled(
        self,
        key: Any,
        run: Callable[..., PyTree],
        *operands: PyTree,
        donated: Sequence[int] = (),
        layouts: Sequence[int | None] = (),
        title: str = "",
    ) -> PyTree:
        """Lower the program, and return the shapes of its results with their layouts."""
        mesh, state = self.distribution.device_mesh, self._cell.state
        program = jax.jit(self._forward.in_evaluation(run), donate_argnums=[place + 2 for place in donated])
        platforms = () if self._platform is None else (self._platform,)
        traced = program.trace(state.trainable, state.rest, *operands)
        lowered = traced.lower(lowering_platforms=platforms or (mesh.platform,))
        leaves, tree = jax.tree.flatten(traced.out_info)
        found = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_dividing(axes, leaf.shape, mesh).backend_layout)
            for leaf, axes in zip(leaves, _layouts_of_results(lowered), strict=True)
        ]
        results = tree.unflatten(found)
        self.returned[key[0]] = _laid_out(results[1], mesh)
        held = operands if donated else (operands, results[1])  # beside the weights
        self.programs[key[0]] = lowered, _laid_out(held, mesh)
        self.rows = max(self.rows, len(results[0]))
        return results


def _dividing(axes: Sequence[Axis], shape: Sequence[int], mesh: DeviceMesh) -> TensorLayout:
    """Return the layout without axes that do not divide a dim: shapes of uneven shards cannot be described."""
    pairs = zip(axes, shape, strict=True)
    return TensorLayout([axis if size % mesh.axis_size(axis) == 0 else None for axis, size in pairs], mesh)


def _laid_out(arrays: PyTree, mesh: DeviceMesh) -> LayoutPlan:
    """Return the layouts of arrays beside the weights."""
    named, tree = jax.tree_util.tree_flatten_with_path(arrays)
    rows: list[Row] = []
    for path, leaf in named:
        sharding = getattr(leaf, "sharding", None)
        spec = () if sharding is None else tuple(sharding.spec)
        layout = TensorLayout((*spec, *[None] * (np.ndim(leaf) - len(spec))), mesh)
        name = "cache" + jax.tree_util.keystr(path).replace("[", "/").replace("]", "").replace(".", "/")
        rows.append(make_row(name, np.shape(leaf), leaf.dtype, "cache", layout, "the keys and values"))
    return LayoutPlan(mesh, tuple(rows), tree)


def _propagated(lowered: jax.stages.Lowered) -> ShardedModule:
    module = shardy.copy_of(lowered)
    shardy.run_passes(module, "sdy-propagation-pipeline")
    return ShardedModule(module)


def _layouts_of_results(lowered: jax.stages.Lowered) -> list[tuple[Axis, ...]]:
    module = _propagated(lowered)
    return [module.axes(value) for value in returned_by(module.block("main"))]


def _read_nbytes(lowered: jax.stages.Lowered) -> int:
    """Return the bytes of the arguments that a program reads: not of tables that it only looks up."""
    module = _propagated(lowered)
    return sum(module.nbytes(each) for each in module.block("main").arguments if not _is_looked_up(each, module))


def _is_looked_up(value: Any, module: ShardedModule) -> bool:
    """Whether only rows of an array are read."""
    users = list(users_of(value, module))
    inner = {
        user: user.regions[0].blocks[0].arguments[place]
        for user in users
        if user.name == "sdy.manual_computation"
        for place, operand in enumerate(user.operands)
        if operand == value
    }
    return bool(users) and all(
        _is_looked_up(inner[user], module) if user in inner else user.name == "stablehlo.gather" for user in users
    )
