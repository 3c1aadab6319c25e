"""Variables: weights, statistics, optimizer slots and metric states, and the context of the call that reads them."""

from keras_dist.variables.seed_generator import SeedGenerator as SeedGenerator
from keras_dist.variables.variable import Frozen as Frozen
from keras_dist.variables.variable import Key as Key
from keras_dist.variables.variable import Parameter as Parameter
from keras_dist.variables.variable import Quantized as Quantized
from keras_dist.variables.variable import Statistic as Statistic
from keras_dist.variables.variable import Variable as Variable
