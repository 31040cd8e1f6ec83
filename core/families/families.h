/* core/families/families.h - the families of models, one file each. What a family is:
 * core/model/arch.h. */
#ifndef CORE_FAMILIES_FAMILIES_H
#define CORE_FAMILIES_FAMILIES_H

#include "core/model/arch.h"

extern const struct model_arch family__bart;
extern const struct model_arch family__bert;
extern const struct model_arch family__deberta_v2;
extern const struct model_arch family__distilbert;
extern const struct model_arch family__electra;
extern const struct model_arch family__gemma2;
extern const struct model_arch family__gemma3;
extern const struct model_arch family__gpt2;
extern const struct model_arch family__llama;
extern const struct model_arch family__mbart;
extern const struct model_arch family__mistral;
extern const struct model_arch family__modernbert;
extern const struct model_arch family__phi3;
extern const struct model_arch family__qwen2;
extern const struct model_arch family__qwen3;
extern const struct model_arch family__roberta;
extern const struct model_arch family__t5;
extern const struct model_arch family__xlm_roberta;

#endif
