"""`FullySharded`: every variable is sharded (FSDP), also on top of rules (FSDP with tensor parallelism)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from keras_dist._support.arguments import check_int
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple, check_mesh
from keras_dist.distribution.model_layout_hints import AxisNames
from keras_dist.distribution.rule_based import RuleBased
from keras_dist.distribution.strategy import BatchDimName, register_strategy, resolve_axes
from keras_dist.distribution.variables import VariableSpec
from keras_dist.distribution.whole_weights import LARGE_NBYTES, nbytes_of, whole_weights
from keras_dist.errors import DistributionError, type_name

if TYPE_CHECKING:
    from keras_dist.config import FullyShardedConfig


@register_strategy("fully_sharded")
class FullySharded(RuleBased):
    """Every variable and its optimizer states are sharded over `axis`, along the largest dim that `axis` divides.

    Dims that are sharded by rules, or else by the model itself (see `ModelParallel`), keep their axes; another dim is
    sharded over `axis` (FSDP with tensor parallelism). Sharding metadata with axes of another mesh is overridden, which
    the plan reports.

    Weights of at least 1 MiB (or `min_size_bytes`, if that is more) without a dim that `axis` divides are whole on
    each device: a warning lists them with a remedy, and `strict` raises it.

    Compiled steps gather a parameter over `axis` in the operation that uses it, and scatter its gradient. The backward
    pass gathers it again, so that no gathered parameter is kept; in a loop over stacked blocks (`nnx.scan`,
    `jax.lax.scan`) each iteration gathers its own block. A stack is gathered as a whole, before the loop, if its
    largest divisible dim is the dim of the loop. XLA schedules the gathers of a step without loops; on CPUs all are
    first.

    Args:
        device_mesh: the devices.
        axis: the mesh axis, or axes, to shard over; by default the first.
        rules: a `LayoutMap` of rules that shard dims over other axes first; on the same mesh.
        batch_dim_name: the mesh axis, or axes, of the batch; by default `axis`.
        min_size_bytes: smaller variables are laid out by the rules alone.
        auto_shard_dataset, strict, axis_names, sequence_axis: as in `ModelParallel`.

    Raises:
        DistributionError: an axis does not exist, or the layout map has another mesh.

    Example:
        >>> import jax, keras_dist as kd
        >>> zero3 = kd.FullySharded(kd.DeviceMesh("data=8"))
        >>> zero3.plan({"kernel": jax.ShapeDtypeStruct((64, 128), "float32")}).row("kernel").axes
        (None, 'data')

    Source: Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO-3); `torch.distributed.fsdp`.
    """

    def __init__(
        self,
        device_mesh: DeviceMesh | None = None,
        axis: BatchDimName | None = None,
        rules: LayoutMap | None = None,
        batch_dim_name: BatchDimName | None = None,
        min_size_bytes: int = 0,
        auto_shard_dataset: bool = True,
        *,
        strict: bool = False,
        axis_names: AxisNames | None = None,
        sequence_axis: str | None = None,
    ) -> None:
        device_mesh = check_mesh(device_mesh, DistributionError)
        if isinstance(axis, LayoutMap):
            fix = "FullySharded(device_mesh, rules=rules)"
            raise DistributionError("`axis` must be a mesh axis", given="axis: a LayoutMap", fix=fix)
        first = device_mesh.axis_names[0]
        self.axis = resolve_axes("axis", first if axis is None else axis, device_mesh)
        example = 2**20
        self.min_size_bytes = check_int("min_size_bytes", min_size_bytes, 0, example=example, error=DistributionError)
        rules = _check_same_mesh(rules, device_mesh)
        batch = self.axis if batch_dim_name is None else batch_dim_name
        super().__init__(device_mesh, rules, batch, auto_shard_dataset, strict, axis_names, sequence_axis)

    @classmethod
    def from_config(cls, mesh: DeviceMesh, config: FullyShardedConfig) -> Self:
        """Return the distribution of a config file with `strategy = "fully_sharded"`."""
        rules = LayoutMap(mesh)
        for rule, axes in config.layout_axes().items():
            rules[rule] = axes
        options: dict[str, Any] = {"strict": config.strict, "sequence_axis": config.sequence_axis}
        return cls(mesh, config.axis, rules, config.batch_axis, min_size_bytes=config.min_size_bytes or 0, **options)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout by the rules, with the largest divisible unsharded dim sharded over `axis`.

        Raises:
            LayoutError: several rules match, or the model's own layout is invalid.
        """
        by_rule = self._decided(variable)
        if by_rule is not None and by_rule.device_mesh is None and self._is_for_another_mesh(variable):
            by_rule = None  # the plan reports it as overridden
        base = TensorLayout.replicated(len(variable.shape), self.device_mesh) if by_rule is None else by_rule
        if nbytes_of(variable) < self.min_size_bytes:
            return base
        follower = getattr(variable, "factor_of", None)
        if follower is not None and None not in follower[1]:  # scales of a quantized weight, which are read with it
            followed = self._following(variable, self.get_variable_layout)
            if followed is not None and self.axis in followed.axes:
                return followed
        sharded = base.shard_largest_dim(variable.shape, self.axis)
        if sharded is None:
            return base
        own = f"sharded over {self.axis!r}"
        return sharded.because(f"{base.reason}, {own}" if base.reason else own)

    def _check_whole(self, decided: Sequence[tuple[VariableSpec, tuple[TensorLayout, TensorLayout]]]) -> list[Problem]:
        axes, least = set(self.gathered_axes), max(LARGE_NBYTES, self.min_size_bytes)
        whole = [
            spec
            for spec, (layout, _) in decided
            if nbytes_of(spec) >= least and axes.isdisjoint(itertools.chain(*map(axis_tuple, layout.axes)))
        ]
        return whole_weights(whole, self.gathered_axes, self.device_mesh)

    @property
    def gathered_axes(self) -> tuple[str, ...]:
        """The axes that variables are sharded over."""
        return axis_tuple(self.axis)

    def _is_for_another_mesh(self, variable: Any) -> bool:
        """Return whether the sharding metadata of the variable, or of its parameter, has axes of another mesh."""
        owns = [getattr(one, "own", None) for one in (variable, *getattr(variable, "beside", ()))]
        return any(own.unknown_names(self.device_mesh, self.axis_names) for own in owns if own is not None)


def _check_same_mesh(rules: LayoutMap | None, mesh: DeviceMesh) -> LayoutMap:
    if rules is None:
        return LayoutMap(mesh)
    rules = LayoutMap.of(rules)
    if not isinstance(rules, LayoutMap) or rules.device_mesh != mesh:  # pyright: ignore[reportUnnecessaryIsInstance]
        summary = f"FullySharded: `rules` must be a LayoutMap on mesh {mesh.describe()}"
        given = f"rules={rules!r} of type {type_name(rules)}"
        raise DistributionError(summary, given=given, fix="LayoutMap(mesh) with the mesh that FullySharded gets")
    return rules
