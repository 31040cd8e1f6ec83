/* core/base/pyjson.h - JSON files that Python wrote.
 *
 * Python's json module writes and reads more numbers than JSON or jansson know: `NaN`,
 * `Infinity`, `-Infinity`, integers of any length (transformers writes
 * "model_max_length": 1000000000000000019884624838656 where no length is known) and
 * reals that overflow to infinity. This is the one place that reads such files; bodies
 * of requests stay strict JSON.
 */
#ifndef CORE_BASE_PYJSON_H
#define CORE_BASE_PYJSON_H

#include <jansson.h>
#include <stddef.h>

/* The value of the text, the caller's; NULL and *why (never NULL) otherwise; then
 * json_error_code(why) is json_error_out_of_memory if memory was short. A number that
 * jansson cannot hold becomes what it can, so that a key that nobody reads does no harm:
 *
 *   an integer outside of 64 bits that a double can hold   the nearest real
 *   NaN, Infinity, -Infinity, and what overflows           the text "NaN", "Infinity"
 *                                                          or "-Infinity"
 *
 * A text is no number, so who needs one there refuses it by its key; null would be read
 * as the default. Of keys that stand twice the last counts, as in Python. All else is
 * jansson's: strict, at most 2,048 levels deep, no NUL and no lone surrogate in a text
 * (Python would read those two). Needs a second copy of the text only if there is such
 * a number, of at most 4 times its size. */
json_t *core_pyjson_load(const void *bytes, size_t n_bytes, json_error_t *why);

#endif
