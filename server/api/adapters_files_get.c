/* server/api/adapters_files_get.c - GET /v1/adapters/{task}/files[?version=]: the stored files as a
 * tar, byte for byte as they were uploaded, so that uploading it gives the same version. They are
 * checked against their hash first, then streamed from their mappings. */
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/routes.h"
#include "server/srv.h"

enum { BLOCK = 512, END_BLOCKS = 2 };

struct get {
    struct srv_work run; /* first: r->state */
    const char *version; /* or NULL: the current one */
    struct ads_files files;
    /* Of the stream: */
    size_t i;  /* the file that is being sent; files.n: the end */
    size_t at; /* bytes of its part of the tar */
    unsigned char header[BLOCK];
};

static size_t rounded(size_t n)
{
    return (n + BLOCK - 1) / BLOCK * BLOCK;
}

/* Bytes of the tar that file i takes; those behind the last are zeros. */
static size_t part_size(const struct get *g, size_t i)
{
    return i < g->files.n ? BLOCK + rounded(g->files.file[i].n_bytes) : END_BLOCKS * BLOCK;
}

/* POSIX ustar; owner and times say nothing, so that a version has one tar. */
static void make_header(struct get *g)
{
    const struct core_file *f = &g->files.file[g->i];
    char *h = (char *)g->header;
    unsigned sum = 0;

    memset(h, 0, BLOCK);
    snprintf(h, 100, "%.99s", f->name); /* kept names are short, adapters_store/ads_pick.c */
    snprintf(h + 100, 8, "%07o", 0644u);
    snprintf(h + 108, 8, "%07o", 0u);
    snprintf(h + 116, 8, "%07o", 0u);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)f->n_bytes & 077777777777ull);
    snprintf(h + 136, 12, "%011o", 0u);
    memset(h + 148, ' ', 8);
    h[156] = '0';
    snprintf(h + 257, 6, "ustar");
    h[263] = h[264] = '0';
    for (int i = 0; i < BLOCK; i++)
        sum += g->header[i];
    snprintf(h + 148, 8, "%06o", sum);
}

/* Copies what stands at `at` of the current part, n bytes at most; returns how many. */
static size_t copy_part(struct get *g, char *p, size_t n)
{
    const struct core_file *f = g->i < g->files.n ? &g->files.file[g->i] : NULL;
    const void *from = NULL; /* NULL: zeros */
    size_t left = part_size(g, g->i) - g->at;

    if (f && g->at < BLOCK) {
        if (g->at == 0)
            make_header(g);
        from = g->header + g->at;
        left = BLOCK - g->at;
    } else if (f && g->at - BLOCK < f->n_bytes) {
        from = (const char *)f->bytes + (g->at - BLOCK);
        left = f->n_bytes - (g->at - BLOCK);
    }
    n = n < left ? n : left;
    if (from)
        memcpy(p, from, n);
    else
        memset(p, 0, n);
    return n;
}

static ssize_t read_tar(struct srv_request *r, char *p, size_t n)
{
    struct get *g = r->state;
    size_t done = 0;

    while (done < n && g->i <= g->files.n) {
        const size_t got = copy_part(g, p + done, n - done);

        done += got;
        g->at += got;
        if (g->at == part_size(g, g->i)) {
            g->i++;
            g->at = 0;
        }
    }
    return done ? (ssize_t)done : -1;
}

static int open_work(struct srv_work *w)
{
    struct get *g = (struct get *)w;

    return ads_files_open(w->r->srv->store, w->r->task, g->version, &g->files, &w->err);
}

static void open_answer(struct srv_work *w)
{
    const struct get *g = (struct get *)w;
    struct srv_request *r = w->r;
    char text[ADS_NAME_MAX + 64];

    snprintf(text, sizeof(text), "attachment; filename=\"%s.tar\"", r->task);
    srv_reply_header(r, "Content-Disposition", text);
    r->reply.status = 200;
    r->reply.type = "application/x-tar";
    r->reply.read = read_tar;
    for (size_t i = 0; i <= g->files.n; i++)
        r->reply.n_read += part_size(g, i);
}

static void release(struct srv_request *r)
{
    ads_files_release(&((struct get *)r->state)->files);
}

enum srv_outcome srv_adapters_files_get(struct srv_request *r)
{
    struct get *g = arena_alloc(&r->arena, 1, sizeof(*g));
    struct core_err err = {0};

    if (!g || adapters_read_version(r, &g->version, &err) < 0) {
        if (!g)
            core_err_nomem(&err, "request");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    g->run.work = open_work;
    g->run.answer = open_answer;
    r->state = g;
    r->state_free = release;
    snprintf(r->label, sizeof(r->label), "%s", r->task);
    return srv_work_start(r, &g->run, SRV_WORK_DISK);
}
