"""Writes a small language model with random weights: tiny_model.py FILE

The text of its responses is random. Tokens, caches, slots, streams and usage are those of llama.cpp
with a model of any size.
"""

import sys

import gguf
import numpy

CONTEXT, WIDTH, HIDDEN, LAYERS, HEADS = 4096, 64, 128, 2, 4

# Bytes and some pairs of letters are tokens, so that prompts have fewer tokens than bytes.
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def vocabulary():
    types = gguf.TokenType
    tokens = [("<unk>", types.UNKNOWN), ("<s>", types.CONTROL), ("</s>", types.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", types.BYTE) for byte in range(256)]
    tokens += [("\u2581", types.NORMAL)] + [(letter, types.NORMAL) for letter in LETTERS]
    tokens += [(first + second, types.NORMAL) for first in LETTERS for second in "aeioun"]
    return tokens


def write(path):
    random = numpy.random.default_rng(1)
    tokens = vocabulary()

    def weights(*shape):
        return (random.standard_normal(shape) * 0.05).astype(numpy.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([float(len(text)) for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", weights(len(tokens), WIDTH))
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    writer.add_tensor("output.weight", weights(len(tokens), WIDTH))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{norm}.weight", numpy.ones(WIDTH, numpy.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", weights(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_gate.weight", weights(HIDDEN, WIDTH))
        writer.add_tensor(f"{block}.ffn_up.weight", weights(HIDDEN, WIDTH))
        writer.add_tensor(f"{block}.ffn_down.weight", weights(WIDTH, HIDDEN))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
