/* adapters_store/ads_hash.c - the name of a version: SHA-256 of its content; and a sum that is
 * sooner made (core/base/sum.h), by which content that was hashed once is known again.
 *
 * Names are part of the content, and each name and each length is delimited, so
 * that no two different sets of files hash the same bytes. OpenSSL computes it (it
 * uses the CPU's instructions); no other file of this folder includes it. */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/sum.h"

/* The file with the smallest name above `after`. Quadratic, and n is small: it
 * spares a sorted copy, which could fail. */
static const struct core_file *next_by_name(const struct core_file *file, size_t n,
                                            const char *after)
{
    const struct core_file *best = NULL;

    for (size_t i = 0; i < n; i++)
        if ((!after || strcmp(file[i].name, after) > 0) &&
            (!best || strcmp(file[i].name, best->name) < 0))
            best = &file[i];
    return best;
}

static bool add_bytes(EVP_MD_CTX *c, const struct core_file *f, struct ads__pause *pause)
{
    for (size_t i = 0; i < f->n_bytes; i += ADS__PIECE) {
        const size_t left = f->n_bytes - i;

        ads__pause(pause);
        if (!EVP_DigestUpdate(c, (const char *)f->bytes + i, left < ADS__PIECE ? left : ADS__PIECE))
            return false;
    }
    return true;
}

static bool add_file(EVP_MD_CTX *c, const struct core_file *f, struct ads__pause *pause)
{
    unsigned char len[8];

    for (unsigned i = 0; i < 8; i++)
        len[i] = (unsigned char)((uint64_t)f->n_bytes >> (8 * i));
    return EVP_DigestUpdate(c, f->name, strlen(f->name) + 1) &&
           EVP_DigestUpdate(c, len, sizeof(len)) && add_bytes(c, f, pause);
}

int ads__content_hash(const struct core_file *file, size_t n, char out[ADS_VERSION_LEN + 1],
                      struct ads__pause *pause, struct core_err *err)
{
    unsigned char md[EVP_MAX_MD_SIZE];
    const struct core_file *f = NULL;
    unsigned n_md = 0;
    int rc = 0;
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    if (!c || !EVP_DigestInit_ex(c, EVP_sha256(), NULL)) {
        rc = core_err_nomem(err, "content hash");
        goto out;
    }
    while ((f = next_by_name(file, n, f ? f->name : NULL))) {
        if (!add_file(c, f, pause)) {
            rc = core_err_set(err, CORE_E_INTERNAL, "content hash: SHA-256 failed");
            goto out;
        }
    }
    if (!EVP_DigestFinal_ex(c, md, &n_md) || 2 * n_md != ADS_VERSION_LEN) {
        rc = core_err_set(err, CORE_E_INTERNAL, "content hash: SHA-256 failed");
        goto out;
    }
    for (unsigned i = 0; i < n_md; i++)
        snprintf(out + 2 * i, 3, "%02x", md[i]);
out:
    EVP_MD_CTX_free(c);
    return rc;
}

int ads_content_hash(const struct core_file *file, size_t n, char out[ADS_VERSION_LEN + 1],
                     struct core_err *err)
{
    return ads__content_hash(file, n, out, NULL, err);
}

/* ---- the sum -------------------------------------------------------------------------- */

uint64_t ads__content_sum(const struct core_file *file, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        const uint64_t pair[2] = {core_sum(file[i].name, strlen(file[i].name)),
                                  core_sum(file[i].bytes, file[i].n_bytes)};

        sum += core_sum(pair, sizeof(pair));
    }
    return sum ? sum : 1;
}
