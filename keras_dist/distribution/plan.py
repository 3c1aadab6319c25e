"""`LayoutPlan`: the layouts of all arrays of a tree, as assigned by a distribution."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support import html_tables

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree, PyTreeDef
from keras_dist._unstable import jax_internals
from keras_dist._unstable.flax_internals import state_of
from keras_dist.distribution.device_blocks import ShardPicture, picture_of
from keras_dist.distribution.devices import check_memory_kind
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.lint import Problem, check_layout
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.optimizer_slots import follower_axes, owners
from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.render import layout_html, render_plan
from keras_dist.distribution.sharded_init import CompiledInit
from keras_dist.distribution.variables import Role, VariableSpec, leaf_parts, leaf_paths, shape_and_dtype
from keras_dist.errors import LayoutError, UnknownPathError, did_you_mean, shorten

FOLLOWS = "follows "  # prefix of the reason of a layout that another array has


@dataclasses.dataclass(frozen=True)
class Row:
    """One array of a plan.

    Attributes:
        path: path of the array, such as `d1/kernel`.
        shape: shape of the array.
        dtype: dtype of the array.
        role: parameter, statistic, state, rng, counter, slot or gradient.
        axes: for each dim the mesh axis, several axes, or None.
        rule: origin of the layout: a rule of the map, `follows d1/kernel`, ...; None for replicated without a rule.
        nbytes: size of the whole array [bytes].
        nbytes_per_device: size of one shard [bytes].
        slot_axes: `axes` for the optimizer slots of this array.
        compute_axes: `axes` where a step uses this array: it is gathered over the axes that are missing here.
        slot_rule: origin of `slot_axes`, if not `rule`.
        aliases: other paths of the same array.
        keras_path: path of the variable in Keras, where it differs from `path`.
        memory_kind: memory in which the array is kept between steps, such as `"pinned_host"`; None for the memory of
            the devices.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    role: Role
    axes: tuple[Axis, ...]
    rule: str | None
    nbytes: int
    nbytes_per_device: int
    slot_axes: tuple[Axis, ...] = dataclasses.field(repr=False)
    compute_axes: tuple[Axis, ...] = dataclasses.field(repr=False)
    slot_rule: str | None = dataclasses.field(default=None, repr=False)
    aliases: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    keras_path: str | None = dataclasses.field(default=None, repr=False)
    memory_kind: str | None = dataclasses.field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """All paths that rules can match: `path` first."""
        return (self.path, *self.aliases, *(() if self.keras_path is None else (self.keras_path,)))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LayoutPlan:
    """The layouts of all arrays of a tree, with the rules that had no effect. Immutable.

    Made by `Distribution.plan(tree)`. Printing it gives a table in the width of the terminal: cells are wrapped, and
    omitted columns are listed below. In a pipe or a file all columns are printed; the environment variable `COLUMNS`
    sets another width.

    Attributes:
        mesh: the devices.
        rows: a `Row` for each array, in flattening order.
        treedef: structure of the planned tree.
        problems: rules that had no effect.
        rules: the layout rules when the plan was made, `(rule, axes)`.
    """

    mesh: DeviceMesh
    rows: tuple[Row, ...]
    treedef: PyTreeDef
    problems: tuple[Problem, ...] = ()
    rules: tuple[tuple[str, tuple[Axis, ...]], ...] = ()

    def __str__(self) -> str:
        return render_plan(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.rows)} arrays on mesh {self.mesh.describe()}>"

    @functools.cached_property
    def _rows_by_path(self) -> dict[str, Row]:
        by_alias = {name: row for row in self.rows for name in row.names}
        return by_alias | {row.path: row for row in self.rows}

    @property
    def shardings(self) -> PyTree:
        """A `jax.sharding.NamedSharding` for each array, in the planned tree's structure."""
        mesh, spec = self.mesh.backend_mesh, jax.sharding.PartitionSpec
        return self.treedef.unflatten(
            [jax.sharding.NamedSharding(mesh, spec(*row.axes), memory_kind=row.memory_kind) for row in self.rows]
        )

    @property
    def nbytes(self) -> int:
        """Size of all arrays [bytes]."""
        return sum(row.nbytes for row in self.rows)

    @property
    def nbytes_per_device(self) -> int:
        """Size of all arrays in the memory of one device [bytes]."""
        return sum(row.nbytes_per_device for row in self.rows if row.memory_kind is None)

    @property
    def host_nbytes_per_device(self) -> int:
        """Size of the arrays that each device keeps in the memory of its host [bytes]."""
        return sum(row.nbytes_per_device for row in self.rows if row.memory_kind is not None)

    def row(self, path: str) -> Row:
        """Return the row of the array known as `path`.

        Raises:
            UnknownPathError: the plan lacks the array. It is also a `KeyError`.
        """
        try:
            return self._rows_by_path[path]
        except (KeyError, TypeError):
            raise self._unknown(path) from None

    def show(self, path: str) -> ShardPicture:
        """Return a picture of the shards of one array: its blocks and the devices that hold them.

        Printing it gives a table; in a notebook, a drawing of the array and the mesh.

        Args:
            path: path of the array.

        Raises:
            UnknownPathError: the plan lacks the array.

        Example:
            >>> import keras_dist as kd, numpy as np
            >>> rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
            >>> rules["kernel"] = (None, "model")
            >>> kd.ModelParallel(rules).plan({"kernel": np.zeros((16, 8))}).show("kernel")
            kernel: 16 x 8 float32, (-, model), rule: kernel, on mesh {data: 2, model: 4}
            4 blocks of 16 x 2, 128 B, each on 2 devices, which differ in data; device 0 is cpu:0
                 │ 0:2  │ 2:4  │ 4:6  │ 6:8
            ─────┼──────┼──────┼──────┼─────
            0:16 │ 0, 4 │ 1, 5 │ 2, 6 │ 3, 7

        Source: `jax.debug.visualize_array_sharding`.
        """
        return picture_of(self.row(path), self.mesh)

    def arrange(self, paths: PyTree) -> LayoutPlan:
        """Return this plan restricted to `paths`, in their structure.

        Args:
            paths: a pytree of paths of this plan.

        Raises:
            UnknownPathError: a path is not in this plan.
        """
        leaves, treedef = jax.tree.flatten(paths)
        return LayoutPlan(self.mesh, tuple(self.row(path) for path in leaves), treedef, self.problems, self.rules)

    @property
    def shapes(self) -> PyTree:
        """A sharded `jax.ShapeDtypeStruct` for each array, in the planned tree's structure."""
        flat = zip(self.rows, jax.tree.leaves(self.shardings), strict=True)
        return self.treedef.unflatten([jax.ShapeDtypeStruct(row.shape, row.dtype, sharding=at) for row, at in flat])

    def compile_init(self, fn: Callable[..., PyTree], *args: PyTree) -> CompiledInit:
        """Compile `fn` so that it initializes the planned tree in shards.

        Args:
            fn: a pure function that returns the planned tree.
            *args: arguments of `fn`, arrays or shapes of arrays.

        Raises:
            LayoutError: the result of `fn` differs from the planned tree.
        """
        return CompiledInit(fn, args, self)

    def init(self, fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """Return the tree `fn(*args)`, initialized in shards: no array is ever whole on one device.

        In planning, return the tree of its shapes.

        Example:
            >>> import jax, keras_dist as kd
            >>> rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
            >>> rules["kernel"] = (None, "model")
            >>> init = lambda key: {"kernel": jax.random.normal(key, (16, 8))}
            >>> plan = kd.ModelParallel(rules).plan(jax.eval_shape(init, jax.random.key(0)))
            >>> plan.init(init, jax.random.key(0))["kernel"].sharding.shard_shape((16, 8))
            (16, 2)

        Raises:
            LayoutError: the result of `fn` differs from the planned tree.
        """
        if self.mesh.is_abstract:
            self.check_tree(jax.eval_shape(fn, *args), "the result of the initialiser")
            return self.shapes
        return self.compile_init(fn, *args)(*args)

    def place(self, tree: PyTree) -> PyTree:
        """Return copies of the arrays of `tree`, placed as planned.

        Raises:
            LayoutError: `tree` has another structure or other shapes than the planned tree.
        """
        tree = state_of(tree)
        self.check_tree(tree, "the tree to place")
        placed = [
            place_copy(leaf, sharding)
            for leaf, sharding in zip(jax.tree.leaves(tree), jax.tree.leaves(self.shardings), strict=True)
        ]
        return jax.tree.structure(tree).unflatten(placed)

    def follow(self, tree: PyTree, role: Role = "slot", memory_kind: str | None = None) -> LayoutPlan:
        """Return the plan for arrays that belong to the planned ones: optimizer slots, gradients, averages.

        Args:
            tree: a pytree of arrays or shapes, such as `jax.eval_shape(optimizer.init, parameters)`.
            role: `"slot"` for optimizer states; `"gradient"` or another role for arrays that are laid out like
                parameters.
            memory_kind: memory in which arrays with dims are kept between steps, such as `"pinned_host"`; by default
                the memory of the devices.

        Returns:
            A plan for `tree`. An array with a parameter's shape has its layout; an array that lacks a dim, or has it
            reduced to 1, has the layout of the other dims; all others are replicated, which their rows report.

        Raises:
            DeviceError: the devices have no memory of this kind.
        """
        tree = state_of(tree)
        if memory_kind is not None:
            check_memory_kind(memory_kind, self.mesh)
        planned = leaf_parts(self.treedef.unflatten(self.rows))
        claims = owners(dict(zip(planned, self.rows, strict=True)), tree)
        rows = [
            self._follower(claim.parameter, claim.leaf, path, role)
            for claim, path in zip(claims, leaf_paths(tree), strict=True)
        ]
        if memory_kind is not None:
            rows = [dataclasses.replace(row, memory_kind=memory_kind) if row.shape else row for row in rows]
        return LayoutPlan(self.mesh, tuple(rows), jax.tree.structure(tree))

    @staticmethod
    def join(plans: PyTree) -> LayoutPlan:
        """Combine a pytree of plans on one mesh into one plan."""
        parts, treedef = jax.tree.flatten(plans)
        return LayoutPlan(
            parts[0].mesh,
            tuple(row for plan in parts for row in plan.rows),
            jax.tree.structure(treedef.unflatten([plan.treedef.unflatten(plan.rows) for plan in parts])),
            tuple(dict.fromkeys(problem for plan in parts for problem in plan.problems)),
            tuple(dict.fromkeys(rule for plan in parts for rule in plan.rules)),
        )

    @classmethod
    def replicated_scalar(cls, path: str, dtype: DTypeLike, mesh: DeviceMesh) -> LayoutPlan:
        """Return the plan of one replicated scalar, such as a step counter."""
        row = make_row(path, (), np.dtype(dtype), "counter", TensorLayout((), mesh), "counter")
        return cls(mesh, (row,), jax.tree.structure(0))

    def prefixed(self, prefix: str) -> LayoutPlan:
        """Return this plan with `prefix` before every path."""
        rows = [dataclasses.replace(row, path=f"{prefix}/{row.path}", aliases=(), keras_path=None) for row in self.rows]
        return LayoutPlan(self.mesh, tuple(rows), self.treedef, self.problems, self.rules)

    def check_tree(self, tree: PyTree, what: str) -> None:
        """Compare `tree` with the planned tree.

        Raises:
            LayoutError: structure or a shape differs; names the first array that differs.
        """
        planned, given = leaf_paths(self.treedef.unflatten(self.rows)), leaf_paths(tree)
        if given != planned:
            missing = [path for path in planned if path not in given]
            extra = [path for path in given if path not in planned]
            raise LayoutError(
                f"{what} must have the structure that was planned",
                given=f"{len(given)} arrays; not planned: {extra or 'none'}"
                + ("" if missing or extra else f"; in the order {given}"),
                expected=f"{len(planned)} arrays; missing: {missing or 'none'}"
                + ("" if missing or extra else f"; in the order {planned}"),
                fix="plan the tree you have: distribution.plan(jax.eval_shape(...))",
            )
        for row, leaf in zip(self.rows, jax.tree.leaves(tree), strict=True):
            shape, dtype = shape_and_dtype(leaf, row.path)
            if shape != row.shape or dtype != row.dtype:
                summary = f"{row.path!r} in {what} must have the planned shape {row.shape} and dtype {row.dtype}"
                fix = "plan the tree you have: distribution.plan(jax.eval_shape(...))"
                raise LayoutError(summary, given=f"shape {shape}, dtype {dtype}", fix=fix)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values that JSON can hold."""
        return {
            "mesh": {
                "shape": list(self.mesh.shape),
                "axis_names": list(self.mesh.axis_names),
                "devices": [str(device) for device in self.mesh.devices.flatten()],
            },
            "rows": [
                {
                    "path": row.path,
                    "shape": list(row.shape),
                    "dtype": str(row.dtype),
                    "role": row.role,
                    "axes": [list(axis) if isinstance(axis, tuple) else axis for axis in row.axes],
                    "rule": row.rule,
                    "nbytes": row.nbytes,
                    "nbytes_per_device": row.nbytes_per_device,
                    **({} if row.memory_kind is None else {"memory_kind": row.memory_kind}),
                }
                for row in self.rows
            ],
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "nbytes": self.nbytes,
            "nbytes_per_device": self.nbytes_per_device,
        }

    def _repr_html_(self) -> str:
        return html_tables.fragment(
            html_tables.paragraph(f"Layout of {len(self.rows)} arrays on mesh {self.mesh.describe()}"),
            layout_html(self.rows),
            *(html_tables.paragraph(f"warning: {problem.summary}: {problem.fix}") for problem in self.problems),
        )

    def _unknown(self, path: object) -> UnknownPathError:
        paths = [row.path for row in self.rows]
        near = difflib.get_close_matches(path, paths, n=3) if isinstance(path, str) else []
        summary = f"the plan has no array {shorten(path)}{did_you_mean(path, paths) if isinstance(path, str) else ''}"
        fix = f"name one of {len(paths)} paths, such as {near or paths[:3]}; print(plan) lists them"
        return UnknownPathError(summary, given=shorten(path), fix=fix)

    def _follower(self, parameter: Row | None, leaf: ArrayLike | jax.ShapeDtypeStruct, path: str, role: Role) -> Row:
        shape, dtype = shape_and_dtype(leaf, path)
        if parameter is None:
            return make_row(path, shape, dtype, role, TensorLayout.replicated(len(shape), self.mesh), "no parameter")
        axes, rule = (parameter.slot_axes, parameter.slot_rule) if role == "slot" else (parameter.axes, None)
        found = follower_axes(shape, parameter.shape, axes, path.removesuffix(parameter.path))
        layout = TensorLayout(found or (None,) * len(shape), self.mesh)
        if found is None:
            rule = f"replicated: its shape does not show the dims of {parameter.path}"
        elif found and check_layout(path, shape, layout, self.mesh):
            layout = TensorLayout((*found[:-1], None), self.mesh)
            rule = f"follows {parameter.path}, whose axes do not divide the blocks of the last dim"
        else:
            rule = f"follows {parameter.path}" + (f", {rule}" if rule else "")
        return make_row(path, shape, dtype, role, layout, rule)


def plan_variables(
    mesh: DeviceMesh,
    specs: Sequence[VariableSpec],
    layouts: Sequence[tuple[TensorLayout, TensorLayout]],
    treedef: PyTreeDef,
    problems: Sequence[Problem],
    rules: Sequence[tuple[str, tuple[Axis, ...]]],
    gathered: tuple[str, ...] = (),
) -> LayoutPlan:
    """Return the plan with the `(layout, slot layout)` of each of `specs`; parameters are `gathered` over some axes."""
    rows = [
        dataclasses.replace(
            make_row(spec.path, spec.shape, spec.dtype, spec.role, layout, layout.reason, slot_layout),
            compute_axes=layout.without(gathered if spec.role == "parameter" else (), spec.expert_dim).axes,
            aliases=spec.aliases,
            keras_path=spec.keras_path,
        )
        for spec, (layout, slot_layout) in zip(specs, layouts, strict=True)
    ]
    return LayoutPlan(mesh, tuple(rows), treedef, tuple(problems), tuple(rules))


def make_row(
    path: str,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    role: Role,
    layout: TensorLayout,
    rule: str | None,
    slot_layout: TensorLayout | None = None,
) -> Row:
    """Return the row of an array with `layout`."""
    slot_layout = slot_layout or layout
    itemsize = jax_internals.itemsize(dtype)
    shard = layout.backend_layout.shard_shape(shape)
    return Row(
        path=path,
        shape=shape,
        dtype=dtype,
        role=role,
        axes=layout.axes,
        rule=rule,
        nbytes=int(np.prod(shape, dtype=np.int64)) * itemsize,
        nbytes_per_device=int(np.prod(shard, dtype=np.int64)) * itemsize,
        slot_axes=slot_layout.axes,
        compute_axes=layout.axes,
        slot_rule=slot_layout.reason if slot_layout.axes != layout.axes else None,
    )
