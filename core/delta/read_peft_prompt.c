/* core/delta/read_peft_prompt.c - PEFT's prompt learning: rows that stand in front of an
 * input, as keys and values (prefix tuning) or as embeddings. */
#include <stdio.h>

#include "core/delta/delta_internal.h"

/* *out is prompt_embeddings; *n_said what the configuration says of its rows, 0: nothing;
 * *n_submodules the stacks that it is for. */
static int find_prompt(struct delta_builder *b, const json_t *config, const struct tensor **out,
                       double *n_said, double *n_submodules)
{
    int rc = delta__json_number(b, config, "num_virtual_tokens", 0, n_said);

    *out = delta__find(b, "prompt_embeddings", 17, "");
    if (rc == 0)
        rc = delta__json_number(b, config, "num_transformer_submodules", 1, n_submodules);
    if (rc < 0)
        return rc;
    if (!*out)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "prompt_embeddings",
                                  "the adapter has no tensor prompt_embeddings");
    if (*n_submodules > (double)model_config(b->m)->n_stacks)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "num_transformer_submodules",
                                  "num_transformer_submodules: this base is one stack of layers");
    return 0;
}

/* `prompt_embeddings` (T, 2 L width): keys and values as they enter the cache, the
 * library's MLP already applied. Real tokens start at position T. */
int delta__peft_prefix(struct delta_builder *b, const json_t *config)
{
    enum { LAYERS_MAX = 4096 };
    /* of an encoder-decoder the decoder's own attentions; two submodules are its two stacks */
    const struct model_stack *stack = model_last_stack(model_config(b->m));
    const unsigned n_layers = stack->n_layers;
    unsigned layer[LAYERS_MAX], slot[LAYERS_MAX];
    struct delta__prefix p = {.layer = layer, .n_layers = n_layers, .kind = SITE_ATTN};
    double n_tokens, n_submodules;
    int rc = find_prompt(b, config, &p.t, &n_tokens, &n_submodules);

    if (rc < 0)
        return rc;
    if (p.t->n_dims != 2 || n_layers > LAYERS_MAX ||
        (n_tokens != 0.0 && n_tokens != (double)p.t->dim[0]))
        return delta__misfit(b, p.t, "[num_virtual_tokens, 2 x layers x width]");
    for (unsigned i = 0; i < n_layers; i++) {
        layer[i] = stack->first_layer + i;
        slot[i] = 2 * i % n_layers;
    }
    /* For two submodules the library repeats the slots and deals four of them to each layer,
     * of which it then drops two: PeftModel.get_prompt(). */
    p.slot = n_submodules == 2.0 ? slot : NULL;
    p.n_tokens = p.t->dim[0];
    p.n_cols = p.t->dim[1];
    rc = delta__floats(b, p.t, &p.kv);
    if (rc == 0)
        rc = delta__add_prefix(b, &p);
    if (rc < 0)
        return rc;
    b->position_shift = (uint32_t)p.n_tokens;
    /* PeftModelForFeatureExtraction drops token types; the classifiers keep them. */
    b->ignores_token_types = b->plan.form == DELTA__FORM_EMBEDDING;
    return 0;
}
