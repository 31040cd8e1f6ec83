/* core/tok/tok_json.h - reading fields of tokenizer.json, shared by its two files. */
#ifndef CORE_TOK_TOK_JSON_H
#define CORE_TOK_TOK_JSON_H

#include <jansson.h>
#include <stdbool.h>

struct core_err;
struct tok;

/* Optional fields: an absent or null one is `otherwise`; one of another type is
 * CORE_E_ADAPTER_INVALID with the name of the object's "type" and of the field. */
int tok__json_bool(const json_t *o, const char *key, bool otherwise, bool *out,
                   struct core_err *err);
int tok__json_int(const json_t *o, const char *key, json_int_t otherwise, json_int_t *out,
                  struct core_err *err);
/* *out is borrowed; NULL stands for absent. */
int tok__json_str(const json_t *o, const char *key, const char *otherwise, const char **out,
                  struct core_err *err);
/* "type" of a stage, or "?" */
const char *tok__json_type(const json_t *o);
int tok__json_unsupported(const char *what, const json_t *o, struct core_err *err);

/* The stages of a tokenizer; each takes a null or absent object as "none". */
int tok__json_normalizer(struct tok *tok, const json_t *o, struct core_err *err);
int tok__json_pretokenizer(struct tok *tok, const json_t *o, struct core_err *err);
int tok__json_post(struct tok *tok, const json_t *o, struct core_err *err);
int tok__json_decoder(struct tok *tok, const json_t *o, struct core_err *err);

#endif
