"""Functions of arrays with layouts: placement, resharding, sharded computation, and their components on devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
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
from keras_dist.errors import LayoutError, MeshError, shorten, with_type


def copy_to_mesh(
    tensor: Any, layout: TensorLayout | None = None, source_layout: TensorLayout | None = None
) -> jax.Array:
    """Place an array on a mesh. In a job of several processes, all pass the same array.

    Args:
        tensor: an array of NumPy, JAX or another library, or a variable; it may be on another mesh.
        layout: layout of the result. By default the array is replicated on the default mesh.
        source_layout: ignored, as in DTensor.

    Raises:
        LayoutError: the layout does not fit the array; or there is neither a layout nor a default mesh.
        DataError: an integer does not fit into JAX's integers.

    Example:
        >>> import numpy as np
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> dtensor.copy_to_mesh(np.zeros((16, 4)), dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)).shape
        (16, 4)

    Differs from DTensor: takes any layout, not only a replicated one.
    """
    tensor = as_array(tensor, "tensor")
    if layout is None:
        mesh = get_default_mesh()
        if mesh is None:
            fix = "give a layout, or call it inside `with default_mesh(mesh):`"
            raise argument_error("layout", layout, "a Layout without a default mesh", fix=fix, error=LayoutError)
        layout = Layout.replicated(mesh, np.ndim(tensor))
    return _placed(tensor, checked_layout(layout))


def relayout(tensor: Any, layout: TensorLayout, name: str | None = None) -> jax.Array:
    """Reshard an array on its mesh. An array without a mesh is placed on the mesh of `layout`.

    Args:
        tensor: the array; inside `jax.jit`, a traced value.
        layout: layout of the result.
        name: ignored.

    Returns:
        The array with this layout; `tensor` itself if it has the layout already.

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
    """
    tensor, layout = as_array(tensor, "tensor"), checked_layout(layout)
    if is_dtensor(tensor) and fetch_layout(tensor).mesh != layout.mesh:
        given = f"an array on {shown(fetch_layout(tensor).mesh)}, and a layout on {shown(layout.mesh)}"
        fix = "copy_to_mesh(tensor, layout)"
        raise LayoutError("relayout cannot move an array to another mesh", given=given, fix=fix)
    return _placed(tensor, layout)


def relayout_like(tensor: Any, layout_tensor: Any, name: str | None = None) -> jax.Array:
    """Reshard an array to the layout of another array.

    Args:
        tensor: the array; inside `jax.jit`, a traced value.
        layout_tensor: an array with a layout and the same number of dims. Inside `jax.jit` it may be a traced value of
            the same shape; XLA then chooses one layout for both.
        name: ignored.

    Raises:
        LayoutError: `layout_tensor` has no layout, the layout does not fit, or the shapes of traced values differ.
    """
    array = array_of(layout_tensor)
    if not jax_internals.is_traced(array):
        return relayout(tensor, fetch_layout(layout_tensor), name)
    tensor = jnp.asarray(as_array(tensor, "tensor"))
    if tensor.shape != array.shape:
        summary = "relayout_like needs two arrays of one shape inside a compiled function"
        fix = "relayout(tensor, layout) with a layout that was fetched before the call"
        raise LayoutError(summary, given=f"shapes {tensor.shape} and {array.shape}", fix=fix)
    return shard_alike(tensor, array)


def call_with_layout(fn: Callable[..., Any], layout: TensorLayout | None, *args: Any, **kwargs: Any) -> Any:
    """Call a function and compute its results in shards: no device holds more than its shard.

    Args:
        fn: a function of arrays and other values, such as `jnp.zeros` or `jax.random.uniform`.
        layout: layout of all results; None for a plain call.
        args: positional arguments; arrays in them, also in dicts, lists and tuples, are traced.
        kwargs: keyword arguments.

    Returns:
        The result of `jax.jit(fn)`, bit for bit, for any layout; inside a compiled function, the result of `fn`, with
        this layout.

    Raises:
        LayoutError: the layout does not fit a result.

    Example:
        >>> import jax
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> layout = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
        >>> w = dtensor.call_with_layout(jax.random.uniform, layout, jax.random.key(0), shape=(784, 700))
        >>> dtensor.unpack(w)[0].shape
        (784, 175)
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
        closed, shapes = jax.make_jaxpr(call, return_shape=True)(arrays)  # once, since `fn` may draw random numbers
    results, structure = jax.tree.flatten(shapes)
    for result in results:
        report(problems_of("the result", result.shape, layout, mesh, None), [], mesh, strict=True)
    rows = tuple(make_row("result", result.shape, result.dtype, "parameter", layout, None) for result in results)
    plan = LayoutPlan(mesh, rows, jax.tree.structure(results))
    return structure.unflatten(plan.init(jaxprs.function_of_jaxpr(closed), *arrays))


@contextlib.contextmanager
def default_mesh(mesh: DeviceMesh) -> Iterator[None]:
    """Set the default mesh inside a `with` block, by `jax.set_mesh`.

    `jnp.zeros` and the like return arrays that are replicated on the mesh; so do `copy_to_mesh` and `DVariable` without
    a layout. `jax.lax.with_sharding_constraint` takes bare `PartitionSpec`s. Results of arrays on another mesh stay on
    that mesh.

    Args:
        mesh: the mesh.

    Raises:
        MeshError: `mesh` is not a mesh.

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
    """Alias of `default_mesh`, an older name."""
    return default_mesh(mesh)


def get_default_mesh() -> Mesh | None:
    """Return the mesh that `default_mesh` or `jax.set_mesh` has set, or None."""
    mesh = mesh_of_context()
    return None if mesh is None else mesh_of(mesh)


def fetch_layout(tensor: Any) -> Layout:
    """Return the layout of an array, or of a variable of a model or optimizer, or of a `DVariable`.

    Args:
        tensor: the array or variable. Inside a compiled function only variables have layouts.

    Raises:
        LayoutError: the array is on no mesh, or is traced.
    """
    array = array_of(tensor)
    if is_dtensor(array):
        return layout_of(array)
    if jax_internals.is_traced(array):
        fix = "fetch the layout before the call, or set one: relayout(tensor, layout)"
        raise LayoutError("a traced array has no layout yet", given=with_type(tensor), fix=fix)
    fix = "place it on a mesh first: copy_to_mesh(tensor, layout)"
    raise LayoutError("an array without a mesh has no layout", given=with_type(tensor), fix=fix)


def check_layout(tensor: Any, layout: TensorLayout) -> None:
    """Check that an array has a layout.

    Args:
        tensor: the array, or a variable.
        layout: the layout.

    Raises:
        LayoutError: the array has another layout, or none.
    """
    found, layout = fetch_layout(tensor), checked_layout(layout)
    if found != layout:
        given, expected = (f"{each.sharding_specs} on {shown(each.mesh)}" for each in (found, layout))
        fix = "relayout(tensor, layout), or copy_to_mesh(tensor, layout) from another mesh"
        raise LayoutError("the array has another layout", given=given, expected=expected, fix=fix)


def checked_layout(layout: Any) -> Layout:
    """Return `layout` as a `Layout`; raise unless it is a layout with a mesh."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, TensorLayout):
        return Layout.from_tensor_layout(layout)
    raise argument_error("layout", layout, "a Layout, such as Layout(['batch'], mesh)", error=LayoutError)


def as_array(value: Any, name: str) -> Any:
    """Return an array or variable as a JAX array, anything else as a new NumPy array."""
    value = value_of(value)
    if isinstance(value, nnx.Variable):
        value = value.get_value()
    return value if isinstance(value, jax.Array) else host_array(np.array(value), name)


def host_array(array: np.ndarray, name: str) -> np.ndarray:
    """Return a NumPy array in the byte order of this machine and an element type of JAX."""
    if array.dtype != np.bool_ and not jnp.issubdtype(array.dtype, jnp.number):
        raise argument_error(name, array, "an array of numbers", error=LayoutError)
    check_fits(array, name)
    return native(array).astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _placed(tensor: Any, layout: Layout) -> jax.Array:
    sharding = layout.backend_layout
    if isinstance(tensor, jax.Array) and not jax_internals.is_traced(tensor):
        # JAX cannot copy between devices of this process and of others
        is_known = tensor.is_fully_addressable or tensor.is_fully_replicated
        if tensor.is_fully_addressable != sharding.is_fully_addressable and is_known:
            tensor = np.asarray(tensor)
        elif sharding.is_fully_addressable and not is_known:
            summary = "an array that other processes hold parts of cannot be copied to devices of this process"
            raise not_addressable(summary, layout_of(tensor), "tensor")
    return distribute_tensor(tensor, layout)


def _operand(leaf: jax.Array | np.ndarray, mesh: Mesh) -> jax.Array | np.ndarray:
    """Return an array as an operand of a program on the mesh."""
    if not isinstance(leaf, jax.Array) or not leaf.committed or (is_dtensor(leaf) and fetch_layout(leaf).mesh == mesh):
        return leaf
    return copy_to_mesh(leaf, Layout.replicated(mesh, leaf.ndim))


def shown(mesh: DeviceMesh) -> str:
    """Describe a mesh and its devices, for errors."""
    return f"mesh {mesh.describe()} of {shorten(list(map(device_name, mesh.backend_mesh.devices.flat)))}"


def not_addressable(summary: str, layout: Layout, name: str) -> LayoutError:
    """Return the error for an array of which this process has only a part."""
    fix = f"relayout({name}, Layout.replicated(mesh, rank)) in all processes first; or unpack({name}) for local shards"
    return LayoutError(summary, given=f"layout {layout.sharding_specs} over {process_count()} processes", fix=fix)


Offset = tuple[int, ...]
"""Index of a shard along each dim of the array."""


def pack(tensors: Sequence[Any], layout: TensorLayout) -> jax.Array:
    """Make one array of the components on the devices of this process. `unpack` is the inverse.

    Args:
        tensors: one component for each device of this process, in the order of `layout.mesh.local_device_locations()`,
            all of one shape and dtype. Devices with the same shard take the same component.
        layout: layout of the array. A dim over `n` shards is `n` times as large as the components' dim.

    Returns:
        The array. Inside `jax.jit`, the joined components, with this layout.

    Raises:
        LayoutError: the number of components is wrong; a component has another shape, dtype or rank than the others or
            the layout; or components on the host for one shard differ.
        DataError: an integer does not fit into JAX's integers.

    Example:
        >>> import numpy as np
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> x = np.arange(16)
        >>> packed = dtensor.pack(np.split(x, 8), dtensor.Layout(["batch"], mesh))
        >>> packed.shape, dtensor.unpack(packed)[3].tolist()
        ((16,), [6, 7])

    Differs from DTensor: works inside a compiled function, and compares the components of one shard.
    """
    layout = checked_layout(layout)
    components = _components(tensors, layout)
    places, offsets = _places(layout)
    shards: dict[Offset, int] = {}
    for number, offset in enumerate(offsets):
        earlier = shards.setdefault(offset, number)
        if not _is_same(components[earlier], components[number]):
            raise LayoutError(
                f"components {earlier} and {number} of pack are one shard, but differ",
                given=f"{shorten(components[earlier])} and {shorten(components[number])} for shard {offset}",
                fix="give both devices the same component, or shard a dim over the axis along which they differ",
            )
    if is_tracing():
        return distribute_tensor(_joined({offset: components[number] for offset, number in shards.items()}), layout)
    sizes = components[0].shape
    shape = tuple(size * count for size, count in zip(sizes, layout.shape, strict=True))
    if any(isinstance(component, jax.Array) for component in components):
        devices = layout.mesh.backend_mesh.devices.flat
        parts = jax.device_put(components, [devices[place] for place in places])
        return jax.make_array_from_single_device_arrays(shape, layout.backend_layout, parts)

    def component_at(index: Any) -> np.ndarray:
        starts = [dim.start or 0 for dim in index]
        return components[shards[tuple(start // max(size, 1) for start, size in zip(starts, sizes, strict=True))]]

    return jax.make_array_from_callback(shape, layout.backend_layout, component_at)  # faster than to each device


def unpack(tensor: Any) -> list[jax.Array]:
    """Return the components of an array on the devices of this process, in the order of the mesh.

    Args:
        tensor: an array with a layout, or a variable.

    Raises:
        LayoutError: the array has no layout, or is traced.
    """
    array = value_of(tensor)
    layout, array = fetch_layout(array), value_of(array)  # a copy, which no later step consumes
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    return [parts[device] for device in layout.mesh.backend_mesh.devices.flat if device in parts]


@functools.lru_cache(maxsize=64)
def _places(layout: Layout) -> tuple[list[int], list[Offset]]:
    """Return the positions of this process's devices in the mesh, and the shard of each."""
    places, offsets = layout.mesh.local_device_ids(), layout.offset_to_shard()
    return places, [offsets[place] for place in places]


def _components(tensors: Sequence[Any], layout: Layout) -> list[Any]:
    """Return the components as arrays, checked against each other and the layout."""
    count = layout.mesh.num_local_devices()
    if isinstance(tensors, str | dict) or not hasattr(tensors, "__len__") or not 0 < len(tensors) == count:
        given = f"{len(tensors)} components" if hasattr(tensors, "__len__") else shorten(tensors)
        given = f"{given} for the {count} local devices of mesh {layout.mesh.describe()}"
        fix = f"split the array in {layout.shape} along its dims, or copy_to_mesh(array, layout)"
        raise LayoutError("pack needs a component for each device of this process", given=given, fix=fix)
    if is_tracing() and count < layout.mesh.size:
        summary = "pack cannot join the components of several processes inside a compiled function"
        fix = "pack before the call, and pass the array to the function"
        raise LayoutError(summary, given=f"{count} of {layout.mesh.size} components", fix=fix)
    tensors = list(tensors)
    unique = {id(tensor): as_array(tensor, f"component {number} of pack") for number, tensor in enumerate(tensors)}
    components = [unique[id(tensor)] for tensor in tensors]
    first = components[0]
    for number, component in enumerate(components):
        name = f"component {number} of pack"
        if component.ndim != layout.rank:
            fix = f"a layout with {component.ndim} entries, or components with {layout.rank} dims"
            given = f"shape {component.shape} for layout {layout.sharding_specs}"
            raise LayoutError(f"{name} must have {layout.rank} dims", given=given, fix=fix)
        if isinstance(component, jax.Array) and is_dtensor(component) and len(component.sharding.device_set) > 1:
            given = f"an array on {shown(fetch_layout(component).mesh)}"
            fix = "relayout(array, layout) on the same mesh, copy_to_mesh(array, layout) from another one"
            raise LayoutError(f"{name} must be a NumPy array, or an array of one device", given=given, fix=fix)
        if (component.shape, component.dtype) != (first.shape, first.dtype):
            given = f"shape {component.shape}, dtype {component.dtype}"
            fix = f"split dims into parts of one size: they are cut in {layout.shape}"
            raise LayoutError(f"{name} must have shape {first.shape} and dtype {first.dtype}", given=given, fix=fix)
    return components


def _is_same(one: Any, other: Any) -> bool:
    """Whether two components are equal; arrays on devices are not compared."""
    if one is other or not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return True
    return np.array_equal(one, other, equal_nan=jnp.issubdtype(one.dtype, jnp.inexact))


def _joined(shards: dict[Offset, Any]) -> jax.Array:
    counts = [last + 1 for last in max(shards)]

    def nested(offset: Offset) -> Any:
        dim = len(offset)
        return shards[offset] if dim == len(counts) else [nested((*offset, index)) for index in range(counts[dim])]

    return jnp.block(nested(()))
