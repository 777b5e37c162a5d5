# SPDX-License-Identifier: Apache-2.0
"""models.py KIND FOLDER [SEED] - tiny models with random weights, for the engines' tests.

qwen: full attention; phi: rotary embeddings that depend on max_model_len (longrope); gemma: a sliding-window hybrid; deepseek: latent attention (MLA);
big: full attention, 110 M parameters; chat: qwen with a tokenizer of bytes; lora: an adapter for qwen; eagle, eagle3: heads for qwen.
"""
import json
import os
import sys

import torch


def qwen(seed, size=1):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = dict(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                 num_attention_heads=8, num_key_value_heads=8, head_dim=64)
    if size > 1:
        shape.update(vocab_size=8192, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                     num_attention_heads=12, num_key_value_heads=4)
    return Qwen3ForCausalLM(Qwen3Config(max_position_embeddings=8192, tie_word_embeddings=True,
                                        bos_token_id=1, eos_token_id=2, pad_token_id=0,
                                        initializer_range=0.2 if size == 1 else 0.05, **shape))


def gemma(seed):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(seed)
    return Gemma3ForCausalLM(Gemma3TextConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=256,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], max_position_embeddings=8192,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        initializer_range=0.2))


def deepseek(seed):
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(seed)
    # Do not tie the output layer to the embeddings: vLLM would not initialize it.
    return DeepseekV2ForCausalLM(DeepseekV2Config(
        vocab_size=1024, hidden_size=256, intermediate_size=512, moe_intermediate_size=128,
        num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8, kv_lora_rank=512,
        q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64,
        first_k_dense_replace=3, n_routed_experts=4, num_experts_per_tok=2, max_position_embeddings=8192,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        initializer_range=0.2))


def phi(seed):
    from transformers import Phi3Config, Phi3ForCausalLM

    torch.manual_seed(seed)
    return Phi3ForCausalLM(Phi3Config(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096,
        original_max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=False, initializer_range=0.2,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 32,
                      "long_factor": [1.0 + i / 4 for i in range(32)]}))


def lora(seed, folder):
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(4):
        for name, out in (("q_proj", 512), ("v_proj", 512)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(8, 256, generator=generator)
            tensors[f"{at}.lora_B.weight"] = torch.randn(out, 8, generator=generator)
    save_file(tensors, f"{folder}/adapter_model.safetensors")
    with open(f"{folder}/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM",
                   "target_modules": ["q_proj", "v_proj"], "bias": "none",
                   "base_model_name_or_path": "qwen"}, file)


def eagle(seed, folder, third):
    """One layer of Llama over an embedding and hidden states; vLLM shares the model's embeddings.  @third:
    for EAGLE-3, which takes the hidden states of three layers."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=1,
                         num_attention_heads=8, num_key_value_heads=8, head_dim=64, initializer_range=0.2,
                         max_position_embeddings=8192, eagle_aux_hidden_state_layer_ids=[1, 2, 3],
                         architectures=["LlamaForCausalLMEagle3" if third else "LlamaForCausalLM"])
    tensors = {name.removeprefix("model."): tensor.contiguous()
               for name, tensor in LlamaForCausalLM(config).state_dict().items()
               if ".layers." in name and (third or "input_layernorm" not in name)}
    tensors["fc.weight"] = torch.randn(256, 3 * 256 if third else 2 * 256) / 16
    if third:
        tensors |= {f"layers.0.self_attn.{name}_proj.weight": torch.randn(512, 512) / 16 for name in "qkv"}
        tensors |= {name: torch.ones(256) for name in ("norm.weight", "layers.0.hidden_norm.weight")}
    save_file(tensors, f"{folder}/model.safetensors")
    config.save_pretrained(folder)


def tokenizer(folder):
    """A token for each byte, and for the rest of the vocabulary names without a meaning."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<{i}>" for i in range(len(names), 1024)]
    whole = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=whole, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = ("{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
                          "{% if add_generation_prompt %}<s>assistant: {% endif %}")
    fast.save_pretrained(folder)


def make(kind, folder, seed=1):
    os.makedirs(folder, exist_ok=True)
    if kind == "lora":
        lora(seed, folder)
        return
    if kind in ("eagle", "eagle3"):
        eagle(seed, folder, kind == "eagle3")
        return
    made = {"qwen": qwen, "chat": qwen, "gemma": gemma, "phi": phi, "deepseek": deepseek,
            "big": lambda seed: qwen(seed, 2)}[kind](seed)
    made.to(torch.float32).save_pretrained(folder)
    if kind == "chat":
        tokenizer(folder)


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], int((sys.argv + ["1"])[3]))
