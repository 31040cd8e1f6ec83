/* tests/core/delta/peft_fixture.h - PEFT adapters made of tensors, for the tests of its
 * reader. Header only, like delta_fixture.h. */
#ifndef TESTS_CORE_DELTA_PEFT_FIXTURE_H
#define TESTS_CORE_DELTA_PEFT_FIXTURE_H

#include "tests/core/delta/delta_fixture.h"

#define LAYER0 "base_model.model.bert.encoder.layer.0."
#define LAYER2 "base_model.model.bert.encoder.layer.2."
#define QUERY LAYER0 "attention.self.query"
#define EMBEDDINGS "base_model.model.bert.embeddings.word_embeddings"
#define POOLER "base_model.model.bert.pooler."

MAYBE_UNUSED static const struct made head[] = {
    {.name = "base_model.model.classifier.weight", .d0 = 3, .d1 = 40, .base = 0.5f},
    {.name = "base_model.model.classifier.bias", .d0 = 3, .base = -1.0f},
};

/* A pair in the last layer: an adapter needs a tensor of its method. */
MAYBE_UNUSED static const struct made last_pair[] = {
    {.name = LAYER2 "output.dense.lora_A.weight", .d0 = 1, .d1 = 90},
    {.name = LAYER2 "output.dense.lora_B.weight", .d0 = 40, .d1 = 1},
};

/* One LoRA pair of rank 4 on the first query, and a classifier. */
MAYBE_UNUSED static const struct made pair[] = {
    {.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 40, .base = 0.1f},
    {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4, .base = -0.3f},
    {.name = "base_model.model.classifier.weight", .d0 = 3, .d1 = 40, .base = 0.5f},
    {.name = "base_model.model.classifier.bias", .d0 = 3, .base = -1.0f},
    {0},
};

MAYBE_UNUSED static void put_config(struct adapter *a, const char *type, const char *more)
{
    char text[20000];

    snprintf(text, sizeof(text), "{\"peft_type\": \"%s\", \"task_type\": \"SEQ_CLS\"%s%s}", type,
             *more ? ", " : "", more);
    put_text(a, "adapter_config.json", text);
}

MAYBE_UNUSED static void make(struct adapter *a, const char *type, const char *more,
                              const struct made *t)
{
    put_config(a, type, more);
    put_tensors(a, "adapter_model.safetensors", t);
}

#endif
