"""Initializers on `jax.nn.initializers`, called as `initializer(shape, dtype, key)`.

Source: names, arguments and defaults as in `keras.initializers`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.initializers.constants import Constant as Constant
from keras_dist.initializers.constants import Identity as Identity
from keras_dist.initializers.constants import Ones as Ones
from keras_dist.initializers.constants import Zeros as Zeros
from keras_dist.initializers.fourier_kernels import STFT as STFT
from keras_dist.initializers.identifiers import deserialize as deserialize
from keras_dist.initializers.identifiers import get as get
from keras_dist.initializers.identifiers import serialize as serialize
from keras_dist.initializers.initializer import FromArray as FromArray
from keras_dist.initializers.initializer import FromFunction as FromFunction
from keras_dist.initializers.initializer import Initializer as Initializer
from keras_dist.initializers.initializer import RandomInitializer as RandomInitializer
from keras_dist.initializers.random_values import GlorotNormal as GlorotNormal
from keras_dist.initializers.random_values import GlorotUniform as GlorotUniform
from keras_dist.initializers.random_values import HeNormal as HeNormal
from keras_dist.initializers.random_values import HeUniform as HeUniform
from keras_dist.initializers.random_values import LecunNormal as LecunNormal
from keras_dist.initializers.random_values import LecunUniform as LecunUniform
from keras_dist.initializers.random_values import Orthogonal as Orthogonal
from keras_dist.initializers.random_values import RandomNormal as RandomNormal
from keras_dist.initializers.random_values import RandomUniform as RandomUniform
from keras_dist.initializers.random_values import TruncatedNormal as TruncatedNormal
from keras_dist.initializers.random_values import VarianceScaling as VarianceScaling

# further names of Keras
IdentityInitializer = identity = Identity
OrthogonalInitializer = orthogonal = Orthogonal
STFTInitializer = stft = STFT
constant = Constant
glorot_normal = GlorotNormal
glorot_uniform = GlorotUniform
he_normal = HeNormal
he_uniform = HeUniform
lecun_normal = LecunNormal
lecun_uniform = LecunUniform
ones = Ones
random_normal = RandomNormal
random_uniform = RandomUniform
truncated_normal = TruncatedNormal
variance_scaling = VarianceScaling
zeros = Zeros

__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(f"{__name__}.")]  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
