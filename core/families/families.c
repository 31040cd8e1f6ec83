/* core/families/families.c - the families that there are. A new one is a file beside this
 * one and a line in this table. */
#include "core/families/families.h"

const struct model_arch *const model_families[] = {
    &family__bart,
    &family__bert,
    &family__deberta_v2,
    &family__distilbert,
    &family__electra,
    &family__gemma2,
    &family__gemma3,
    &family__gpt2,
    &family__llama,
    &family__mbart,
    &family__mistral,
    &family__modernbert,
    &family__phi3,
    &family__qwen2,
    &family__qwen3,
    &family__roberta,
    &family__t5,
    &family__xlm_roberta,
    NULL,
};
