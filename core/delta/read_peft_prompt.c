/* core/delta/read_peft_prompt.c - PEFT's prompt learning: rows that stand in front of an
 * input, as keys and values (prefix tuning) or as embeddings. */
#include <stdio.h>
#include <string.h>

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
    /* Of T5ForQuestionAnswering the library takes the encoder for the body: it drops the prefix,
     * and the head reads its rows. Other classes that do not generate stop with an error. */
    if (model_config(b->m)->n_stacks == 2 && n_submodules == 1.0)
        return core_err_set_param(
            b->err, CORE_E_ADAPTER_UNSUPPORTED, "num_transformer_submodules",
            "num_transformer_submodules: 1 on an encoder-decoder: the library "
            "answers from the encoder alone, which drops the prefix, and that "
            "is not computed");
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
    b->ignores_token_types |= b->plan.form == DELTA__FORM_EMBEDDING;
    return 0;
}

/* A prefix of which some tokens were not trained. */
int delta__peft_cartridge(struct delta_builder *b, const json_t *config)
{
    return delta__peft_prefix(b, config);
}

/* ---- rows in front of the input's embeddings --------------------------------------- */

/* Adds n rows; the library hands the model embeddings, not ids, so that a head that pools
 * the last token cannot see padding. */
static int add_rows(struct delta_builder *b, const struct tensor *t, const float *row, size_t n)
{
    const int rc = delta__add_soft(b, &(struct delta__soft){.t = t, .row = row, .n = n});

    b->plan.end = DELTA_END_LAST;
    b->ignores_token_types |= b->plan.form == DELTA__FORM_EMBEDDING;
    return rc;
}

/* The tensor, and how many of its rows count: for both stacks of an encoder-decoder the
 * library trains as many again, and its generate() drops those of the target. */
static int read_rows(struct delta_builder *b, const json_t *config, const struct tensor **t,
                     const float **row, size_t *n)
{
    const size_t d = model_config(b->m)->d_embed;
    double n_tokens, n_submodules;
    int rc = find_prompt(b, config, t, &n_tokens, &n_submodules);

    if (rc < 0)
        return rc;
    *n = (*t)->dim[0] / (n_submodules == 2.0 ? 2 : 1);
    if (n_tokens > 0.0 && n_tokens != (double)*n)
        *n = (size_t)n_tokens;
    rc = delta__expect(b, *t, 2, n_submodules == 2.0 ? 2 * *n : *n, d);
    return rc < 0 ? rc : delta__floats(b, *t, row);
}

/* Prompt tuning, and P-tuning, whose encoder the library has run before it saves. */
int delta__peft_prompt(struct delta_builder *b, const json_t *config)
{
    const struct tensor *t;
    const float *row;
    size_t n;
    const int rc = read_rows(b, config, &t, &row, &n);

    return rc < 0 ? rc : add_rows(b, t, row, n);
}

int delta__peft_p_tuning(struct delta_builder *b, const json_t *config)
{
    return delta__peft_prompt(b, config);
}

/* Context-aware prompt tuning: the file has the sum of the tokens' rows and what was learned. */
int delta__peft_cpt(struct delta_builder *b, const json_t *config)
{
    return delta__peft_prompt(b, config);
}

/* The file's prompt is of all tasks; task.json says which one this is: row i is
 * prompt[i] (*) (cols[task, i] rows[task]) (Wang et al. 2023). */
int delta__peft_multitask_prompt(struct delta_builder *b, const json_t *config)
{
    const struct tensor *t, *cols = delta__find(b, "prefix_task_cols", 16, "");
    const struct tensor *rows = delta__find(b, "prefix_task_rows", 16, "");
    const float *prompt, *c, *r;
    size_t task, n_tokens, n_ranks, d;
    float *row;
    int rc = read_rows(b, config, &t, &prompt, &n_tokens);

    if (rc < 0)
        return rc;
    if (!cols || !rows || cols->n_dims != 3 || rows->n_dims != 3 || cols->dim[0] != rows->dim[0] ||
        cols->dim[1] != t->dim[0] || cols->dim[2] != rows->dim[1] || rows->dim[2] != t->dim[1])
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "prefix_task_cols",
                                  "prefix_task_cols and prefix_task_rows do not fit "
                                  "prompt_embeddings");
    rc = delta__task_id(b, cols->dim[0], &task);
    if (rc == 0)
        rc = delta__floats(b, cols, &c);
    if (rc == 0)
        rc = delta__floats(b, rows, &r);
    if (rc < 0)
        return rc;
    n_ranks = rows->dim[1];
    d = t->dim[1];
    if (!delta__computed(b, t, n_tokens, d, &row))
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n_tokens; i++)
        for (size_t j = 0; j < d; j++) {
            float sum = 0.0f;

            for (size_t k = 0; k < n_ranks; k++)
                sum += c[(task * t->dim[0] + i) * n_ranks + k] * r[(task * n_ranks + k) * d + j];
            row[i * d + j] = prompt[i * d + j] * sum;
        }
    return add_rows(b, t, row, n_tokens);
}
