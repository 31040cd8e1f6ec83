/* core/weights/safetensors_write.c - tensors to a safetensors file in memory: the header as
 * safetensors_read() has it, padded to 8 bytes, then the data in the order of the list. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/weights/weights.h"

static int add_entry(json_t *header, const struct tensor *t, size_t at)
{
    json_t *shape = json_array();

    for (unsigned i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->dim[i]));
    return json_object_set_new(header, t->name,
                               json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_type_text(t->type),
                                         "shape", shape, "data_offsets", (json_int_t)at,
                                         (json_int_t)at + (json_int_t)t->n_bytes));
}

int safetensors_write(const struct tensor_list *l, struct core_buf *out, struct core_err *err)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t n_header;
    size_t at = 0;
    char *text = NULL;
    int rc = header ? 0 : -1;

    for (size_t i = 0; rc == 0 && i < l->n; i++) {
        rc = add_entry(header, &l->t[i], at);
        at += l->t[i].n_bytes;
    }
    if (rc == 0)
        text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text)
        return core_err_nomem(err, "safetensors");
    n_header = (strlen(text) + 7) & ~(uint64_t)7;
    core_buf_add(out, &n_header, sizeof(n_header));
    core_buf_str(out, text);
    core_buf_add(out, "       ", (size_t)n_header - strlen(text));
    free(text); /* jansson's own allocation */
    for (size_t i = 0; i < l->n; i++)
        core_buf_add(out, l->t[i].data, l->t[i].n_bytes);
    return out->is_short ? core_err_nomem(err, "safetensors") : 0;
}
