/* core/tok/tok_gguf.h - reading tokenizers from GGUF metadata, shared by its two files. */
#ifndef CORE_TOK_TOK_GGUF_H
#define CORE_TOK_TOK_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;
struct gguf;
struct gguf_str;
struct tok;
struct tok_defaults;

bool tok__gguf_is(const struct gguf_str *s, const char *text);
/* Token i, which is UTF-8, and its enum tok__piece_type (NORMAL if the file has none). */
int tok__gguf_token(const struct gguf *g, size_t i, struct gguf_str *s, struct core_err *err);
int tok__gguf_type(const struct gguf *g, size_t i);
/* Unknown, control and user-defined tokens are found in text as they are. */
int tok__gguf_added(struct tok *tok, const struct gguf *g, size_t n,
                    const struct tok_defaults *dflt, struct core_err *err);
/* Whether a beginning and an end stand around a text, and their ids; `on` comes with
 * what holds if the file does not say. */
int tok__gguf_ends(const struct tok *tok, const struct gguf *g, bool on[2], int32_t id[2],
                   struct core_err *err);
/* Both around each text, as the file asks for them. */
int tok__gguf_template(struct tok *tok, const struct gguf *g, bool bos_by_default,
                       struct core_err *err);

/* tokenizer.ggml.model "llama" and "t5" with n tokens (tok_gguf_spm.c). */
int tok__gguf_llama(struct tok *tok, const struct gguf *g, size_t n,
                    const struct tok_defaults *dflt, struct core_err *err);
int tok__gguf_t5(struct tok *tok, const struct gguf *g, size_t n, const struct tok_defaults *dflt,
                 struct core_err *err);

#endif
