/* tests/support/temp_dir.h - one folder of a test's own, empty at first. */
#ifndef TESTS_SUPPORT_TEMP_DIR_H
#define TESTS_SUPPORT_TEMP_DIR_H

#include <stddef.h>

/* Its path between temp_dir_make() and temp_dir_remove(), which a fixture calls. */
extern char temp_dir[64];

void temp_dir_make(void);
void temp_dir_remove(void); /* with all that it holds */

/* Path of a name in it, in a static buffer that the next call overwrites. */
const char *temp_dir_path(const char *name);
/* Writes a file there, and the folders above it if the name has slashes; replaces one. */
void temp_dir_write(const char *name, const void *bytes, size_t n);

#endif
