/* bench/bench_engine.c - the engine without HTTP, text and store: what the kernels and
 * the step give. Streams of token ids, one adapter folder each (round robin).
 *
 *   bench_engine [-t THREADS] [-l LEVEL] [-p exact|bf16|int8] [-k f32|f16|bf16] [-b ROWS]
 *                [-w together|slices|lots] [-s T,P,K,M] [-r RUNS]
 *                MODEL N_STREAMS N_PROMPT N_OUT [ADAPTER...]
 *
 * LEVEL as --cpu-level has it; without, all that the CPU has. T,P,K,M: temperature, top_p, top_k,
 * min_p, as a request has them; what is left out at the end is off, and without -s tokens are the
 * best ones. Prints tokens/s out (decoder) or sequences/s (encoder) of three runs, what part of the
 * workers' time went by at meetings, and how the workers shared the steps. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    size_t n_left;
} waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    (void)arg, (void)job, (void)err;
    pthread_mutex_lock(&waiter.lock);
    if (--waiter.n_left == 0)
        pthread_cond_signal(&waiter.done);
    pthread_mutex_unlock(&waiter.lock);
}

static void die(const char *what, const struct core_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static struct delta *load(const struct model *m, const char *dir)
{
    struct core_file file[16];
    struct core_map map[16] = {0};
    struct core_err err = {0};
    struct delta *d = NULL;
    struct dirent *entry;
    char path[4096];
    size_t n = 0;
    DIR *dp = opendir(dir);

    while (dp && (entry = readdir(dp)) && n < 16) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (core_map_open(&map[n], path, &err) < 0)
            die(path, &err);
        file[n] = (struct core_file){strdup(entry->d_name), map[n].bytes, map[n].n_bytes};
        n++;
    }
    if (dp)
        closedir(dp);
    if (delta_compile(&d, m, file, n, &err) < 0)
        die(dir, &err);
    return d;
}

static double run(struct engine *e, const struct engine_sampling *sampling,
                  struct delta *const *delta, size_t n_deltas, size_t n_streams, size_t n_prompt,
                  unsigned n_out)
{
    const struct engine_callbacks cb = {.done = on_done};
    struct engine_job **job = calloc(n_streams, sizeof(struct engine_job *));
    int32_t *ids = calloc(n_prompt, sizeof(int32_t));
    struct core_err err = {0};
    uint64_t begin;

    waiter.n_left = n_streams;
    for (size_t i = 0; i < n_streams; i++) {
        for (size_t k = 0; k < n_prompt; k++)
            ids[k] = (int32_t)(1000 + (k * 37 + i * 101) % 20000);
        const struct engine_input in = {.delta = delta[i % n_deltas],
                                        .tokens = ids,
                                        .n_tokens = n_prompt,
                                        .max_tokens = n_out,
                                        .sampling = *sampling,
                                        .ignore_eos = true};
        if (engine_job_new(&job[i], e, &in, &cb, NULL, &err) < 0)
            die("job", &err);
    }
    begin = core_now_ns();
    if (engine_submit(e, job, n_streams, &err) < 0)
        die("submit", &err);
    pthread_mutex_lock(&waiter.lock);
    while (waiter.n_left)
        pthread_cond_wait(&waiter.done, &waiter.lock);
    pthread_mutex_unlock(&waiter.lock);
    const double seconds = (double)(core_now_ns() - begin) * 1e-9;
    for (size_t i = 0; i < n_streams; i++)
        engine_job_free(job[i]);
    free(job);
    free(ids);
    return seconds;
}

struct settings {
    struct model_options model;
    struct engine_options engine;
    struct engine_sampling sampling;
    int n_runs;
};

/* Which of three words it is; 3 if none. */
static unsigned word_of(const char *text, const char *const word[3])
{
    unsigned i = 0;

    while (i < 3 && strcmp(text, word[i]))
        i++;
    return i;
}

static void sampling_read(struct engine_sampling *s, const char *text)
{
    (void)sscanf(text, "%f,%f,%u,%f", &s->temperature, &s->top_p, &s->top_k, &s->min_p);
}

/* Reads what stands in front of MODEL; false if it is unknown. */
static bool settings_read(struct settings *s, int argc, char **argv)
{
    static const char *const precision[] = {
        [GEMM_EXACT] = "exact", [GEMM_BF16] = "bf16", [GEMM_INT8] = "int8"};
    static const char *const kv_type[] = {
        [TENSOR_F32] = "f32", [TENSOR_F16] = "f16", [TENSOR_BF16] = "bf16"};
    static const char *const way[] = {"together", "slices", "lots"};
    int c;

    *s = (struct settings){.model.levels = kern_cpu_levels(), .n_runs = 3};
    while ((c = getopt(argc, argv, "+t:l:p:k:b:r:s:w:")) != -1) {
        if (c == 't')
            s->engine.n_threads = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'l' && kern_level_parse(optarg) >= 0)
            s->model.levels = (unsigned)kern_level_parse(optarg);
        else if (c == 'b')
            s->engine.max_batch_tokens = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'r')
            s->n_runs = (int)strtol(optarg, NULL, 10);
        else if (c == 's')
            sampling_read(&s->sampling, optarg);
        else if (c == 'p' && word_of(optarg, precision) < 3)
            s->model.precision = (enum gemm_precision)word_of(optarg, precision);
        else if (c == 'k' && word_of(optarg, kv_type) < 3)
            s->engine.kv_type = (enum tensor_type)word_of(optarg, kv_type);
        else if (c == 'w' && word_of(optarg, way) < 3)
            s->engine.way = (enum fwd_way)(FWD_TOGETHER + word_of(optarg, way));
        else
            return false;
    }
    if (s->model.precision == GEMM_BF16)
        s->model.precision = gemm_bf16_at(s->model.levels & kern_cpu_levels());
    return argc - optind >= 4;
}

static unsigned n_of(const struct engine_stats *a, const struct engine_stats *b, enum fwd_way way)
{
    return (unsigned)(b->n_steps_of[way] - a->n_steps_of[way]);
}

static void print(const struct model *m, double seconds, size_t n_streams, unsigned n_out,
                  const struct engine_stats *a, const struct engine_stats *b)
{
    const double ran = b->worker_seconds - a->worker_seconds;
    const double waited = b->meeting_seconds - a->meeting_seconds;
    const bool is_causal = model_last_stack(model_config(m))->is_causal;

    printf("%.3f s  %.1f %s/s  %.1f %% of workers' time at meetings; ", seconds,
           (double)(is_causal ? n_streams * n_out : n_streams) / seconds,
           is_causal ? "tokens" : "sequences", 100.0 * waited / ran);
    printf("steps: %u together, %u in slices, %u in lots\n", n_of(a, b, FWD_TOGETHER),
           n_of(a, b, FWD_SLICES), n_of(a, b, FWD_LOTS));
}

int main(int argc, char **argv)
{
    struct settings set;
    struct engine_stats before, after;
    struct core_err err = {0};
    struct model *m = NULL;
    struct engine *e = NULL;
    struct delta *delta[1024];
    size_t n_deltas = 0;

    if (!settings_read(&set, argc, argv)) {
        fprintf(stderr, "usage: bench_engine [-t THREADS] [-l LEVEL] [-p exact|bf16|int8] "
                        "[-k f32|f16|bf16] [-b ROWS] [-w together|slices|lots] [-s T,P,K,M] "
                        "[-r RUNS] MODEL N_STREAMS N_PROMPT N_OUT [ADAPTER...]\n");
        return 2;
    }
    argv += optind;
    argc -= optind;
    const size_t n_streams = strtoul(argv[1], NULL, 10), n_prompt = strtoul(argv[2], NULL, 10);
    const unsigned n_out = (unsigned)strtoul(argv[3], NULL, 10);
    if (model_open(&m, argv[0], &set.model, &err) < 0 || engine_new(&e, m, &set.engine, &err) < 0)
        die(argv[0], &err);
    for (int i = 4; i < argc && n_deltas < 1024; i++)
        delta[n_deltas++] = load(m, argv[i]);
    if (n_deltas == 0 && delta_base(&delta[n_deltas++], m, &err) < 0)
        die("base", &err);
    for (int k = 0; k < set.n_runs; k++) {
        engine_stats(e, &before);
        const double s = run(e, &set.sampling, delta, n_deltas, n_streams, n_prompt, n_out);

        do /* behind its last answer the engine counts the step */
            engine_stats(e, &after);
        while (after.n_running || after.n_waiting);
        print(m, s, n_streams, n_out, &before, &after);
    }
    engine_free(&e);
    for (size_t i = 0; i < n_deltas; i++)
        delta_free(delta[i]);
    model_close(&m);
    return 0;
}
