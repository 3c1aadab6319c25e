"""Arrays with layouts: moved from one layout to another, computed where they are to lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.arguments import argument_error
from keras_dist._support.array_operators import Operators, native, value_of
from keras_dist._support.integer_checks import check_fits
from keras_dist._unstable import jax_internals, jaxprs
from keras_dist._unstable.jax_internals import in_mesh, is_tracing, mesh_of_context
from keras_dist._unstable.xla_workarounds import shard_alike
from keras_dist.distribution import DeviceMesh, LayoutPlan, TensorLayout, distribute_tensor, process_count
from keras_dist.distribution.devices import device_name
from keras_dist.distribution.lint import check_layout as problems_of
from keras_dist.distribution.lint import report
from keras_dist.distribution.mesh import check_mesh
from keras_dist.distribution.plan import make_row
from keras_dist.dtensor.layout import Layout, Mesh, array_of, is_dtensor, layout_of, mesh_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# JAX's own types are unknown in part
from keras_dist.errors import LayoutError, MeshError, shorten, with_type


def copy_to_mesh(
    tensor: Any, layout: TensorLayout | None = None, source_layout: TensorLayout | None = None
) -> jax.Array:
    """Put an array on a mesh. In a job of several processes, all give the same array.

    Args:
        tensor: an array of numpy, JAX or another library, or a variable; it may lie on another mesh.
        layout: where its dims are to lie; by default it is replicated on the default mesh.
        source_layout: ignored, as in DTensor.

    Raises:
        LayoutError: the layout does not fit the array, or none is given, and there is no default mesh.
        DataError: an integer does not fit into those of JAX.

    Example:
        >>> import numpy as np
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> dtensor.copy_to_mesh(np.zeros((16, 4)), dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)).shape
        (16, 4)

    Differs from DTensor: any layout, not only a replicated one.

    Source: `tf.experimental.dtensor.copy_to_mesh`.
    """
    del source_layout
    tensor = as_array(tensor, "tensor")
    if layout is None:
        mesh = get_default_mesh()
        if mesh is None:
            fix = "give a layout, or call it inside of `with default_mesh(mesh):`"
            raise argument_error("layout", layout, "a Layout without a default mesh", fix=fix, error=LayoutError)
        layout = Layout.replicated(mesh, np.ndim(tensor))
    return _placed(tensor, checked_layout(layout))


def relayout(tensor: Any, layout: TensorLayout, name: str | None = None) -> jax.Array:
    """Change the layout of an array on its mesh. An array without a layout is put on the mesh.

    Args:
        tensor: the array; inside `jax.jit`, a traced value.
        layout: where its dims are to lie.
        name: ignored.

    Returns:
        The array with this layout; `tensor` itself if it has it.

    Raises:
        LayoutError: the layout does not fit the array, or is on another mesh.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("x", 2), ("y", 4)])
        >>> array = dtensor.relayout(jnp.ones((8, 8)), dtensor.Layout(["x", "y"], mesh))
        >>> dtensor.fetch_layout(dtensor.relayout(array, dtensor.Layout(["y", "x"], mesh))).sharding_specs
        ['y', 'x']

    Differs from DTensor: from any layout to any other.

    Source: `tf.experimental.dtensor.relayout`.
    """
    del name
    tensor, layout = as_array(tensor, "tensor"), checked_layout(layout)
    if is_dtensor(tensor) and fetch_layout(tensor).mesh != layout.mesh:
        given = f"an array on {shown(fetch_layout(tensor).mesh)}, and a layout on {shown(layout.mesh)}"
        fix = "copy_to_mesh(tensor, layout), which goes from one mesh to another"
        raise LayoutError("relayout cannot move an array to another mesh", given=given, fix=fix)
    return _placed(tensor, layout)


def relayout_like(tensor: Any, layout_tensor: Any, name: str | None = None) -> jax.Array:
    """Change the layout of an array to that of another one.

    Args:
        tensor: the array; inside `jax.jit`, a traced value.
        layout_tensor: an array with a layout and as many dims; inside `jax.jit` also a traced value of the same shape,
            whose layout XLA chooses for both (with JAX from 0.12 on, unless that of `tensor` is decided elsewhere).
        name: ignored.

    Raises:
        LayoutError: `layout_tensor` has no layout, or it does not fit; or its shape differs, and it is traced.

    Source: `tf.experimental.dtensor.relayout_like`.
    """
    array = array_of(layout_tensor)
    if not jax_internals.is_traced(array):
        return relayout(tensor, fetch_layout(layout_tensor), name)
    tensor = jnp.asarray(as_array(tensor, "tensor"))
    if tensor.shape != array.shape:
        summary = "relayout_like needs two arrays of one shape inside of a compiled function"
        fix = "relayout(tensor, layout) with a layout that was fetched before the call"
        raise LayoutError(summary, given=f"shapes {tensor.shape} and {array.shape}", fix=fix)
    return shard_alike(tensor, array)


def call_with_layout(fn: Callable[..., Any], layout: TensorLayout | None, *args: Any, **kwargs: Any) -> Any:
    """Call a function so that what it returns is computed where it is to lie: no device holds more than its shard.

    Args:
        fn: a function of arrays and other values, such as `jnp.zeros` or `jax.random.uniform`.
        layout: where the dims of what it returns lie; None for a plain call.
        args: its arguments; arrays among them, and in dicts, lists and tuples, are traced.
        kwargs: those by name.

    Returns:
        What `jax.jit` of the function returns, bit for bit, whatever the layout; inside of a compiled function, what
        `fn` returns, with this layout. (Called operation by operation, a sum of products is rounded once more.)

    Raises:
        LayoutError: the layout does not fit what the function returns.

    Example:
        >>> import jax
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> layout = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
        >>> w = dtensor.call_with_layout(jax.random.uniform, layout, jax.random.key(0), shape=(784, 700))
        >>> dtensor.unpack(w)[0].shape
        (784, 175)

    Source: `tf.experimental.dtensor.call_with_layout`.
    """
    if layout is None:
        return fn(*args, **kwargs)
    layout = checked_layout(layout)
    leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Operators))
    leaves = [value_of(leaf) for leaf in leaves]
    if is_tracing():
        args, kwargs = treedef.unflatten(leaves)
        return jax.tree.map(lambda value: relayout(value, layout), fn(*args, **kwargs))
    are_arrays = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]

    def call(arrays: list[jax.Array]) -> Any:
        given = iter(arrays)
        args, kwargs = treedef.unflatten(
            [next(given) if is_array else leaf for is_array, leaf in zip(are_arrays, leaves, strict=True)]
        )
        return fn(*args, **kwargs)

    mesh = layout.mesh
    arrays = [_operand(leaf, mesh) for is_array, leaf in zip(are_arrays, leaves, strict=True) if is_array]
    with default_mesh(mesh):
        closed, shapes = jax.make_jaxpr(call, return_shape=True)(arrays)  # once: who draws numbers draws them once
    results, structure = jax.tree.flatten(shapes)
    for result in results:
        report(problems_of("the result", result.shape, layout, mesh, None), [], mesh, strict=True)
    rows = tuple(make_row("result", result.shape, result.dtype, "parameter", layout, None) for result in results)
    plan = LayoutPlan(mesh, rows, jax.tree.structure(results))
    return structure.unflatten(plan.init(jaxprs.function_of_jaxpr(closed), *arrays))


@contextlib.contextmanager
def default_mesh(mesh: DeviceMesh) -> Iterator[None]:
    """Make a mesh the default one inside of a `with` block.

    It is `jax.set_mesh`: arrays that are made inside from nothing, as by `jnp.zeros`, are replicated on the mesh;
    `jax.lax.with_sharding_constraint` takes bare `PartitionSpec`s. `copy_to_mesh` and `DVariable` without a layout
    replicate on it. What is computed from arrays of another mesh stays there.

    Args:
        mesh: the mesh.

    Raises:
        MeshError: it is none.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> with dtensor.default_mesh(mesh):
        ...     zeros = jnp.zeros((4, 4))
        >>> dtensor.fetch_layout(zeros) == dtensor.Layout.replicated(mesh, 2)
        True

    Source: `tf.experimental.dtensor.default_mesh`, `jax.set_mesh`.
    """
    with in_mesh(check_mesh(mesh, MeshError).backend_mesh):
        yield


def run_on(mesh: DeviceMesh) -> contextlib.AbstractContextManager[None]:
    """Return `default_mesh(mesh)`, whose older name it is.

    Source: `tf.experimental.dtensor.run_on`.
    """
    return default_mesh(mesh)


def get_default_mesh() -> Mesh | None:
    """Return the mesh that `default_mesh` or `jax.set_mesh` has set; None without.

    Source: `tf.experimental.dtensor.get_default_mesh`.
    """
    mesh = mesh_of_context()
    return None if mesh is None else mesh_of(mesh)


def fetch_layout(tensor: Any) -> Layout:
    """Return the layout of an array, or of a variable: of a model, an optimizer, or a `DVariable`.

    Args:
        tensor: the array; of a variable also inside of a compiled function.

    Raises:
        LayoutError: it lies on no mesh, or is traced.

    Source: `tf.experimental.dtensor.fetch_layout`.
    """
    array = array_of(tensor)
    if is_dtensor(array):
        return layout_of(array)
    is_traced = jax_internals.is_traced(array)
    raise LayoutError(
        "a traced array has no layout yet" if is_traced else "an array without a mesh has no layout",
        given=with_type(tensor),
        fix="fetch the layout before the call, or set one: relayout(tensor, layout)"
        if is_traced
        else "put it on a mesh first: copy_to_mesh(tensor, layout)",
    )


def check_layout(tensor: Any, layout: TensorLayout) -> None:
    """Check that an array has a layout.

    Args:
        tensor: the array, or a variable.
        layout: the layout.

    Raises:
        LayoutError: it has another one, or none.

    Source: `tf.experimental.dtensor.check_layout`.
    """
    found, layout = fetch_layout(tensor), checked_layout(layout)
    if found != layout:
        raise LayoutError(
            "the layout of the array is another one",
            given=f"{found.sharding_specs} on {shown(found.mesh)}",
            expected=f"{layout.sharding_specs} on {shown(layout.mesh)}",
            fix="relayout(tensor, layout), or copy_to_mesh(tensor, layout) from another mesh",
        )


def checked_layout(layout: Any) -> Layout:
    """Return what stands for a layout on a mesh as a `Layout`."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, TensorLayout):
        return Layout.from_tensor_layout(layout)
    raise argument_error("layout", layout, "a Layout, such as Layout(['batch'], mesh)", error=LayoutError)


def as_array(value: Any, name: str) -> Any:
    """Return what stands for an array as an array of JAX, or one of numpy that belongs to nobody else."""
    value = value_of(value)
    if isinstance(value, nnx.Variable):
        value = value.get_value()
    return value if isinstance(value, jax.Array) else host_array(np.array(value), name)


def host_array(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array in the byte order of this machine and an element type of JAX.

    Raises:
        LayoutError: it holds no numbers.
        DataError: an integer does not fit into those of JAX.
    """
    if array.dtype != np.bool_ and not jnp.issubdtype(array.dtype, jnp.number):
        raise argument_error(name, array, "an array of numbers", error=LayoutError)
    check_fits(array, name)
    return native(array).astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _placed(tensor: Any, layout: Layout) -> jax.Array:
    sharding = layout.backend_layout
    if isinstance(tensor, jax.Array) and not jax_internals.is_traced(tensor):
        # between the devices of this process and those of others JAX copies nothing
        is_known = tensor.is_fully_addressable or tensor.is_fully_replicated
        if tensor.is_fully_addressable != sharding.is_fully_addressable and is_known:
            tensor = np.asarray(tensor)
        elif sharding.is_fully_addressable and not is_known:
            summary = "an array that other processes hold parts of cannot be copied to devices of this one"
            raise not_addressable(summary, layout_of(tensor), "tensor")
    return distribute_tensor(tensor, layout)


def _operand(leaf: jax.Array | np.ndarray, mesh: Mesh) -> jax.Array | np.ndarray:
    """An array that a program on the mesh can take."""
    if not isinstance(leaf, jax.Array) or not leaf.committed or (is_dtensor(leaf) and fetch_layout(leaf).mesh == mesh):
        return leaf
    return copy_to_mesh(leaf, Layout.replicated(mesh, leaf.ndim))


def shown(mesh: DeviceMesh) -> str:
    """How errors tell meshes apart."""
    return f"mesh {mesh.describe()} of {shorten(list(map(device_name, mesh.backend_mesh.devices.flat)))}"


def not_addressable(summary: str, layout: Layout, name: str) -> LayoutError:
    """Return the error for an array of which this process has only a part."""
    given = f"layout {layout.sharding_specs} over {process_count()} processes"
    fix = (
        f"in all processes relayout({name}, Layout.replicated(mesh, rank)) first; or unpack({name}) for own components"
    )
    return LayoutError(summary, given=given, fix=fix)
