/* core/tok/tok_pattern.h - the patterns that files name, and what PCRE2 gets. */
#ifndef CORE_TOK_TOK_PATTERN_H
#define CORE_TOK_TOK_PATTERN_H

#include <stddef.h>

struct core_buf;
struct core_err;

/* The pre-tokenizer patterns of GPT-2, Llama 3 and Qwen 2, as the library and
 * their tokenizer.json files spell them. */
extern const char tok__pattern_gpt2[], tok__pattern_llama3[], tok__pattern_qwen2[];

/* Appends to *out a PCRE2 pattern (UTF, UCP) that means what the Oniguruma
 * pattern (Ruby syntax, UTF-8) means. CORE_E_ADAPTER_UNSUPPORTED names a
 * construct that has no such translation. */
int tok__pattern_rewrite(const char *pattern, size_t n, struct core_buf *out, struct core_err *err);

#endif
