/* Whatever the bytes: no crash; and what jansson reads itself is read the same, so that the
 * pass for Python's numbers can only add files, never change one. */
#include <stdint.h>
#include <stdlib.h>

#include "core/base/pyjson.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    json_error_t why, plain_why;
    json_t *j = core_pyjson_load(bytes, n, &why);
    json_t *plain = json_loadb(n ? (const char *)bytes : "", n, 0, &plain_why);

    if (!j && !why.text[0])
        abort();
    if (plain && (!j || !json_equal(j, plain)))
        abort();
    json_decref(j);
    json_decref(plain);
    return 0;
}
