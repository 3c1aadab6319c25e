"""Makes what `fine_tuning.toml` fine-tunes: a tiny Llama with random weights, in the files of `transformers`.

python examples/fine_tuning.py              # writes tiny-llama/
python examples/fine_tuning.py "def main("  # continues the prompt with tuned/, after the training
"""

import sys

import keras_dist as kd
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=256,  # bytes
    hidden_size=64,
    num_layers=2,
    attention=AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=16, rotary=Rotary()),
    feed_forward=FeedForwardConfig(size=256),
)


def main(*prompts: str) -> None:
    """Write the network, or continue prompts."""
    kd.use_cpu_devices(8)
    mesh = kd.DeviceMesh("data=2,model=4")
    with kd.ModelParallel(kd.pretrained.rules(CONFIG, mesh)).scope():
        if not prompts:
            return kd.pretrained.save(Decoder(CONFIG), "tiny-llama")
        model = kd.pretrained.load("tuned")
    for tokens in kd.generate(model, [prompt.encode() for prompt in prompts], max_new_tokens=32, temperature=0.5):
        print(bytes(tokens))
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
