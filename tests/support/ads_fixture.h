/* tests/support/ads_fixture.h - a store in a directory of its own, on the small BERT
 * base, and as many different real adapters as a test needs. */
#ifndef TESTS_SUPPORT_ADS_FIXTURE_H
#define TESTS_SUPPORT_ADS_FIXTURE_H

#include "adapters_store/ads_store.h"
#include "core/base/buf.h"

struct ads_fx {
    char dir[256];
    struct model *model;
    struct core_map map[2]; /* config and weights of a LoRA that PEFT saved */
    struct ads_store *store;
    struct ads_options opt;
};

/* The directory and the model; the store is not open yet. */
void ads_fx_init(struct ads_fx *fx);
void ads_fx_release(struct ads_fx *fx); /* closes; removes the directory */
void ads_fx_open(struct ads_fx *fx);
void ads_fx_close(struct ads_fx *fx);
void ads_fx_reopen(struct ads_fx *fx);

/* Adapter number k: the same weights, other labels, hence another content. */
struct ads_upload {
    struct core_file file[3];
    char task_json[64];
    char version[ADS_VERSION_LEN + 1];
};
void ads_fx_upload(const struct ads_fx *fx, struct ads_upload *up, unsigned k);

/* Puts adapter k; the code. info may be NULL. */
int ads_fx_put(struct ads_fx *fx, const char *task, unsigned k, struct ads_info *info);
/* The same and expects success. */
void ads_fx_must_put(struct ads_fx *fx, const char *task, unsigned k);

/* ads_acquire() that waits; the code. */
int ads_fx_acquire(struct ads_fx *fx, const char *task, const char *version,
                   const struct ads_adapter **out);
/* acquire and release at once, expecting success */
void ads_fx_touch(struct ads_fx *fx, const char *task);

bool ads_fx_is_resident(struct ads_fx *fx, const char *task);
struct ads_stats ads_fx_stats(struct ads_fx *fx);

/* Everything that must survive a restart, as text: tasks, histories, programs. Times
 * of creation only if asked for: two runs of one operation differ in them. */
void ads_fx_dump(struct ads_fx *fx, bool with_times, struct core_buf *out);
/* Copies the closed store to dir + suffix, or makes it what that copy is. */
void ads_fx_save(const struct ads_fx *fx);
void ads_fx_restore(const struct ads_fx *fx);
/* Entries in a subdirectory of the store. */
unsigned ads_fx_count(const struct ads_fx *fx, const char *sub);
/* Path of versions/<version of adapter k>/<file>, in a static buffer. */
const char *ads_fx_path(const struct ads_fx *fx, unsigned k, const char *file);
/* Flips one byte of the weights of adapter k. */
void ads_fx_damage(const struct ads_fx *fx, unsigned k);

#endif
