/* server/json_writer.h - JSON text straight into a buffer, for answers.
 *
 * An answer is mostly numbers (64 embeddings are 24,576 of them), so no tree is
 * built: each call appends. Commas are the writer's business. A failed allocation
 * is remembered by the buffer (core_buf.is_short); check once at the end.
 *
 *     jw_object(&w); jw_key(&w, "label"); jw_cstr(&w, "good"); jw_object_end(&w);
 *
 * One owner, no threads.
 */
#ifndef SERVER_JSON_WRITER_H
#define SERVER_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_buf;

struct json_writer {
    struct core_buf *out; /* borrowed */
    bool needs_comma;     /* a value stands before, in the same object or array */
    bool has_nan;         /* a NaN or infinity was written as null: a server's fault */
};

void jw_object(struct json_writer *w);
void jw_object_end(struct json_writer *w);
void jw_array(struct json_writer *w);
void jw_array_end(struct json_writer *w);
/* `name` may be any well-formed UTF-8. */
void jw_key(struct json_writer *w, const char *name);

/* Well-formed UTF-8 of n bytes, NUL allowed. */
void jw_str(struct json_writer *w, const char *s, size_t n);
void jw_cstr(struct json_writer *w, const char *s);
void jw_bool(struct json_writer *w, bool v);
void jw_null(struct json_writer *w);
void jw_uint(struct json_writer *w, uint64_t v);
void jw_int(struct json_writer *w, int64_t v);
/* Nine significant digits: reading it back gives the same float. */
void jw_float(struct json_writer *w, float v);
void jw_floats(struct json_writer *w, const float *v, size_t n); /* as an array */
void jw_double(struct json_writer *w, double v);
/* JSON text that is already there. */
void jw_raw(struct json_writer *w, const char *json, size_t n);

/* Writes v as jw_float does, without a final 0; returns the count. v must be finite. All of
 * out[JW_FLOAT_MAX] may be written to. */
enum { JW_FLOAT_MAX = 24 };
size_t jw__format_float(float v, char *out);

#endif
