"""`WeightDecay`: the weight decay of each variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from keras_dist._support import tree_paths
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.arguments import check_patterns
from keras_dist.optimizers.custom_loops import CustomLoops


class WeightDecay(CustomLoops):
    """Weight decay, with exclusions by variable, path or name."""

    weight_decay: float | None
    _excluded: tuple[Any, ...] = ()
    _excluded_names: tuple[str, ...] = ()
    _excluded_paths: frozenset[str] | None = None

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Exclude weights from weight decay, before the optimizer is used.

        Args:
            var_list: variables, or whole paths.
            var_names: regular expressions; a variable is excluded if one is found in its name, or for a pytree of
                arrays in its path.

        Raises:
            ModelError: the optimizer is already in use, or an entry is invalid.
        """
        if self._is_used or self.built:
            summary = f"exclude_from_weight_decay comes too late: the optimizer {self.name!r} is in use"
            raise ModelError(summary, given="a call after compile() or init()", fix="call it before compile()")
        excluded = tuple(var_list or ())
        if isinstance(var_list, str) or not all(isinstance(path_of(one), str) for one in excluded):
            summary = "exclude_from_weight_decay: `var_list` must be a list of variables or their paths"
            fix = "for example var_list=[model.layers[0].bias]"
            raise ModelError(summary, given=f"var_list={shorten(var_list)}", fix=fix)
        self._excluded = excluded
        self._excluded_names = check_patterns("exclude_from_weight_decay", "var_names", var_names)

    def know_variables(self, variables: Mapping[str, Any]) -> None:
        """Set the variables to update, by the paths that `update` will see."""
        excluded = {
            path
            for path, variable in variables.items()
            if any(_means(one, variable) for one in self._excluded)
            or any(pattern(name).search(getattr(variable, "name", path)) for name in self._excluded_names)
        }
        self._excluded_paths = frozenset(excluded)

    def decay_of(self, path: str, param: jax.Array | None) -> float | None:
        """Return the weight decay of the weight at `path`, or None."""
        return None if self._is_excluded(path) else self.weight_decay

    def _decay(self, params: PyTree, rate: Any) -> Any:
        """Return the decayed weights; weights without decay are the same objects."""

        def decayed(key_path: Any, param: Any) -> Any:
            decay = self.decay_of(tree_paths.join(tree_paths.parts_of(key_path)), param)
            return param if decay is None else param - (param * decay * rate).astype(param.dtype)

        return jax.tree_util.tree_map_with_path(decayed, params)

    def _is_excluded(self, path: str) -> bool:
        if self._excluded_paths is not None:
            return path in self._excluded_paths
        is_listed = any(path_of(one) == path for one in self._excluded)
        return is_listed or any(pattern(name).search(path) for name in self._excluded_names)


def path_of(variable: object) -> Any:
    """Return the path of a variable; return a path unchanged."""
    return getattr(variable, "path", variable)


def _means(entry: Any, variable: Any) -> bool:
    """Whether an entry of `var_list` is this variable or its path."""
    if isinstance(entry, str):
        return entry == path_of(variable)
    return entry is variable
