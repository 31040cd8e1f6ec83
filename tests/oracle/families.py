"""The base families of the cross product: how a random base of each is made, and how its modules are called.

Sizes are small and odd on purpose: no width is a multiple of 16, head sizes differ from hidden / heads where the family
allows it, windows are shorter than the inputs. All widths are multiples of 4, because block methods (OFT, C3A, PHM)
need a common divisor.
"""

from dataclasses import dataclass, field

ENCODER_KINDS = ("classification", "tagging", "span", "embedding")
DECODER_KINDS = ("generation", "classification", "tagging", "span", "embedding")
SEQ2SEQ_KINDS = ("generation", "classification", "span")


@dataclass
class Names:
    """Module names as target_modules wants them. A fused projection stands for all that it holds."""

    attention: list  # query and value, or what is fused of them: the usual targets
    key: list
    value: str
    out: str
    up: list
    down: str
    norms: list
    embedding: str
    first_norm: str  # one norm by its path, to be saved whole
    transposed: bool = False  # Conv1D

    @property
    def linears(self) -> list:
        return list(dict.fromkeys([*self.attention, *self.key, self.out, *self.up, self.down]))


@dataclass
class Family:
    """One base. `saved_as` is the auto class that writes it; its kinds start with the main one."""

    name: str
    config: str
    options: dict
    saved_as: str
    kinds: tuple
    names: Names
    first_token: int
    tokenizer: str | None = None
    token_types: bool = False
    eos_ends: int | None = None  # classification pools at this token, so inputs end with it
    pad_id: int = 0
    heads_to_save: dict = field(default_factory=dict)  # kind -> modules that PEFT does not save by itself
    prompt_options: dict = field(default_factory=dict)  # what PEFT's prompts cannot read from the config
    adds_transformer: bool = False  # its class for question answering calls the body `transformer`
    no_adapterhub: str = ""  # why AdapterHub cannot serve it

    @property
    def main_kind(self) -> str:
        return self.kinds[0]

    @property
    def is_seq2seq(self) -> bool:
        return self.saved_as == "AutoModelForSeq2SeqLM"

    @property
    def is_decoder(self) -> bool:
        return not self.is_seq2seq and "generation" in self.kinds or self.name == "gpt2-cls"


def bert_names(**changes) -> Names:
    names = {"attention": ["query", "value"], "key": ["key"], "value": "value", "out": "attention.output.dense",
             "up": ["intermediate.dense"], "down": "output.dense", "norms": ["LayerNorm"],
             "embedding": "word_embeddings", "first_norm": "layer.0.output.LayerNorm"}
    return Names(**{**names, **changes})


def llama_names(**changes) -> Names:
    names = {"attention": ["q_proj", "v_proj"], "key": ["k_proj"], "value": "v_proj", "out": "o_proj",
             "up": ["gate_proj", "up_proj"], "down": "down_proj",
             "norms": ["input_layernorm", "post_attention_layernorm", "norm"], "embedding": "embed_tokens",
             "first_norm": "layers.0.input_layernorm"}
    return Names(**{**names, **changes})


def bart_names(norms: list) -> Names:
    return Names(["q_proj", "v_proj"], ["k_proj"], "v_proj", "out_proj", ["fc1"], "fc2",
                 ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm", *norms], "embed_tokens",
                 "decoder.layers.0.encoder_attn_layer_norm")


def t5_names(up: list) -> Names:
    return Names(["q", "v"], ["k"], "v", "o", up, "wo", ["layer_norm", "final_layer_norm"], "embed_tokens",
                 "decoder.block.0.layer.1.layer_norm")


GPT2_NAMES = Names(["c_attn"], ["c_attn"], "c_attn", "attn.c_proj", ["c_fc"], "mlp.c_proj", ["ln_1", "ln_2", "ln_f"],
                   "wte", "h.0.ln_1", transposed=True)
BERT = {"vocab_size": 106, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 92, "max_position_embeddings": 64, "type_vocab_size": 2, "pad_token_id": 0}
DEBERTA = {"vocab_size": 131, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3,
           "intermediate_size": 68, "max_position_embeddings": 64, "relative_attention": True, "position_buckets": 8,
           "max_relative_positions": -1, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
           "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0, "pad_token_id": 0,
           "pooler_hidden_size": 36, "pooler_dropout": 0.0, "pooler_hidden_act": "gelu", "layer_norm_eps": 1e-7}
BART = {"vocab_size": 131, "max_position_embeddings": 96, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        "decoder_start_token_id": 2, "forced_bos_token_id": None, "forced_eos_token_id": None}
T5 = {"vocab_size": 131, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
DECODER = {"vocab_size": 131, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def encoders() -> list:
    deberta = {"names": bert_names(attention=["query_proj", "value_proj"], key=["key_proj"], value="value_proj"),
               "first_token": 4}
    roberta = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
    bert = {"names": bert_names(), "first_token": 5, "tokenizer": "wordpiece", "token_types": True}
    return [
        Family("bert-cls", "BertConfig", BERT, "AutoModelForSequenceClassification",
               ("classification", "embedding"), **bert),
        Family("bert-tag", "BertConfig", {**BERT, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 2},
               "AutoModelForTokenClassification", ("tagging",), **bert),
        Family("bert-qa", "BertConfig", {**BERT, "hidden_size": 44, "intermediate_size": 60, "num_hidden_layers": 2},
               "AutoModelForQuestionAnswering", ("span",), **bert),
        Family("roberta", "RobertaConfig",
               {**BERT, **roberta, "vocab_size": 301, "hidden_size": 36, "intermediate_size": 76,
                "max_position_embeddings": 66}, "AutoModelForMaskedLM", ENCODER_KINDS, bert_names(), 4,
               tokenizer="roberta", pad_id=1, heads_to_save={"multiple_choice": ["pooler"]}),
        Family("xlm-roberta", "XLMRobertaConfig",
               {**BERT, **roberta, "vocab_size": 131, "hidden_size": 44, "intermediate_size": 72,
                "max_position_embeddings": 66, "num_hidden_layers": 2}, "AutoModel", ENCODER_KINDS, bert_names(), 4,
               pad_id=1),
        Family("distilbert", "DistilBertConfig",
               {"vocab_size": 106, "dim": 40, "hidden_dim": 76, "n_layers": 3, "n_heads": 5, "pad_token_id": 0,
                "max_position_embeddings": 64}, "AutoModelForMaskedLM", ENCODER_KINDS,
               bert_names(attention=["q_lin", "v_lin"], key=["k_lin"], value="v_lin", out="out_lin", up=["lin1"],
                          down="lin2", norms=["sa_layer_norm", "output_layer_norm"],
                          first_norm="layer.0.output_layer_norm"), 5, tokenizer="wordpiece",
               prompt_options={"token_dim": 40, "num_layers": 3, "num_attention_heads": 5}),
        Family("electra", "ElectraConfig",
               {**BERT, "embedding_size": 20, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 60,
                "num_hidden_layers": 2}, "AutoModel", ENCODER_KINDS, bert_names(), 5, tokenizer="wordpiece",
               token_types=True, prompt_options={"token_dim": 20},
               heads_to_save={"multiple_choice": ["sequence_summary"]}),
        Family("deberta-v2", "DebertaV2Config", DEBERTA, "AutoModelForSequenceClassification", ENCODER_KINDS,
               **deberta),
        Family("deberta-v2-conv", "DebertaV2Config",
               {**DEBERTA, "hidden_size": 44, "pooler_hidden_size": 44, "num_attention_heads": 4,
                "num_hidden_layers": 2, "conv_kernel_size": 3, "conv_act": "gelu"},
               "AutoModelForSequenceClassification", ENCODER_KINDS, **deberta),
        Family("modernbert", "ModernBertConfig",
               {"vocab_size": 131, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3,
                "num_attention_heads": 3, "max_position_embeddings": 128, "global_attn_every_n_layers": 2,
                "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
                "sep_token_id": 2, "classifier_pooling": "mean", "reference_compile": False},
               "AutoModelForMaskedLM", ENCODER_KINDS,
               Names(["Wqkv"], ["Wqkv"], "Wqkv", "attn.Wo", ["Wi"], "mlp.Wo", ["attn_norm", "mlp_norm", "final_norm"],
                     "tok_embeddings", "layers.1.attn_norm"), 4, heads_to_save={"span": ["classifier"]},
               no_adapterhub="the library gives Wqkv a bias of random values, which it does not save"),
    ]


def seq2seqs() -> list:
    head = {kind: ["classification_head"] for kind in ("classification", "multi_label", "regression")}
    return [
        Family("bart", "BartConfig",
               {**BART, "d_model": 40, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                "decoder_attention_heads": 4, "encoder_ffn_dim": 68, "decoder_ffn_dim": 92},
               "AutoModelForSeq2SeqLM", SEQ2SEQ_KINDS, bart_names(["layernorm_embedding"]), 4, eos_ends=2, pad_id=1,
               heads_to_save=head),
        Family("mbart", "MBartConfig",
               {**BART, "d_model": 36, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 3,
                "decoder_attention_heads": 3, "encoder_ffn_dim": 76, "decoder_ffn_dim": 60, "scale_embedding": True},
               "AutoModelForSeq2SeqLM", SEQ2SEQ_KINDS, bart_names(["layernorm_embedding", "layer_norm"]), 4,
               eos_ends=2, pad_id=1, heads_to_save=head),
        Family("t5", "T5Config",
               {**T5, "d_model": 36, "d_kv": 12, "num_heads": 3, "d_ff": 68, "num_layers": 2,
                "feed_forward_proj": "relu"}, "AutoModelForSeq2SeqLM", SEQ2SEQ_KINDS, t5_names(["wi"]), 3, eos_ends=1,
               heads_to_save=head),
        Family("t5-gated", "T5Config",
               {**T5, "d_model": 40, "d_kv": 12, "num_heads": 3, "d_ff": 60, "num_layers": 2, "num_decoder_layers": 3,
                "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "AutoModelForSeq2SeqLM",
               SEQ2SEQ_KINDS, t5_names(["wi_0", "wi_1"]), 3, eos_ends=1,
               heads_to_save=head),
    ]


def decoders() -> list:
    gpt2 = {"vocab_size": 131, "n_positions": 96, "bos_token_id": 2, "eos_token_id": 2}
    gemma = {"names": llama_names(norms=["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                         "post_feedforward_layernorm", "norm"]), "first_token": 3}
    lm = "AutoModelForCausalLM"
    return [
        Family("gpt2", "GPT2Config", {**gpt2, "n_embd": 40, "n_head": 4, "n_layer": 3, "n_inner": 92,
                                      "pad_token_id": None}, lm,
               ("generation", "tagging", "span", "embedding"), GPT2_NAMES, 3),
        Family("gpt2-cls", "GPT2Config", {**gpt2, "n_embd": 36, "n_head": 3, "n_layer": 2, "pad_token_id": 0},
               "AutoModelForSequenceClassification", ("classification",), GPT2_NAMES, 3),
        Family("llama-odd", "LlamaConfig",
               {**DECODER, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6,
                "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 76, "tie_word_embeddings": False},
               lm, DECODER_KINDS, llama_names(), 3, adds_transformer=True),
        Family("mistral", "MistralConfig",
               {**DECODER, "hidden_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 14, "intermediate_size": 68, "sliding_window": 9,
                "tie_word_embeddings": False}, lm, DECODER_KINDS, llama_names(), 3),
        Family("qwen2", "Qwen2Config",
               {**DECODER, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 76, "tie_word_embeddings": True}, lm, DECODER_KINDS,
               llama_names(), 3, adds_transformer=True),
        Family("qwen3", "Qwen3Config",
               {**DECODER, "hidden_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 60, "tie_word_embeddings": False}, lm,
               DECODER_KINDS, llama_names(norms=["input_layernorm", "post_attention_layernorm", "norm", "q_norm"]), 3,
               adds_transformer=True),
        Family("gemma2", "Gemma2Config",
               {**DECODER, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 68, "sliding_window": 9,
                "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}, lm,
               ("generation", "classification", "tagging", "embedding"), **gemma),
        Family("gemma3_text", "Gemma3TextConfig",
               {**DECODER, "hidden_size": 36, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 60, "sliding_window": 9,
                "query_pre_attn_scalar": 14,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}, lm,
               ("generation", "classification", "embedding"), **gemma),
        Family("phi3", "Phi3Config",
               {**DECODER, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 68, "sliding_window": 11,
                "tie_word_embeddings": False}, lm, ("generation", "classification", "tagging", "embedding"),
               llama_names(attention=["qkv_proj"], key=["qkv_proj"], value="qkv_proj", up=["gate_up_proj"]), 3,
               no_adapterhub="the library has no interface for this family"),
    ]


def families() -> dict:
    return {family.name: family for family in [*encoders(), *seq2seqs(), *decoders()]}
