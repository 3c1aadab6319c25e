"""Calls of JAX on jaxprs and programs that differ between versions."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.core
import jax.extend.core
import numpy as np
from jax._src import core, source_info_util
from jax.interpreters import mlir, partial_eval

_KEPT_PROGRAMS = 64
_kept: collections.OrderedDict[Hashable, jax.stages.Compiled] = collections.OrderedDict()
_lock = threading.Lock()


def function_of_jaxpr(closed_jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a function of flat inputs that evaluates `closed_jaxpr` to flat outputs."""
    return jax.extend.core.jaxpr_as_fun(closed_jaxpr)


def is_literal(value: Any) -> bool:
    """Whether an input of an equation of a jaxpr is a literal."""
    return isinstance(value, jax.extend.core.Literal)


def evaluate(equation: Any, values: Sequence[Any], **params: Any) -> list[Any]:
    """Evaluate an equation of a jaxpr, with some parameters replaced."""
    bound = equation.primitive.get_bind_params({**equation.params, **params})
    with in_context_of(equation):
        outputs = equation.primitive.bind(*values, **bound)
    return outputs if equation.primitive.multiple_results else [outputs]


def with_calls_inlined(
    closed_jaxpr: Any, instead: Mapping[str, Callable[[Any, list[Any]], list[Any]]] | None = None
) -> Any:
    """Return a jaxpr with the equations of jitted functions in the place of their calls; `instead` evaluates others."""

    def run(closed: Any, inputs: Sequence[Any]) -> list[Any]:
        known = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *inputs), strict=True))

        def read(var: Any) -> Any:
            return var.val if is_literal(var) else known[var]

        for equation in closed.jaxpr.eqns:
            values, is_call = list(map(read, equation.invars)), equation.primitive.name in ("jit", "pjit")
            own = (instead or {}).get(equation.primitive.name, evaluate)
            results = run(equation.params["jaxpr"], values) if is_call else own(equation, values)
            known |= zip(equation.outvars, results, strict=True)
        return list(map(read, closed.jaxpr.outvars))

    return jax.make_jaxpr(lambda *inputs: run(closed_jaxpr, inputs))(*map(shape_of, closed_jaxpr.in_avals))


@contextlib.contextmanager
def in_context_of(equation: Any) -> Iterator[None]:
    """Give operations the name scope and the source line of an equation of a jaxpr."""
    scope = source_info_util.current_name_stack() + equation.source_info.name_stack
    with source_info_util.user_context(equation.source_info.traceback, name_stack=scope), equation.ctx.manager:
        yield


def has_jaxprs(equation: Any) -> bool:
    """Whether parameters of an equation hold jaxprs."""
    return any(True for _ in core.jaxprs_in_params(equation.params))


def parts_of_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return the jaxpr and the constants of a jaxpr, closed or not."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def parts_of_scan(equation: Any) -> tuple[int, int]:
    """Return the number of constants of a scan, and of constants and carried values; its other inputs are sliced."""
    params = equation.params
    if "ft_in" in params:  # from JAX 0.12 on
        constants, carried, _ = params["ft_in"].unpack()
        return len(constants), len(constants) + len(carried)
    return params["num_consts"], params["num_consts"] + params["num_carry"]


def shape_of(value: Any) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and weak type of an array or an abstract value."""
    aval = value if isinstance(value, core.ShapedArray) else jax.typeof(value)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def lower_with(
    program: Any,
    arguments: Sequence[Any],
    instead: Callable[[list[Any]], Mapping[Any, Callable[..., Any]]],
    platform: str | None = None,
    look: Callable[[Any], None] = lambda jaxpr: None,
    weights: Collection[tuple[Any, ...]] = (),
) -> jax.stages.Lowered:
    """Lower a jitted program for these arguments or shapes, with some primitives computed by other functions.

    Args:
        program: the result of `jax.jit`.
        arguments: its arguments, or their shapes.
        instead: takes the layouts to which the program constrains arrays; returns functions that replace `bind` of
            primitives, and may call it.
        platform: the platform to lower for; by default the platform of the devices.
        look: called with the jaxpr.
        weights: shapes and layouts of weights; `instead` does not get the constraints to these.
    """

    def rule(function: Callable[..., Any]) -> Callable[..., Any]:
        def lower(context: Any, *operands: Any, **params: Any) -> Any:
            inner = context.module_context.replace(lowering_parameters=mlir.LoweringParameters())
            lowered = mlir.lower_fun(functools.partial(function, **params), multiple_results=False)
            return lowered(context.replace(module_context=inner), *operands)

        return lower

    traced = program.trace(*arguments)
    look(traced.jaxpr.jaxpr)
    constraints = _constraints_in(traced.jaxpr.jaxpr)
    functions = instead([axes for shape, axes in constraints if (shape, axes) not in weights])
    rules: Any = tuple((primitive, rule(function)) for primitive, function in functions.items())
    parameters = mlir.LoweringParameters(override_lowering_rules=rules)
    platforms = None if platform is None else (platform,)
    return traced.lower(lowering_platforms=platforms, _private_parameters=parameters)


def arguments_kept(lowered: jax.stages.Lowered) -> list[int]:
    """Return the indices of the flat arguments that a lowered program uses; it drops the others."""
    return sorted(lowered._lowering.compile_args["kept_var_idx"])  # pyright: ignore[reportAttributeAccessIssue]


def _constraints_in(jaxpr: Any) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Yield shapes and layouts to which a jaxpr, and jaxprs inside it, constrain arrays: mesh axes of each dim."""
    for equation in jaxpr.eqns:
        sharding = equation.params.get("sharding")
        if equation.primitive.name == "sharding_constraint" and isinstance(sharding, jax.sharding.NamedSharding):
            spec = [None if axis is jax.sharding.PartitionSpec.UNCONSTRAINED else axis for axis in sharding.spec]
            shape = equation.outvars[0].aval.shape
            yield shape, (*spec, *[None] * (len(shape) - len(spec)))
        for inner in core.jaxprs_in_params(equation.params):
            yield from _constraints_in(inner)


def primitives_in(jaxpr: Any) -> set[str]:
    """Return the names of the operations of a jaxpr, and of jaxprs inside it."""
    found: set[str] = set()
    for equation in parts_of_jaxpr(jaxpr)[0].eqns:
        found |= {equation.primitive.name}.union(*map(primitives_in, core.jaxprs_in_params(equation.params)))
    return found


def splits_of_inputs(jaxpr: Any) -> dict[int, dict[int, tuple[str, ...]]]:
    """Return, by input of a jaxpr and dim, the mesh axes over which a `shard_map` splits it.

    Inputs are followed through calls, loops, casts and transpositions.
    """
    found: dict[int, dict[int, tuple[str, ...]]] = {}

    def visit(jaxpr: Any, inputs: dict[Any, tuple[int, tuple[int, ...]]]) -> None:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            given = [None if is_literal(value) else inputs.get(value) for value in equation.invars]
            if not any(given):
                continue
            if name == "shard_map":
                for one, spec in zip(given, params.get("in_specs", ()), strict=False):
                    for dim, axes in enumerate(spec) if one is not None else ():
                        if axes:
                            index, dims = cast("tuple[int, tuple[int, ...]]", one)
                            found.setdefault(index, {})[dims[dim]] = axes if isinstance(axes, tuple) else (axes,)
            elif name in ("convert_element_type", "sharding_constraint", "stop_gradient", "copy", "name"):
                inputs[equation.outvars[0]] = cast("Any", given[0])
            elif name == "transpose" and given[0] is not None:
                index, dims = given[0]
                inputs[equation.outvars[0]] = index, tuple(dims[dim] for dim in params["permutation"])
            if name == "shard_map":
                continue
            for inner in [params["body_jaxpr"].jaxpr] if name == "while" else core.jaxprs_in_params(params):
                # without the number of the branch of a `cond`, and what the condition of a loop reads
                passed = given[len(given) - len(inner.invars) :]
                if name == "scan":
                    carried = parts_of_scan(equation)[1]
                    passed = [one and (one[0], one[1][at >= carried :]) for at, one in enumerate(passed)]
                if len(passed) == len(inner.invars):
                    visit(inner, {var: one for var, one in zip(inner.invars, passed, strict=True) if one is not None})

    visit(jaxpr, {var: (index, tuple(range(len(var.aval.shape)))) for index, var in enumerate(jaxpr.invars)})
    return found


def compile_together(
    programs: Iterable[jax.stages.Lowered], options: Sequence[Mapping[str, Any]] | None = None
) -> list[jax.stages.Compiled]:
    """Compile programs, each with its options, in threads while the next one is lowered: XLA needs no lock of Python.

    A program that equals an earlier one is not compiled again, so that models made in a loop share their programs.
    """

    def compiled(program: jax.stages.Lowered, options: Mapping[str, Any]) -> jax.stages.Compiled:
        key = _key_of(program, options)
        with _lock:
            found = _kept.get(key)
        found = found or program.compile(compiler_options=dict(options))
        if key is not None:
            with _lock:
                _kept[key] = found
                _kept.move_to_end(key)
                while len(_kept) > _KEPT_PROGRAMS:
                    _kept.popitem(last=False)
        return found

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compiled, programs, options or itertools.repeat({})))


def _key_of(program: jax.stages.Lowered, options: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for programs that compile to the same, None where that cannot be known."""
    lowering: Any = program._lowering  # pyright: ignore[reportAttributeAccessIssue]
    args, devices = lowering.compile_args, lowering._device_list
    unshared = ("host_callbacks", "keepalive", "ordered_effects", "unordered_effects")
    if lowering.const_args or any(map(args.get, unshared)) or len({device.process_index for device in devices}) != 1:
        return None  # they refer to objects and arrays of this program, or belong to a job, which compiles all
    layouts = [tuple(args[name]) for name in ("in_shardings", "out_shardings", "in_layouts", "out_layouts")]
    taken = [  # by the text without arguments that are not used
        (info.shape, info.dtype, info._aval.weak_type, info.donated) for info in jax.tree.leaves(program.args_info)
    ]
    trees = program.in_tree, program.out_tree, tuple(taken), tuple(arguments_kept(program))
    settings = tuple(sorted(options.items())), tuple(sorted(jax.config.values.items()))
    key = (*layouts, *trees, *settings, tuple(devices), args["committed"], args["context_mesh"])
    with contextlib.suppress(TypeError):
        hash(key)
        return hashlib.sha256(program.as_text().encode()).digest(), key
    return None


def with_sums(closed_jaxpr: Any) -> Any:
    """Return `closed_jaxpr` with sums of integer literals, such as Flax's counts, computed."""
    jaxpr = closed_jaxpr.jaxpr
    sums: dict[Any, Any] = {}
    equations = []

    def known(value: Any) -> Any:
        return value if is_literal(value) else sums.get(value, value)

    for equation in jaxpr.eqns:
        inputs = [known(value) for value in equation.invars]
        aval: Any = equation.outvars[0].aval if equation.outvars else None
        if equation.primitive is jax.lax.add_p and all(map(is_literal, inputs)) and _is_integer(aval):
            total = np.add(*(np.asarray(value.val, aval.dtype) for value in inputs), dtype=aval.dtype)
            sums[equation.outvars[0]] = jax.extend.core.Literal(total, aval)
        else:
            equations.append(equation.replace(invars=inputs))
    return closed_jaxpr.replace(jaxpr=jaxpr.replace(eqns=equations, outvars=[known(value) for value in jaxpr.outvars]))


def _is_integer(aval: Any) -> bool:
    return aval.shape == () and jax.numpy.issubdtype(aval.dtype, np.integer)


def dead_code_eliminated(closed_jaxpr: Any, wanted: Sequence[int]) -> Any:
    """Return `closed_jaxpr` reduced to the outputs with the indices `wanted`; all inputs are kept."""
    jaxpr = closed_jaxpr.jaxpr
    keep = [index in wanted for index in range(len(jaxpr.outvars))]
    reduced, _ = partial_eval.dce_jaxpr(jaxpr, keep, instantiate=True)
    return closed_jaxpr.replace(jaxpr=reduced)
