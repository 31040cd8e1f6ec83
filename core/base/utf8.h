/* core/base/utf8.h - the little UTF-8 that every layer needs. Unicode
 * properties and normalisation are utf8proc's work (core/tok). */
#ifndef CORE_BASE_UTF8_H
#define CORE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes (1 to 4) of the well-formed character at s, at most n bytes;
 * 0 if the bytes are not one (truncated, overlong, surrogate, > U+10FFFF, n 0). */
size_t core_utf8_len(const char *s, size_t n);

/* Decodes the character at s into *cp; returns as core_utf8_len(). */
size_t core_utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Writes cp (a valid scalar value) to out; returns its 1 to 4 bytes. */
size_t core_utf8_encode(uint32_t cp, char out[4]);

/* True if all n bytes are well-formed UTF-8. */
bool core_utf8_valid(const char *s, size_t n);

/* Number of code points in well-formed text of n bytes. */
size_t core_utf8_count(const char *s, size_t n);

#endif
