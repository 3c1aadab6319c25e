"""The families of pretrained networks."""

from keras_dist.pretrained.families.bert import Bert
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.families.encoder_family import EncoderFamily
from keras_dist.pretrained.families.experts_family import ExpertsFamily
from keras_dist.pretrained.families.gemma2 import Gemma2
from keras_dist.pretrained.families.gemma3 import Gemma3Text
from keras_dist.pretrained.families.glm4 import Glm4
from keras_dist.pretrained.families.gpt2 import GPT2
from keras_dist.pretrained.families.gpt_oss import GptOss
from keras_dist.pretrained.families.granite import Granite
from keras_dist.pretrained.families.llama import Llama
from keras_dist.pretrained.families.ministral import Ministral, Ministral3
from keras_dist.pretrained.families.mistral import Mistral
from keras_dist.pretrained.families.mixtral import Mixtral
from keras_dist.pretrained.families.modern_bert import ModernBert
from keras_dist.pretrained.families.olmo2 import Olmo2
from keras_dist.pretrained.families.phi3 import Phi3
from keras_dist.pretrained.families.qwen import Qwen2, Qwen3
from keras_dist.pretrained.families.qwen3_moe import Qwen3Moe
from keras_dist.pretrained.families.smollm3 import SmolLM3
from keras_dist.pretrained.families.vit import ViT

__all__ = [
    "GPT2",
    "Bert",
    "DecoderFamily",
    "EncoderFamily",
    "ExpertsFamily",
    "Gemma2",
    "Gemma3Text",
    "Glm4",
    "GptOss",
    "Granite",
    "Llama",
    "Ministral",
    "Ministral3",
    "Mistral",
    "Mixtral",
    "ModernBert",
    "Olmo2",
    "Phi3",
    "Qwen2",
    "Qwen3",
    "Qwen3Moe",
    "SmolLM3",
    "ViT",
]
