/* server/dialects/read.c - what several dialects read alike; see dialect.h. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/model/model.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"
#include "server/srv.h"

struct infer_item *infer_new_item(struct json_reader *p, struct infer *in, size_t n_inputs)
{
    struct infer_item *it = arena_alloc(p->a, 1, sizeof(*it));

    if (it) {
        it->spec = arena_alloc(p->a, 1, sizeof(*it->spec));
        it->input = arena_alloc(p->a, n_inputs, sizeof(*it->input));
    }
    if (!it || !it->spec || !it->input) {
        jr_nomem(p);
        return NULL;
    }
    it->n_specs = 1;
    it->n_inputs = n_inputs;
    infer_params_init(&it->params);
    in->item = it;
    in->n_items = 1;
    return it;
}

int infer_read_model(struct json_reader *p, const struct infer_source *src, const json_t *root,
                     bool is_needed, struct infer_spec *spec, const char **model)
{
    const json_t *v = json_object_get(root, "model");
    int rc = 0;

    if (!v && is_needed)
        return jr_fail(p, CORE_E_MISSING_FIELD, "model", "needed: a task, or the base's name");
    if (v)
        rc = jr_text(p, v, "model", model, NULL);
    else
        *model = src->base_name ? src->base_name : "base";
    if (rc < 0)
        return rc;
    if (!v || (src->base_name && !strcmp(*model, src->base_name))) {
        spec->task = "base";
        return 0;
    }
    return infer_read_spec(p, v, "model", spec);
}

static int read_one(struct json_reader *p, const json_t *v, const char *name, struct task_input *in)
{
    if (json_is_array(v)) {
        in->form = TASK_TOKENS;
        return jr_ids(p, v, name, &in->tokens, &in->n_tokens);
    }
    in->form = TASK_TEXT;
    return jr_text(p, v, name, &in->text, &in->n_text);
}

struct infer_item *infer_read_texts(struct json_reader *p, struct infer *in, const json_t *v,
                                    const char *name, bool only_text)
{
    const json_t *first = json_array_get(v, 0);
    const bool is_many = json_is_array(v) && !json_is_integer(first);
    struct infer_item *it;

    if (!v) {
        jr_fail(p, CORE_E_MISSING_FIELD, name, "needed");
        return NULL;
    }
    if ((json_is_array(v) && !first) || (!json_is_array(v) && !json_is_string(v)) ||
        (only_text && json_is_array(v) && !is_many)) {
        jr_fail(p, CORE_E_BAD_FIELD, name, "expected a string or an array of %s, not empty",
                only_text ? "strings" : "strings or of token ids");
        return NULL;
    }
    it = infer_new_item(p, in, is_many ? json_array_size(v) : 1);
    if (!it)
        return NULL;
    it->is_inputs = is_many;
    if (!is_many)
        return read_one(p, v, name, it->input) < 0 ? NULL : it;
    for (size_t i = 0; i < it->n_inputs; i++) {
        const json_t *one = json_array_get(v, i);
        char where[64];

        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        if (only_text && !json_is_string(one)) {
            jr_fail(p, CORE_E_BAD_FIELD, where, "expected a string");
            return NULL;
        }
        if (read_one(p, one, where, &it->input[i]) < 0)
            return NULL;
    }
    return it;
}

int infer_check_kind(const struct infer_call *call, unsigned kinds, struct core_err *err)
{
    const enum delta_kind kind = call->delta->head.kind;

    if (kinds & 1u << kind)
        return 0;
    return core_err_set_param(err, CORE_E_WRONG_KIND, "task",
                              "'%s' is a task of kind %s, which this route does not answer for",
                              call->spec->task, delta_kind_text(kind));
}
