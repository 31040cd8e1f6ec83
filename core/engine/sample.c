/* core/engine/sample.c - from logits to the next token. The order is transformers'
 * generate(): repetition penalty, temperature, top-k, top-p, min-p, draw. Runs on the
 * pool's workers, one row each; all state is the job's or the worker's. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/bits.h"
#include "core/engine/engine_internal.h"

enum { BLOCK = 256 }; /* logits whose largest is looked at before they are: 16 vectors of 16 */

static size_t n_blocks(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static size_t block_end(size_t b, size_t n)
{
    return (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
}

int engine__sampler_init(struct engine_sampler *s, size_t n_max, struct core_err *err)
{
    s->n_max = s->n_vocab = n_max;
    s->prob = core_alloc_pages(n_max * sizeof(float));
    s->raw = core_alloc_pages(n_max * sizeof(float));
    s->id = core_alloc_pages(n_max * sizeof(int32_t));
    s->seen = core_alloc_pages(n_max * sizeof(uint32_t));
    s->top = core_alloc_pages(n_blocks(n_max) * sizeof(float));
    return s->prob && s->raw && s->id && s->seen && s->top ? 0 : core_err_nomem(err, "sampling");
}

void engine__sampler_release(struct engine_sampler *s)
{
    core_free_pages(s->prob, s->n_max * sizeof(float));
    core_free_pages(s->raw, s->n_max * sizeof(float));
    core_free_pages(s->id, s->n_max * sizeof(int32_t));
    core_free_pages(s->seen, s->n_max * sizeof(uint32_t));
    core_free_pages(s->top, n_blocks(s->n_max) * sizeof(float));
}

/* Uniform in [0, 1): splitmix64 (Steele, Lea, Flood 2014), 53 bits. */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

float engine__tops(struct engine_sampler *s, const struct kern_table *k, const float *x)
{
    const size_t n = n_blocks(s->n_vocab);

    for (size_t b = 0; b < n; b++)
        s->top[b] = k->max(block_end(b, s->n_vocab) - b * BLOCK, x + b * BLOCK);
    return k->max(n, s->top);
}

/* The first of x, whose tops were found, that is max. */
static size_t argmax(const struct engine_sampler *s, const float *x, float max)
{
    for (size_t b = 0; b < n_blocks(s->n_vocab); b++)
        for (size_t i = b * BLOCK; s->top[b] == max && i < block_end(b, s->n_vocab); i++)
            if (x[i] == max)
                return i;
    return 0; /* only NaN: any id is as good */
}

static bool has_penalty(const struct engine_sampling *o)
{
    return o->repetition_penalty > 0.0f && o->repetition_penalty != 1.0f;
}

/* Divides positive logits of tokens that have occurred, multiplies negative ones
 * (Keskar et al. 2019); each token once. */
static void penalise(struct engine_sampler *s, const struct engine_job *job, float *logits)
{
    const float penalty = job->in.sampling.repetition_penalty;
    const size_t n = job->n_prompt + job->n_generated;

    s->stamp++;
    for (size_t i = job->n_soft; i < n; i++) {
        const int32_t id = job->ids[i];

        if (s->seen[id] == s->stamp)
            continue;
        s->seen[id] = s->stamp;
        logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* Puts logit i among the job's n_logprobs best, of which there are `have`; returns how many then.
 */
static unsigned rank(struct engine_job *job, unsigned have, size_t i, float logprob)
{
    const unsigned n = job->in.n_logprobs;
    unsigned at = have < n ? have++ : n - 1;

    for (; at > 0 && job->top_logprob[at - 1] < logprob; at--) {
        job->top_logprob[at] = job->top_logprob[at - 1];
        job->top_id[at] = job->top_id[at - 1];
    }
    job->top_logprob[at] = logprob;
    job->top_id[at] = (int32_t)i;
    return have;
}

/* The n_logprobs best of raw logits, whose tops were found, descending, and the normaliser. */
static float log_probs(struct engine_sampler *s, const struct kern_table *k, struct engine_job *job,
                       const float *logits, float max)
{
    const unsigned n = job->in.n_logprobs;
    unsigned have = 0;
    float norm;

    memcpy(s->prob, logits, s->n_vocab * sizeof(float));
    norm = max + logf(k->exp_sum(s->n_vocab, 1.0f, max, s->prob));
    for (size_t b = 0; b < n_blocks(s->n_vocab); b++) {
        if (have == n && s->top[b] - norm <= job->top_logprob[n - 1])
            continue;
        for (size_t i = b * BLOCK; i < block_end(b, s->n_vocab); i++)
            if (have < n || logits[i] - norm > job->top_logprob[n - 1])
                have = rank(job, have, i, logits[i] - norm);
    }
    return norm;
}

static double sum_of(size_t n, const float *x)
{
    double part[8] = {0};
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (unsigned j = 0; j < 8; j++)
            part[j] += (double)x[i + j];
    for (; i < n; i++)
        part[i % 8] += (double)x[i];
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

/* Draws from p [n], whose sum is `sum`; n if rounding leaves nothing. */
static size_t pick(const float *p, size_t n, double sum, uint64_t *rng)
{
    double at = draw(rng) * sum, part;
    size_t i = 0;

    while (i + BLOCK < n && (part = sum_of(BLOCK, p + i)) <= at) {
        at -= part;
        i += BLOCK;
    }
    for (; i < n; i++) {
        at -= (double)p[i];
        if (at < 0.0)
            return i;
    }
    return n;
}

/* Adds the tokens of p, whose tops were found, that have at least `least` and less than `below`
 * to the n candidates in prob and id; returns how many there are then, and adds what they have
 * to *sum. */
static size_t gather(struct engine_sampler *s, const float *p, float least, float below, size_t n,
                     double *sum)
{
    for (size_t b = 0; b < n_blocks(s->n_vocab); b++)
        for (size_t i = b * BLOCK; s->top[b] >= least && i < block_end(b, s->n_vocab); i++)
            if (p[i] >= least && p[i] < below) {
                s->prob[n] = p[i];
                s->id[n++] = (int32_t)i;
                *sum += (double)p[i];
            }
    return n;
}

struct engine_limits engine__limits(const struct engine_sampling *o, size_t n, float best)
{
    return (struct engine_limits){.k = o->top_k && o->top_k < n ? o->top_k : n,
                                  .p = o->top_p > 0.0f && o->top_p < 1.0f ? (double)o->top_p : 1.0,
                                  .min_p = fminf(o->min_p, best)};
}

struct candidates {
    size_t n;    /* in prob and id */
    float least; /* all have it, at least */
};

/* At least those of p [n_vocab], of which the largest is 1 and all are `total`, that the limits
 * leave. The best are gathered first, so a narrow choice looks at few blocks. */
static struct candidates find_candidates(struct engine_sampler *s, const float *p,
                                         const struct engine_limits *l, double total)
{
    enum { STEP = 16 }; /* each step looks at all tops; a wide one gathers more than is needed */
    const bool is_k = l->k < s->n_vocab; /* top-p counts within the k best then, so k are needed */
    const float last = fmaxf(FLT_MIN, is_k ? 0.0f : l->min_p);
    struct candidates c = {.least = 1.0f};
    float below = INFINITY;
    double sum = 0.0;

    do {
        c.least = fmaxf(c.least / STEP, last);
        c.n = gather(s, p, c.least, below, c.n, &sum);
        below = c.least;
    } while (c.least > last && (is_k ? c.n < l->k : sum < l->p * total));
    return c;
}

/* What candidates were split into: from `at` on, those that have less. */
struct halves {
    size_t at;
    double mass;       /* of those before */
    float least, most; /* of those before the least, of the others the most; if there are any */
};

/* Moves candidates of [from, end) that have `least` at least in front of the others. */
static struct halves split(struct engine_sampler *s, size_t from, size_t end, float least)
{
    struct halves h = {.at = from, .least = INFINITY};

    for (size_t i = from; i < end; i++) { /* without a branch: which way it goes is chance */
        const float p = s->prob[i];
        const int32_t id = s->id[i];
        const bool is_good = p >= least;
        const float good = is_good ? p : INFINITY, bad = is_good ? 0.0f : p;

        s->prob[i] = s->prob[h.at];
        s->id[i] = s->id[h.at];
        s->prob[h.at] = p;
        s->id[h.at] = id;
        h.at += is_good;
        h.mass += is_good ? (double)p : 0.0;
        h.least = good < h.least ? good : h.least;
        h.most = bad > h.most ? bad : h.most;
    }
    return h;
}

/* Moves the best candidates to the front: the fewest that are `enough` together, by mass
 * or as many; returns how many. Halves the range of values in which the last of them is, by the
 * bits of positive floats, which are ordered as these are: 30 times at most, whatever the values.
 */
static size_t best_of(struct engine_sampler *s, const struct candidates *c, bool by_mass,
                      double enough)
{
    uint32_t low = core_bits_of(c->least),
             high = core_bits_of(1.0f) + 1; /* of candidates [from, end) */
    size_t from = 0, end = c->n;
    double have = 0.0;

    while (end - from > 1 && high - low > 1) {
        const struct halves h = split(s, from, end, core_float_of(low + (high - low) / 2));
        const double part = by_mass ? h.mass : (double)(h.at - from);

        if (have + part >= enough) {
            end = h.at;
            low = core_bits_of(h.least);
        } else {
            from = h.at;
            high = core_bits_of(h.most) + 1;
            have += part;
        }
    }
    for (; from < end && have < enough; from++) /* all alike */
        have += by_mass ? (double)s->prob[from] : 1.0;
    return from;
}

size_t engine__shortlist(struct engine_sampler *s, const struct engine_limits *l, const float *p,
                         double total)
{
    struct candidates c = find_candidates(s, p, l, total);

    if (l->k < s->n_vocab) {
        c.n = best_of(s, &c, false, (double)l->k);
        total = sum_of(c.n, s->prob);
    }
    if (l->p < 1.0)
        c.n = best_of(s, &c, true, l->p * total);
    return split(s, 0, c.n, l->min_p).at;
}

/* Temperature, top-k, top-p, min-p, draw. logits become probabilities, not normalised: the
 * best is 1. */
static int32_t draw_token(struct engine_sampler *s, const struct kern_table *k,
                          struct engine_job *job, float *logits, float max)
{
    const struct engine_sampling *o = &job->in.sampling;
    const double total = (double)k->exp_sum(s->n_vocab, 1.0f / o->temperature, max, logits);
    const float best = engine__tops(s, k, logits);
    const struct engine_limits l = engine__limits(o, s->n_vocab, best);
    size_t n = s->n_vocab, at;

    if (l.k == n && l.p >= 1.0 && l.min_p <= 0.0f) {
        at = pick(logits, n, total, &job->rng);
        return (int32_t)(at < n ? at : argmax(s, logits, best));
    }
    n = engine__shortlist(s, &l, logits, total);
    at = pick(s->prob, n, sum_of(n, s->prob), &job->rng);
    return s->id[at < n ? at : 0];
}

void engine__sample(struct engine_sampler *s, const struct kern_table *k, struct engine_job *job,
                    float *logits)
{
    float norm = 0.0f, max = engine__tops(s, k, logits);

    if (!isfinite(max) || isnan(logits[0])) {
        job->next_id = -1;
        return;
    }
    if (job->in.wants_logits && job->n_generated == 0)
        memcpy(job->out, logits, s->n_vocab * sizeof(float));
    if (job->in.n_logprobs) {
        norm = log_probs(s, k, job, logits, max);
        memcpy(s->raw, logits, s->n_vocab * sizeof(float));
    }
    if (has_penalty(&job->in.sampling)) {
        penalise(s, job, logits);
        max = engine__tops(s, k, logits);
    }
    if (job->in.sampling.temperature > FLT_MIN) /* below it 1 / temperature is infinite */
        job->next_id = draw_token(s, k, job, logits, max);
    else
        job->next_id = (int32_t)argmax(s, logits, max);
    if (job->in.n_logprobs)
        job->logprob = s->raw[job->next_id] - norm;
}
