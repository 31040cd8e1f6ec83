/* core/tok/tok_work.c - the buffers of one encode: text with origins, splits,
 * tokens. All grow by doubling and remember a failure, so that stages read as if
 * memory were endless; tok__run() checks after each. Next: tok_stage.c. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

bool tok__grow(void *p, size_t *cap, size_t n, size_t size)
{
    size_t want = *cap < 16 ? 16 : *cap;
    size_t n_bytes;
    void *old, *new;

    if (n <= *cap)
        return true;
    while (want < n)
        want = want > n / 2 ? n : want * 2;
    if (want < *cap + *cap / 2)
        want = *cap + *cap / 2;
    if (!core_mul_size(want, size, &n_bytes))
        return false;
    memcpy(&old, p, sizeof(old)); /* p is the address of any pointer */
    new = core_realloc(old, n_bytes);
    if (!new)
        return false;
    memcpy(p, &new, sizeof(new));
    *cap = want;
    return true;
}

bool tok__text_reserve(struct tok__text *t, size_t n)
{
    size_t cap_at = t->cap;

    if (t->n + n <= t->cap)
        return true;
    if (t->n + n > t->n_max) {
        t->is_long = true;
        return false;
    }
    /* Both arrays grow by the same rule from the same capacity. */
    if (!t->is_short && tok__grow(&t->at, &cap_at, t->n + n, sizeof(*t->at)) &&
        tok__grow(&t->p, &t->cap, t->n + n, 1))
        return true;
    t->is_short = true;
    return false;
}

void tok__text_add(struct tok__text *t, const char *s, size_t n, uint32_t at)
{
    if (!tok__text_reserve(t, n))
        return;
    memcpy(t->p + t->n, s, n);
    for (size_t i = 0; i < n; i++)
        t->at[t->n + i] = at;
    t->n += n;
}

void tok__text_put(struct tok__text *t, uint32_t cp, uint32_t at)
{
    char s[4];

    tok__text_add(t, s, core_utf8_encode(cp, s), at);
}

void tok__text_copy(struct tok__text *t, const struct tok__text *src, uint32_t start, uint32_t end)
{
    const size_t n = end - start;

    if (n == 0 || !tok__text_reserve(t, n))
        return;
    memcpy(t->p + t->n, src->p + start, n);
    memcpy(t->at + t->n, src->at + start, n * sizeof(*t->at));
    t->n += n;
}

void tok__split_add(struct tok__splits *s, uint32_t start, uint32_t end, int32_t id)
{
    if (!tok__grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v))) {
        s->is_short = true;
        return;
    }
    s->v[s->n++] = (struct tok__split){.start = start, .end = end, .id = id};
}

size_t tok__get(const char *s, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    if (u[0] < 0xe0) {
        *cp = (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3f);
        return 2;
    }
    if (u[0] < 0xf0) {
        *cp = (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3f);
        return 3;
    }
    *cp = (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 |
          (uint32_t)(u[2] & 0x3f) << 6 | (u[3] & 0x3f);
    return 4;
}

/* White space, or the character that stands for a space in byte-level texts. */
static bool is_blank(uint32_t cp)
{
    return cp == tok__byte_char(' ') || (tok__class(cp) & TOK__SPACE) != 0;
}

static uint32_t count_lead(const char *s, size_t n)
{
    uint32_t count = 0, cp;

    for (size_t i = 0; i < n; count++) {
        const size_t len = tok__get(s + i, &cp);

        if (!is_blank(cp))
            break;
        i += len;
    }
    return count;
}

static uint32_t count_trail(const char *s, size_t n)
{
    uint32_t count = 0, cp;

    for (; n > 0; count++) {
        size_t i = n - 1;

        while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80)
            i--;
        tok__get(s + i, &cp);
        if (!is_blank(cp))
            break;
        n = i;
    }
    return count;
}

void tok__emit(struct tok__work *w, int32_t id, uint32_t start, uint32_t end, const char *s,
               size_t n)
{
    struct tok__tokens *out = w->out;
    struct tok__token t = {.id = id, .start = w->text.at[start]};

    t.end = end > start ? w->text.at[end - 1] + 1 : t.start;
    if (w->trims) {
        t.lead = count_lead(s, n);
        t.trail = count_trail(s, n);
    }
    if (!tok__grow(&out->v, &out->cap, out->n + 1, sizeof(*out->v))) {
        out->is_short = true;
        return;
    }
    out->v[out->n++] = t;
}

void tok__work_release(struct tok__work *w)
{
    tok__regex_work_release(w);
    core_free(w->text.p);
    core_free(w->text.at);
    core_free(w->spare.p);
    core_free(w->spare.at);
    core_free(w->list.v);
    core_free(w->next.v);
    core_free(w->items[0]);
    core_free(w->items[1]);
    core_free(w->symbols);
    core_free(w->heap);
    core_free(w->nodes);
    *w = (struct tok__work){0};
}
