"""Adapters of LoRA for a whole model: choose, enable and merge them; files of `peft`.

LoRA adds `alpha / rank * A @ B` to a frozen weight, and trains the factors A and B. Three places do it:

- `layers.base.lora`: layers. They create factors as weights of their own, and compute with them.
- `training.lora_modules`: foreign modules of `flax.nnx`. Their factors are beside them, and are added to the kernels
  while the module is called. `training.lora_weights` finds the adapted weights of both kinds, and sums or merges them.
- `adapters`, here: whole models. `choosing` finds what patterns match, `enabling` has `enable_lora` and `merge_lora`,
  `peft_saving` has `save_adapter` and `load_adapter`. Below these, `peft_files` is the two files of an adapter, and
  `peft_modules` the factors as torch's modules have them. `adaptable_model` is what all of them need of a model.
"""
