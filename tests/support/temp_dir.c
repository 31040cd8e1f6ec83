/* tests/support/temp_dir.c - see temp_dir.h. */
#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_dir.h"

char temp_dir[64];

void temp_dir_make(void)
{
    strcpy(temp_dir, P_tmpdir "/peftd-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(temp_dir));
}

static int remove_entry(const char *path, const struct stat *sb, int kind, struct FTW *at)
{
    (void)sb;
    (void)kind;
    (void)at;
    return remove(path);
}

void temp_dir_remove(void)
{
    ck_assert_int_eq(nftw(temp_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

const char *temp_dir_path(const char *name)
{
    static char path[512];
    const int n = snprintf(path, sizeof(path), "%s/%s", temp_dir, name);

    ck_assert(n > 0 && (size_t)n < sizeof(path));
    return path;
}

void temp_dir_write(const char *name, const void *bytes, size_t n)
{
    char path[512];
    FILE *f;

    strcpy(path, temp_dir_path(name));
    for (char *p = path + strlen(temp_dir) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}
