/* core/families/bert.h - what the BERT encoder and its descendants share: a descendant
 * differs by facts, names or a layer, and its own file has only those. */
#ifndef CORE_FAMILIES_BERT_H
#define CORE_FAMILIES_BERT_H

#include "core/model/arch.h"

struct fwd_attn;
struct fwd_walk;

/* BERT's names. Types, projection and pooler stand in them for those that have them. */
enum { FAMILY_BERT_N_SITES = 17 };
extern const struct arch_site family__bert_sites[FAMILY_BERT_N_SITES];

/* Refuses what none of them computes (a decoder, other positions), reads type_vocab_size
 * (`n_types` if it is absent), layer_norm_eps, and settles the rest: post-norm, one stack. */
int family__bert_config(struct model_config *c, const struct model_facts *f, unsigned n_types,
                        struct core_err *err);
/* The same for all but types and the key of the epsilon, which are read already. */
int family__post_norm(struct model_config *c, struct core_err *err);

/* h = the projected LayerNorm of the embeddings' sum. */
void family__bert_embed(struct fwd_walk *w);
/* One post-norm layer: attention `a` and the feed-forward. */
void family__post_norm_layer(struct fwd_walk *w, unsigned i, const struct fwd_attn *a);
/* Both, over all layers. */
void family__bert_forward(struct fwd_walk *w);

#endif
