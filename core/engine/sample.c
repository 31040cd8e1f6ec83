/* core/engine/sample.c - from logits to the next token. The order is transformers'
 * generate(): repetition penalty, temperature, top-k, top-p, min-p, draw. Runs on the
 * pool's workers, one row each; all state is the job's or the worker's. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/engine/engine_internal.h"

int engine__sampler_init(struct engine_sampler *s, size_t n_max, struct core_err *err)
{
    s->n_max = s->n_vocab = n_max;
    s->prob = core_alloc_pages(n_max * sizeof(float));
    s->raw = core_alloc_pages(n_max * sizeof(float));
    s->id = core_alloc_pages(n_max * sizeof(int32_t));
    s->seen = core_alloc_pages(n_max * sizeof(uint32_t));
    return s->prob && s->raw && s->id && s->seen ? 0 : core_err_nomem(err, "sampling");
}

void engine__sampler_release(struct engine_sampler *s)
{
    core_free_pages(s->prob, s->n_max * sizeof(float));
    core_free_pages(s->raw, s->n_max * sizeof(float));
    core_free_pages(s->id, s->n_max * sizeof(int32_t));
    core_free_pages(s->seen, s->n_max * sizeof(uint32_t));
}

/* Uniform in [0, 1): splitmix64 (Steele, Lea, Flood 2014), 53 bits. */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static size_t argmax(size_t n, const float *x, float max)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] == max)
            return i;
    return 0; /* only NaN: any id is as good */
}

/* Divides positive logits of tokens that have occurred, multiplies negative ones
 * (Keskar et al. 2019); each token once. */
static void penalise(struct engine_sampler *s, const struct engine_job *job, float *logits)
{
    const float penalty = job->in.sampling.repetition_penalty;
    const size_t n = job->n_prompt + job->n_generated;

    if (penalty <= 0.0f || penalty == 1.0f)
        return;
    s->stamp++;
    for (size_t i = job->n_soft; i < n; i++) {
        const int32_t id = job->ids[i];

        if (s->seen[id] == s->stamp)
            continue;
        s->seen[id] = s->stamp;
        logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* The n_logprobs best of raw logits, descending, and the normaliser. */
static float log_probs(struct engine_sampler *s, const struct kern_table *k, struct engine_job *job,
                       const float *logits)
{
    const unsigned n = job->in.n_logprobs;
    const float max = k->max(s->n_vocab, logits);
    unsigned have = 0;
    float norm;

    memcpy(s->prob, logits, s->n_vocab * sizeof(float));
    norm = max + logf(k->exp_sum(s->n_vocab, 1.0f, max, s->prob));
    for (size_t i = 0; i < s->n_vocab; i++) {
        unsigned at;

        if (have == n && logits[i] - norm <= job->top_logprob[n - 1])
            continue;
        at = have < n ? have++ : n - 1;
        while (at > 0 && job->top_logprob[at - 1] < logits[i] - norm) {
            job->top_logprob[at] = job->top_logprob[at - 1];
            job->top_id[at] = job->top_id[at - 1];
            at--;
        }
        job->top_logprob[at] = logits[i] - norm;
        job->top_id[at] = (int32_t)i;
    }
    return norm;
}

/* Restores the heap order (largest first) of prob/id below i. */
static void sift(struct engine_sampler *s, size_t i, size_t n)
{
    for (;;) {
        size_t big = i, l = 2 * i + 1;

        if (l < n && s->prob[l] > s->prob[big])
            big = l;
        if (l + 1 < n && s->prob[l + 1] > s->prob[big])
            big = l + 1;
        if (big == i)
            return;
        const float p = s->prob[i];
        const int32_t id = s->id[i];
        s->prob[i] = s->prob[big];
        s->id[i] = s->id[big];
        s->prob[big] = p;
        s->id[big] = id;
        i = big;
    }
}

/* Takes the largest of the n in heap order to place n - 1. */
static void pop(struct engine_sampler *s, size_t n)
{
    const float p = s->prob[0];
    const int32_t id = s->id[0];

    s->prob[0] = s->prob[n - 1];
    s->id[0] = s->id[n - 1];
    s->prob[n - 1] = p;
    s->id[n - 1] = id;
    sift(s, 0, n - 1);
}

/* Draws from the unnormalised prob[from..n) whose sum is `sum`. */
static int32_t pick(const struct engine_sampler *s, size_t from, size_t n, double sum,
                    uint64_t *rng)
{
    double at = draw(rng) * sum;

    for (size_t i = n; i > from + 1; i--) {
        at -= (double)s->prob[i - 1];
        if (at < 0.0)
            return s->id[i - 1];
    }
    return s->id[from];
}

/* Temperature, top-k, top-p, min-p, draw. Candidates leave a heap in descending order
 * until a limit stops them, so a narrow choice never sorts the vocabulary. */
static int32_t draw_token(struct engine_sampler *s, const struct kern_table *k,
                          struct engine_job *job, const float *logits)
{
    const struct engine_sampling *o = &job->in.sampling;
    const size_t n = s->n_vocab;
    const float max = k->max(n, logits);
    const size_t k_max = o->top_k && o->top_k < n ? o->top_k : n;
    const double top_p = o->top_p > 0.0f && o->top_p < 1.0f ? (double)o->top_p : 1.0;
    double sum = 0.0, total;
    size_t left = n;

    memcpy(s->prob, logits, n * sizeof(float));
    total = (double)k->exp_sum(n, 1.0f / o->temperature, max, s->prob);
    for (size_t i = 0; i < n; i++)
        s->id[i] = (int32_t)i;
    if (k_max == n && top_p >= 1.0 && o->min_p <= 0.0f)
        return pick(s, 0, n, total, &job->rng);
    for (size_t i = n / 2; i-- > 0;)
        sift(s, i, n);
    if (k_max < n) { /* top-p counts within the k best */
        for (size_t i = 0; i < k_max; i++)
            pop(s, n - i);
        total = 0.0;
        for (size_t i = n - k_max; i < n; i++)
            total += (double)s->prob[i];
    }
    while (n - left < k_max && (n == left || sum < top_p * total)) {
        if (k_max == n)
            pop(s, left);
        /* the best candidate has probability 1 before normalising */
        if (n != left && s->prob[left - 1] < o->min_p)
            break;
        left--;
        sum += (double)s->prob[left];
    }
    return pick(s, left, n, sum, &job->rng);
}

void engine__sample(struct engine_sampler *s, const struct kern_table *k, struct engine_job *job,
                    float *logits)
{
    float norm = 0.0f;

    if (!isfinite(k->max(s->n_vocab, logits)) || isnan(logits[0])) {
        job->next_id = -1;
        return;
    }
    if (job->in.wants_logits && job->n_generated == 0)
        memcpy(job->out, logits, s->n_vocab * sizeof(float));
    if (job->in.n_logprobs) {
        norm = log_probs(s, k, job, logits);
        memcpy(s->raw, logits, s->n_vocab * sizeof(float));
    }
    penalise(s, job, logits);
    if (job->in.sampling.temperature > FLT_MIN) /* below it 1 / temperature is infinite */
        job->next_id = draw_token(s, k, job, logits);
    else
        job->next_id = (int32_t)argmax(s->n_vocab, logits, k->max(s->n_vocab, logits));
    if (job->in.n_logprobs)
        job->logprob = s->raw[job->next_id] - norm;
}
