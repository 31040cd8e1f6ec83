/* core/families/roberta.c - RoBERTa and XLM-R: BERT's layers, positions that begin behind
 * the padding token's id and pass over padding, and a classification head of two layers.
 * Liu et al. 2019, Conneau et al. 2020; names as in transformers' RobertaModel. */
#include "core/base/err.h"
#include "core/families/bert.h"
#include "core/families/families.h"

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE,
     MODEL_HEAD_FIRST,
     {{"classifier.dense", KERN_ACT_TANH}, {"classifier.out_proj"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
    {MODEL_FORM_CHOICE, MODEL_HEAD_POOLER, {{"classifier"}}},
};

/* max_position_embeddings counts the table's rows: those up to the padding token's id are
 * not for tokens. */
static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const int rc = family__bert_config(c, f, 2, err);

    c->pad = c->pad < 0 ? 1 : c->pad; /* the library's default */
    c->position.first = (unsigned)c->pad + 1;
    c->position.skips_pad = true;
    if (rc == 0 && c->n_positions <= c->position.first)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "max_position_embeddings",
                                  "config.json: max_position_embeddings %u leaves no position "
                                  "behind those up to pad_token_id %d",
                                  c->n_positions, c->pad);
    c->n_positions -= c->position.first;
    return rc;
}

const struct model_arch family__roberta = {
    .name = "roberta",
    .base_prefix = "roberta.",
    .tokenizer = {.class = "RobertaTokenizer"},
    .site = family__bert_sites,
    .n_sites = FAMILY_BERT_N_SITES,
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = family__bert_forward,
};

const struct model_arch family__xlm_roberta = {
    .name = "xlm-roberta",
    .base_prefix = "roberta.",
    .tokenizer = {.class = "XLMRobertaTokenizer"},
    .site = family__bert_sites,
    .n_sites = FAMILY_BERT_N_SITES,
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = family__bert_forward,
};
