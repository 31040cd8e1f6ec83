/* core/families/electra.c - ELECTRA's discriminator: BERT's layers behind embeddings of a
 * width of their own, no pooler. Clark et al. 2020; names as in transformers'
 * ElectraModel. */
#include "core/base/err.h"
#include "core/families/bert.h"
#include "core/families/families.h"

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE,
     MODEL_HEAD_FIRST,
     {{"classifier.dense", KERN_ACT_GELU}, {"classifier.out_proj"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
    /* as with the library's summary_type, summary_activation and summary_use_proj */
    {MODEL_FORM_CHOICE,
     MODEL_HEAD_FIRST,
     {{"sequence_summary.summary", KERN_ACT_GELU}, {"classifier"}}},
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const int rc = family__bert_config(c, f, 2, err);

    return rc < 0 ? rc
                  : model__unsigned(f, "embedding_size", NULL, 128, 1u << 20, &c->d_embed, err);
}

const struct model_arch family__electra = {
    .name = "electra",
    .base_prefix = "electra.",
    .tokenizer = {.class = "ElectraTokenizer"},
    .site = family__bert_sites,
    .n_sites = FAMILY_BERT_N_SITES,
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = family__bert_forward,
};
