/* core/families/decoder.h - what decoders of the Llama kind share: rows of their name
 * tables, the reading of what their configurations have in common, and their layers. A
 * family is a file that puts these together and says where it differs. */
#ifndef CORE_FAMILIES_DECODER_H
#define CORE_FAMILIES_DECODER_H

#include "core/fwd/fwd.h"
#include "core/model/arch.h"

/* ---- rows of a name table: names as in transformers and in llama.cpp's GGUF ---------- */

#define DECODER_LAYER "layers.%u."
#define DECODER_BLK "blk.%u."
/* A norm of the residual's width, one per layer. */
#define DECODER_NORM(kind, hf, gguf)                                           \
    {                                                                          \
        kind, DECODER_LAYER hf, DECODER_BLK gguf, ARCH_D, ARCH_D, ARCH_LAYERED \
    }
/* A norm of each head. */
#define DECODER_HEAD_NORM(kind, hf, gguf)                                            \
    {                                                                                \
        kind, DECODER_LAYER hf, DECODER_BLK gguf, ARCH_HEAD, ARCH_HEAD, ARCH_LAYERED \
    }

#define DECODER_TOKENS                                                      \
    {                                                                       \
        SITE_EMBED_TOKENS, "embed_tokens", "token_embd", ARCH_VOCAB, ARCH_D \
    }
#define DECODER_END                                           \
    {SITE_FINAL_NORM, "norm", "output_norm", ARCH_D, ARCH_D}, \
    {                                                         \
        SITE_LM_HEAD, "lm_head", "output", ARCH_D, ARCH_VOCAB \
    }

/* `bias`: ARCH_BIAS, ARCH_BIAS_MAY or 0. */
#define DECODER_QKV(bias)                                                                \
    {SITE_Q,                                                                             \
     DECODER_LAYER "self_attn.q_proj",                                                   \
     DECODER_BLK "attn_q",                                                               \
     ARCH_D,                                                                             \
     ARCH_Q,                                                                             \
     ARCH_LAYERED | (bias),                                                              \
     "q"},                                                                               \
        {SITE_K,                                                                         \
         DECODER_LAYER "self_attn.k_proj",                                               \
         DECODER_BLK "attn_k",                                                           \
         ARCH_D,                                                                         \
         ARCH_KV,                                                                        \
         ARCH_LAYERED | (bias),                                                          \
         "k"},                                                                           \
    {                                                                                    \
        SITE_V, DECODER_LAYER "self_attn.v_proj", DECODER_BLK "attn_v", ARCH_D, ARCH_KV, \
            ARCH_LAYERED | (bias), "v"                                                   \
    }
/* Attention and its output; `join` as AdapterHub calls the place behind it, or NULL. */
#define DECODER_OUT(bias, join)                                                  \
    {SITE_ATTN, DECODER_LAYER "self_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED}, \
        {SITE_O,                                                                 \
         DECODER_LAYER "self_attn.o_proj",                                       \
         DECODER_BLK "attn_output",                                              \
         ARCH_Q,                                                                 \
         ARCH_D,                                                                 \
         ARCH_LAYERED | (bias)},                                                 \
    {                                                                            \
        SITE_ATTN_JOIN, join, NULL, ARCH_D, ARCH_D, ARCH_LAYERED                 \
    }
/* up_role, down_role: AdapterHub's "intermediate" and "output". */
#define DECODER_FFN(bias, up_role, down_role, join)                            \
    {SITE_GATE, DECODER_LAYER "mlp.gate_proj", DECODER_BLK "ffn_gate", ARCH_D, \
     ARCH_FF,   ARCH_LAYERED | (bias)},                                        \
        {SITE_UP,                                                              \
         DECODER_LAYER "mlp.up_proj",                                          \
         DECODER_BLK "ffn_up",                                                 \
         ARCH_D,                                                               \
         ARCH_FF,                                                              \
         ARCH_LAYERED | (bias),                                                \
         up_role},                                                             \
        {SITE_DOWN,                                                            \
         DECODER_LAYER "mlp.down_proj",                                        \
         DECODER_BLK "ffn_down",                                               \
         ARCH_FF,                                                              \
         ARCH_D,                                                               \
         ARCH_LAYERED | (bias),                                                \
         down_role},                                                           \
    {                                                                          \
        SITE_FFN_JOIN, join, NULL, ARCH_D, ARCH_D, ARCH_LAYERED                \
    }
#define DECODER_ATTN_JOIN DECODER_LAYER "attention_adapters"
#define DECODER_FFN_JOIN DECODER_LAYER "output_adapters"

/* ---- heads: one linear over the last token, each token, each token -------------------- */

enum { DECODER_N_HEADS = 3 };
extern const struct model_head family__decoder_heads[DECODER_N_HEADS];

/* ---- configuration ---------------------------------------------------------------------- */

struct decoder_dflt {
    double norm_eps;
    bool is_tied; /* tie_word_embeddings of the class */
};
/* Norms, tie, one causal stack; default activation SiLU. */
int family__decoder_config(struct model_config *c, const struct model_facts *f,
                           const struct decoder_dflt *dflt, struct core_err *err);
/* Windows as Qwen2 and later say them: use_sliding_window, max_window_layers, layer_types. */
int family__decoder_late_windows(struct model_config *c, const struct model_facts *f,
                                 struct core_err *err);
/* What Gemma 2 and 3 have in common: gains 1 + w, the scale of embeddings, soft caps, the
 * scale of scores. `period`: every so many-th layer sees all keys. `softcaps`: of scores
 * and of logits where the key is absent. */
int family__gemma_config(struct model_config *c, const struct model_facts *f, unsigned period,
                         const double softcaps[2], struct core_err *err);

/* ---- layers ------------------------------------------------------------------------------ */

/* Where a family's layers differ from Llama's. */
struct decoder_shape {
    bool has_head_norms; /* Q_NORM, K_NORM */
    bool has_post_norms; /* ATTN_POST_NORM, FFN_POST_NORM */
};
/* Embedding, all layers, final norm. */
void family__decoder_forward(struct fwd_walk *w, const struct decoder_shape *shape);

#endif
