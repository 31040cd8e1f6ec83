/* server/api/metrics_get.c - GET /metrics: Prometheus text. The server's own series
 * are in metrics.c; engine, store and process are asked here. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "adapters_store/ads_store.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/build.h"
#include "server/metrics.h"
#include "server/routes.h"
#include "server/srv.h"

static void value(struct core_buf *out, const char *name, double v)
{
    core_buf_printf(out, "%s %.15g\n", name, v);
}

static void one(struct core_buf *out, const char *name, const char *type, const char *help,
                double v)
{
    metrics_head(out, name, type, help);
    value(out, name, v);
}

/* A histogram of the engine; the bound of bucket i is unit * 2^i. */
static void step_histogram(struct core_buf *out, const char *name, const char *help, double unit,
                           const uint64_t bucket[ENGINE_STEP_BUCKETS], double sum)
{
    uint64_t n = 0;

    metrics_head(out, name, "histogram", help);
    for (int i = 0; i < ENGINE_STEP_BUCKETS; i++, unit *= 2) {
        n += bucket[i];
        if (i < ENGINE_STEP_BUCKETS - 1)
            core_buf_printf(out, "%s_bucket{le=\"%.9g\"} %llu\n", name, unit,
                            (unsigned long long)n);
    }
    core_buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name,
                    (unsigned long long)n, name, sum, name, (unsigned long long)n);
}

static void write_engine(struct engine *e, struct core_buf *out)
{
    struct engine_stats st;

    engine_stats(e, &st);
    step_histogram(out, "peftd_step_seconds", "Time of one step of the engine.", 1e-3,
                   st.step_seconds_bucket, st.step_seconds);
    step_histogram(out, "peftd_step_rows", "Token rows of a step.", 1, st.step_rows_bucket,
                   (double)st.n_rows);
    step_histogram(out, "peftd_step_tasks", "Tasks of a step.", 1, st.step_tasks_bucket,
                   (double)st.n_segments);
    one(out, "peftd_saved_rows_total", "counter",
        "Token rows, times layers, that tasks with the same input had computed once.",
        (double)st.n_saved_rows);
    one(out, "peftd_queue_depth", "gauge", "Inputs that wait.", (double)st.n_waiting);
    metrics_head(out, "peftd_kv_blocks", "gauge", "Blocks of key and value memory.");
    value(out, "peftd_kv_blocks{state=\"used\"}", (double)st.kv_blocks_used);
    value(out, "peftd_kv_blocks{state=\"free\"}", (double)(st.kv_blocks_total - st.kv_blocks_used));
    one(out, "peftd_preemptions_total", "counter",
        "Sequences put back into the queue for want of blocks.", (double)st.n_preemptions);
    one(out, "vllm:num_requests_running", "gauge", "Inputs in the engine.", (double)st.n_running);
    one(out, "vllm:num_requests_waiting", "gauge", "Inputs that wait.", (double)st.n_waiting);
}

static void write_store(struct ads_store *store, struct core_buf *out)
{
    struct ads_stats st;
    uint64_t n_in_memory;

    ads_store_stats(store, &st);
    /* These may be of tasks that are deleted already: in use, but not stored. */
    n_in_memory = st.n_resident + st.n_loading;
    metrics_head(out, "peftd_adapters", "gauge", "Adapter versions, each in one state.");
    value(out, "peftd_adapters{state=\"stored\"}",
          n_in_memory < st.n_stored ? (double)(st.n_stored - n_in_memory) : 0);
    value(out, "peftd_adapters{state=\"loading\"}", (double)st.n_loading);
    value(out, "peftd_adapters{state=\"resident\"}", (double)(st.n_resident - st.n_merged));
    value(out, "peftd_adapters{state=\"merged\"}", (double)st.n_merged);
    metrics_head(out, "peftd_adapter_bytes", "gauge",
                 "Bytes of all adapters: files on disk (stored), compiled in memory (resident), "
                 "merged weights.");
    value(out, "peftd_adapter_bytes{state=\"stored\"}", (double)st.bytes_stored);
    value(out, "peftd_adapter_bytes{state=\"resident\"}", (double)st.bytes_resident);
    value(out, "peftd_adapter_bytes{state=\"merged\"}", (double)st.bytes_merged);
    metrics_head(out, "peftd_adapter_evictions_total", "counter",
                 "Adapters dropped from memory, by reason.");
    value(out, "peftd_adapter_evictions_total{reason=\"memory\"}", (double)st.n_evictions);
}

static unsigned n_open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    if (!dir)
        return 0;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the directory itself */
}

/* Fields of /proc/self/stat after the command: threads, start time in ticks. */
static void read_stat(long *n_threads, unsigned long long *start_ticks)
{
    FILE *f = fopen("/proc/self/stat", "re");
    char line[1024];
    const char *p;

    *n_threads = 0;
    *start_ticks = 0;
    if (!f)
        return;
    if (fgets(line, sizeof(line), f) && (p = strrchr(line, ')')) != NULL)
        sscanf(p + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
               n_threads, start_ticks);
    fclose(f);
}

static void write_process(struct core_buf *out)
{
    const double ticks = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);
    unsigned long n_virtual = 0, n_resident = 0;
    unsigned long long start_ticks;
    struct timespec now, boot;
    struct rlimit lim = {0};
    struct rusage ru = {0};
    long n_threads;
    FILE *f;

    getrusage(RUSAGE_SELF, &ru);
    getrlimit(RLIMIT_NOFILE, &lim);
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    read_stat(&n_threads, &start_ticks);
    f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%lu %lu", &n_virtual, &n_resident) != 2)
            n_virtual = n_resident = 0;
        fclose(f);
    }
    one(out, "process_cpu_seconds_total", "counter", "User and system time.",
        (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
            (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * 1e-6);
    one(out, "process_resident_memory_bytes", "gauge", "Resident memory.",
        (double)n_resident * page);
    one(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)n_virtual * page);
    one(out, "process_open_fds", "gauge", "Open file descriptors.", n_open_files());
    one(out, "process_max_fds", "gauge", "Limit of open file descriptors.", (double)lim.rlim_cur);
    one(out, "process_threads", "gauge", "Threads.", (double)n_threads);
    one(out, "process_start_time_seconds", "gauge", "Unix time of the start.",
        (double)(now.tv_sec - boot.tv_sec) + (double)start_ticks / ticks);
}

enum srv_outcome srv_metrics_get(struct srv_request *r)
{
    struct srv *s = r->srv;
    struct core_buf body = {0};

    metrics_write(s->metrics, &body);
    if (atomic_load(&s->state) != SRV_LOADING) {
        write_engine(s->engine, &body);
        write_store(s->store, &body);
    }
    metrics_head(&body, "peftd_build_info", "gauge", "Version and CPU level in use.");
    core_buf_printf(&body, "peftd_build_info{version=\"%s\",commit=\"%s\",cpu_level=\"%s\"} 1\n",
                    PEFTD_VERSION, srv_build_commit(),
                    atomic_load(&s->state) == SRV_LOADING ? "" : model_kern(s->model)->name);
    write_process(&body);
    srv_reply_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    return SRV_ANSWERED;
}
