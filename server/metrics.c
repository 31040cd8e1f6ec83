/* server/metrics.c - see metrics.h.
 *
 * Who is busy: every slot and every candidate has a `recent` count that halves every
 * ten seconds. Candidates are the tasks without series that were seen last; a new
 * one takes the place of the least busy (the "space saving" scheme), so a busy task
 * gets in whatever the number of others. */
#include "server/metrics.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/lock.h"

enum { N_CODES = 16, N_CANDIDATES = 64 };
static const uint64_t change_ns = 10000000000u;

struct counts {
    struct {
        unsigned status; /* 0 = free */
        uint64_t n;
    } code[N_CODES];
    struct metrics_histogram seconds;
    uint64_t n_prompt, n_completion, n_loads_ok, n_loads_failed;
};

struct metrics_task {
    char name[ADS_NAME_MAX + 1];
    uint64_t recent;
    unsigned n_holders; /* a held slot changes no hands */
    int n_waiting, n_running;
    struct counts c;
};

struct candidate {
    char name[ADS_NAME_MAX + 1];
    uint64_t recent;
};

struct metrics {               /* all of it: synced_data */
    struct core_mutex lock;    /* CORE_RANK_METRICS */
    struct metrics_task *task; /* [n_max + 1], task[0] is "other" */
    unsigned n, n_max;
    uint32_t *index; /* hash table of slots, 0 = free; n_index a power of two */
    size_t n_index;
    struct candidate candidate[N_CANDIDATES];
    struct metrics_histogram queue, first_token, gap, load;
    uint64_t changed_ns;
    double changed_at; /* Unix time of the last change of waiting or running tasks */
};

int metrics_new(struct metrics **out, unsigned n_tasks, struct core_err *err)
{
    struct metrics *m = core_calloc(1, sizeof(*m));

    if (!m)
        return core_err_nomem(err, "metrics");
    core_mutex_init(&m->lock, CORE_RANK_METRICS);
    m->n_max = n_tasks;
    m->n_index = 16;
    while (m->n_index < 2 * (size_t)n_tasks)
        m->n_index *= 2;
    m->task = core_calloc((size_t)n_tasks + 1, sizeof(*m->task));
    m->index = core_calloc(m->n_index, sizeof(*m->index));
    if (!m->task || !m->index) {
        metrics_free(&m);
        return core_err_nomem(err, "metrics");
    }
    snprintf(m->task[0].name, sizeof(m->task[0].name), "other");
    m->n = 1;
    *out = m;
    return 0;
}

void metrics_free(struct metrics **m)
{
    if (!*m)
        return;
    core_free((*m)->task);
    core_free((*m)->index);
    core_mutex_destroy(&(*m)->lock);
    core_free(*m);
    *m = NULL;
}

/* The place of `name` in the index: its slot's, or the free one where it belongs. */
static size_t place_of(const struct metrics *m, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    size_t i;

    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    i = (size_t)(h ^ h >> 32) & (m->n_index - 1);
    while (m->index[i] && strcmp(m->task[m->index[i]].name, name) != 0)
        i = (i + 1) & (m->n_index - 1);
    return i;
}

static struct metrics_task *slot_of(struct metrics *m, const char *task)
{
    const size_t place = place_of(m, task);

    if (m->index[place])
        return &m->task[m->index[place]];
    if (m->n > m->n_max)
        return NULL;
    m->index[place] = m->n;
    snprintf(m->task[m->n].name, sizeof(m->task[m->n].name), "%s", task);
    return &m->task[m->n++];
}

static void note_candidate(struct metrics *m, const char *task)
{
    struct candidate *least = &m->candidate[0];

    for (size_t i = 0; i < N_CANDIDATES; i++) {
        struct candidate *c = &m->candidate[i];

        if (!strcmp(c->name, task)) {
            c->recent++;
            return;
        }
        if (c->recent < least->recent)
            least = c;
    }
    snprintf(least->name, sizeof(least->name), "%s", task);
    least->recent++;
}

struct metrics_task *metrics_acquire(struct metrics *m, const char *task)
{
    struct metrics_task *t = NULL;

    core_lock(&m->lock);
    if (task && strcmp(task, m->task[0].name) != 0) { /* a task may be called "other" */
        t = slot_of(m, task);
        if (!t)
            note_candidate(m, task);
    }
    if (!t)
        t = &m->task[0];
    t->n_holders++;
    t->recent++;
    core_unlock(&m->lock);
    return t;
}

void metrics_release(struct metrics *m, struct metrics_task *t)
{
    core_lock(&m->lock);
    t->n_holders--;
    core_unlock(&m->lock);
}

static void add_code(struct counts *c, unsigned status, uint64_t n)
{
    for (size_t i = 0; i < N_CODES; i++) {
        if (c->code[i].status == status || !c->code[i].status) {
            c->code[i].status = status;
            c->code[i].n += n;
            return;
        }
    }
}

static void add_histogram(struct metrics_histogram *to, const struct metrics_histogram *h)
{
    for (size_t i = 0; i < METRICS_BUCKETS; i++)
        to->bucket[i] += h->bucket[i];
    to->sum += h->sum;
}

void metrics_observe(struct metrics_histogram *h, double seconds)
{
    size_t i = 0;

    for (double bound = 1e-3; i < METRICS_BUCKETS - 1 && seconds > bound; bound *= 2)
        i++;
    h->bucket[i]++;
    h->sum += seconds;
}

void metrics_call(struct metrics *m, struct metrics_task *t, unsigned status, double seconds)
{
    core_lock(&m->lock);
    add_code(&t->c, status, 1);
    metrics_observe(&t->c.seconds, seconds);
    core_unlock(&m->lock);
}

void metrics_job(struct metrics *m, struct metrics_task *t, const struct metrics_job *j)
{
    core_lock(&m->lock);
    metrics_observe(&m->queue, j->queue_seconds);
    if (j->first_token_seconds >= 0)
        metrics_observe(&m->first_token, j->first_token_seconds);
    if (j->gaps)
        add_histogram(&m->gap, j->gaps);
    t->c.n_prompt += j->n_prompt;
    t->c.n_completion += j->n_completion;
    core_unlock(&m->lock);
}

void metrics_load(struct metrics *m, struct metrics_task *t, bool is_ok, double seconds)
{
    core_lock(&m->lock);
    metrics_observe(&m->load, seconds);
    if (is_ok)
        t->c.n_loads_ok++;
    else
        t->c.n_loads_failed++;
    core_unlock(&m->lock);
}

static double unix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void metrics_waiting(struct metrics *m, struct metrics_task *t, int change)
{
    core_lock(&m->lock);
    t->n_waiting += change;
    m->changed_at = unix_now();
    core_unlock(&m->lock);
}

void metrics_running(struct metrics *m, struct metrics_task *t, int change)
{
    core_lock(&m->lock);
    t->n_running += change;
    m->changed_at = unix_now();
    core_unlock(&m->lock);
}

/* ---- who has series --------------------------------------------------------------- */

static void index_again(struct metrics *m)
{
    memset(m->index, 0, m->n_index * sizeof(*m->index));
    for (unsigned i = 1; i < m->n; i++)
        m->index[place_of(m, m->task[i].name)] = i;
}

/* The counts of `t` go to "other"; the slot becomes the candidate's. */
static void hand_over(struct metrics *m, struct metrics_task *t, struct candidate *to)
{
    struct counts *other = &m->task[0].c;

    for (size_t i = 0; i < N_CODES && t->c.code[i].status; i++)
        add_code(other, t->c.code[i].status, t->c.code[i].n);
    add_histogram(&other->seconds, &t->c.seconds);
    other->n_prompt += t->c.n_prompt;
    other->n_completion += t->c.n_completion;
    other->n_loads_ok += t->c.n_loads_ok;
    other->n_loads_failed += t->c.n_loads_failed;
    *t = (struct metrics_task){.recent = to->recent};
    memcpy(t->name, to->name, sizeof(t->name));
    *to = (struct candidate){.recent = 0};
    index_again(m);
}

void metrics_tick(struct metrics *m, uint64_t now_ns)
{
    core_lock(&m->lock);
    if (now_ns - m->changed_ns < change_ns)
        goto out;
    m->changed_ns = now_ns;
    for (size_t i = 0; i < N_CANDIDATES; i++) {
        struct candidate *c = &m->candidate[i];
        struct metrics_task *least = NULL;

        for (unsigned j = 1; c->recent && j < m->n; j++)
            if (!m->task[j].n_holders && (!least || m->task[j].recent < least->recent))
                least = &m->task[j];
        if (least && c->recent > least->recent)
            hand_over(m, least, c);
        c->recent /= 2;
    }
    for (unsigned j = 0; j < m->n; j++)
        m->task[j].recent /= 2;
out:
    core_unlock(&m->lock);
}

/* ---- text ------------------------------------------------------------------------- */

void metrics_head(struct core_buf *out, const char *name, const char *type, const char *help)
{
    core_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_histogram(struct core_buf *out, const char *name, const char *task,
                            const struct metrics_histogram *h)
{
    char with[ADS_NAME_MAX + 16] = "", alone[ADS_NAME_MAX + 16] = "";
    uint64_t n = 0;
    double bound = 1e-3;

    if (task) {
        snprintf(with, sizeof(with), "task=\"%s\",", task);
        snprintf(alone, sizeof(alone), "{task=\"%s\"}", task);
    }
    for (size_t i = 0; i < METRICS_BUCKETS; i++, bound *= 2) {
        n += h->bucket[i];
        if (i < METRICS_BUCKETS - 1)
            core_buf_printf(out, "%s_bucket{%sle=\"%.9g\"} %llu\n", name, with, bound,
                            (unsigned long long)n);
    }
    core_buf_printf(out, "%s_bucket{%sle=\"+Inf\"} %llu\n%s_sum%s %.9g\n%s_count%s %llu\n", name,
                    with, (unsigned long long)n, name, alone, h->sum, name, alone,
                    (unsigned long long)n);
}

static void write_counts(const struct metrics *m, struct core_buf *out)
{
    metrics_head(out, "peftd_requests_total", "counter",
                 "Calls answered, by task and HTTP status.");
    for (unsigned i = 0; i < m->n; i++)
        for (size_t j = 0; j < N_CODES && m->task[i].c.code[j].status; j++)
            core_buf_printf(out, "peftd_requests_total{task=\"%s\",code=\"%u\"} %llu\n",
                            m->task[i].name, m->task[i].c.code[j].status,
                            (unsigned long long)m->task[i].c.code[j].n);
    metrics_head(out, "peftd_tokens_total", "counter", "Tokens read and produced.");
    for (unsigned i = 0; i < m->n; i++)
        core_buf_printf(out,
                        "peftd_tokens_total{task=\"%s\",kind=\"prompt\"} %llu\n"
                        "peftd_tokens_total{task=\"%s\",kind=\"completion\"} %llu\n",
                        m->task[i].name, (unsigned long long)m->task[i].c.n_prompt, m->task[i].name,
                        (unsigned long long)m->task[i].c.n_completion);
    metrics_head(out, "peftd_adapter_loads_total", "counter",
                 "Calls that waited for their adapter to be loaded.");
    for (unsigned i = 0; i < m->n; i++)
        core_buf_printf(out,
                        "peftd_adapter_loads_total{task=\"%s\",result=\"ok\"} %llu\n"
                        "peftd_adapter_loads_total{task=\"%s\",result=\"error\"} %llu\n",
                        m->task[i].name, (unsigned long long)m->task[i].c.n_loads_ok,
                        m->task[i].name, (unsigned long long)m->task[i].c.n_loads_failed);
}

static void write_names(const struct metrics *m, struct core_buf *out, bool running)
{
    const char *comma = "";

    for (unsigned i = 1; i < m->n; i++) {
        if ((running ? m->task[i].n_running : m->task[i].n_waiting) > 0 &&
            strcmp(m->task[i].name, "base") != 0) {
            core_buf_printf(out, "%s%s", comma, m->task[i].name);
            comma = ",";
        }
    }
}

void metrics_write(struct metrics *m, struct core_buf *out)
{
    core_lock(&m->lock);
    write_counts(m, out);
    metrics_head(out, "peftd_request_seconds", "histogram", "Time from request to answer.");
    for (unsigned i = 0; i < m->n; i++)
        write_histogram(out, "peftd_request_seconds", m->task[i].name, &m->task[i].c.seconds);
    metrics_head(out, "peftd_queue_seconds", "histogram",
                 "Time an input waited for its first row.");
    write_histogram(out, "peftd_queue_seconds", NULL, &m->queue);
    metrics_head(out, "peftd_time_to_first_token_seconds", "histogram",
                 "Time from queue to the first token.");
    write_histogram(out, "peftd_time_to_first_token_seconds", NULL, &m->first_token);
    metrics_head(out, "peftd_inter_token_seconds", "histogram", "Time between two tokens.");
    write_histogram(out, "peftd_inter_token_seconds", NULL, &m->gap);
    metrics_head(out, "peftd_adapter_load_seconds", "histogram",
                 "Time a call waited for its adapter to be loaded.");
    write_histogram(out, "peftd_adapter_load_seconds", NULL, &m->load);
    metrics_head(out, "vllm:lora_requests_info", "gauge",
                 "Adapters in use, for routers that know vLLM; the value is the last change.");
    core_buf_printf(out, "vllm:lora_requests_info{max_lora=\"%u\",running_lora_adapters=\"",
                    m->n_max);
    write_names(m, out, true);
    core_buf_str(out, "\",waiting_lora_adapters=\"");
    write_names(m, out, false);
    core_buf_printf(out, "\"} %.3f\n", m->changed_at);
    core_unlock(&m->lock);
}
