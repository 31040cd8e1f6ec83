/* core/base/sum.h - a 64-bit sum of bytes at the speed of memory, to notice damage.
 *
 * A change within eight bytes, counted from the first, always changes the sum; damage in more
 * places (bytes that are moved, missing or zeroed) goes unnoticed once in some 2^64 times. Nothing
 * here resists who chooses bytes on purpose: versions of adapters are named by SHA-256. Numbers are
 * read in the machine's byte order, so sums of two orders differ. Sums stand in files
 * (core/model/packed.h): another arithmetic is another version of these. Threads: all. */
#ifndef CORE_BASE_SUM_H
#define CORE_BASE_SUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t core_sum(const void *bytes, size_t n_bytes);

#endif
