"""Make the LLM that the engine suite serves: a Llama with random weights, a byte-level tokenizer, a chat template.

Usage: make_model.py FOLDER. Needs torch, transformers and tokenizers, as every engine's environment has; no network.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_LENGTH = 2048
VOCABULARY = 512
HIDDEN = 64
HEADS = 2
TEXT = [
    "a server answers requests, one token after the other; the pool of keys and values fills and empties again. ",
    "user assistant system: how many gpus does this host have? 0 1 2 3 4 5 6 7 8 9 ",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on a few words; it has tokens for every text."""
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|eos|>", "<|pad|>"],
        show_progress=False,
    )
    raw.train_from_iterator(TEXT * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        model_max_length=CONTEXT_LENGTH,
    )
    fast.chat_template = CHAT
    return fast


def main(folder: str) -> None:
    """Write tokenizer, configuration and weights to `folder`."""
    tokens = tokenizer()
    tokens.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 2,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


main(sys.argv[1])
