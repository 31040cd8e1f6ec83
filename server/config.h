/* server/config.h - the settings, all in one table.
 *
 * SRV_CONFIG_MAP is the only list: struct srv_config, the flags (--max-queue), the
 * environment (PEFTD_MAX_QUEUE), the keys of the --config file (max_queue), --help, the manual
 * page, the completion of bash and the "limits" of GET /v1/info are made from it. A flag beats the
 * environment, which beats the file, which beats the default. An unknown name is an error in all
 * three, so that a typing error is never a silent default.
 *
 * Threads: written once at start, read by all afterwards.
 */
#ifndef SERVER_CONFIG_H
#define SERVER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_buf;
struct core_err;

/* Kinds of value:
 *   TEXT     a string                        CHOICE  one of the words of `range`
 *   COUNT    a whole number                  SIZE    bytes; KiB, MiB, GiB may follow
 *   SECONDS  a number of seconds, fractions allowed
 *
 *   kind, name, default, least, most, words of a CHOICE or name of the value, help */
#define SRV_CONFIG_MAP(X)                                                                          \
    X(TEXT, model, "", 0, 0, "PATH", "Hugging Face folder or .gguf file of the base model")        \
    X(TEXT, store, "./peftd-store", 0, 0, "DIR", "directory of the adapters, created if absent")   \
    X(TEXT, weights_cache, "", 0, 0, "DIR", "packed weights: made once, mapped by later starts")   \
    X(TEXT, import_root, "", 0, 0, "DIR", "folder below which adapters may be imported by path")   \
    X(CHOICE, resolve, "off", 0, 0, "off|on", "look for an unknown task below --import-root")      \
    X(TEXT, listen, "127.0.0.1:8080", 0, 0, "ADDR:PORT", "where to listen; port 0 picks one")      \
    X(TEXT, admin_listen, "", 0, 0, "ADDR:PORT", "more listening, for health and metrics only")    \
    X(TEXT, config, "", 0, 0, "FILE", "JSON object of settings, keys as in this list")             \
    X(COUNT, max_batch_tokens, "0", 0, 1 << 20, "N",                                               \
      "rows of one step; 0: 512, of an encoder more, by its speed")                                \
    X(COUNT, max_batch_jobs, "256", 1, 1 << 16, "N", "inputs that share one step")                 \
    X(COUNT, itl_target, "0", 0, 1000000, "MS",                                                    \
      "longest step of streams beside prompts; 0: 1.8 times theirs alone")                         \
    X(SECONDS, batch_wait, "0", 0, 1, "SECONDS",                                                   \
      "at most so long after a step for those whom it answered; 0: never")                         \
    X(COUNT, max_queue, "4096", 1, 1 << 20, "N", "inputs that may wait; more get 429")             \
    X(COUNT, flow_share, "75", 1, 100, "PERCENT", "of the queue that one key or address may fill") \
    X(SIZE, kv_bytes, "0", 0, 1e15, "SIZE",                                                        \
      "key and value memory of a decoder; 0: 1GiB if it fits")                                     \
    X(COUNT, kv_share, "75", 1, 100, "PERCENT", "of that memory that one key or address may hold") \
    X(CHOICE, kv_type, "auto", 0, 0, "f32|f16|bf16|auto",                                          \
      "as what keys and values are kept; auto: f32 if exact, else bf16 or f16, by the CPU")        \
    X(COUNT, context_max, "0", 0, 1 << 24, "N", "tokens of one sequence; 0 is the model's own")    \
    X(COUNT, threads, "0", 0, 1024, "N", "compute threads; 0 is one per core")                     \
    X(COUNT, http_threads, "2", 1, 256, "N", "threads that read and write HTTP")                   \
    X(COUNT, max_connections, "1024", 1, 65536, "N", "open connections")                           \
    X(SIZE, resident_bytes, "0", 0, 1e15, "SIZE",                                                  \
      "memory for loaded adapters; 0: 1GiB if it fits")                                            \
    X(SIZE, merged_bytes, "0", 0, 1e15, "SIZE", "memory for merged weights; 0: 1GiB if it fits")   \
    X(COUNT, merge_share, "0", 0, 100, "PERCENT",                                                  \
      "of all rows that merges a task by itself; 0: none")                                         \
    X(SECONDS, merge_window, "60", 0.1, 1e6, "SECONDS", "over which --merge-share is measured")    \
    X(SIZE, store_bytes, "0", 0, 1e18, "SIZE", "disk space of the store; 0 is no limit")           \
    X(SIZE, max_upload_bytes, "256MiB", 1, 1e15, "SIZE", "largest adapter upload")                 \
    X(SIZE, max_body_bytes, "8MiB", 1, 1e12, "SIZE", "largest body of any other request")          \
    X(SIZE, max_inflight_bytes, "1GiB", 1, 1e15, "SIZE", "request bodies held at once")            \
    X(COUNT, max_items, "1024", 1, 1 << 20, "N", "inputs of one call, every task counted")         \
    X(COUNT, max_result_numbers, "16777216", 1, 1u << 31, "N", "numbers in one call's results")    \
    X(SECONDS, request_timeout, "300", 0.001, 1e6, "SECONDS", "until a call gets 504")             \
    X(COUNT, max_priority, "10", 0, 10, "N", "highest priority a request may have")                \
    X(SECONDS, client_timeout, "30", 1, 1e6, "SECONDS", "silence of a client until it is cut")     \
    X(SECONDS, drain_seconds, "30", 0, 1e6, "SECONDS", "for running calls after SIGTERM")          \
    X(TEXT, auth, "", 0, 0, "FILE", "keys, see peftd key; without it everybody may do all")        \
    X(TEXT, tls_cert, "", 0, 0, "FILE", "certificate and its chain (PEM): --listen speaks TLS")    \
    X(TEXT, tls_key, "", 0, 0, "FILE", "key of --tls-cert (PEM)")                                  \
    X(TEXT, tls_client_ca, "", 0, 0, "FILE", "only clients with a certificate of these (PEM)")     \
    X(CHOICE, metrics_access, "open", 0, 0, "open|read", "with --auth: who may see /metrics")      \
    X(TEXT, cors_origin, "", 0, 0, "ORIGINS", "pages that may read answers, or *; see CORS")       \
    X(COUNT, metrics_tasks, "100", 1, 100000, "N", "busiest tasks with series of their own")       \
    X(CHOICE, cpu_level, "auto", 0, 0,                                                             \
      "auto|portable|avx2|avx2float|avxvnni|avx512|avx512vnni|avx512bf16|amx|"                     \
      "neon|neon-dotprod|neon-bf16|sve",                                                           \
      "highest instruction set")                                                                   \
    X(CHOICE, precision, "exact", 0, 0, "exact|bf16|int8", "arithmetic of the base's linears")     \
    X(CHOICE, log_level, "info", 0, 0, "error|warn|info|debug", "least important line to log")     \
    X(CHOICE, log_format, "text", 0, 0, "text|json", "log lines: key=value words, or JSON objects")

#define SRV_CONFIG_TYPE_TEXT char *
#define SRV_CONFIG_TYPE_COUNT unsigned
#define SRV_CONFIG_TYPE_SIZE uint64_t
#define SRV_CONFIG_TYPE_SECONDS double
#define SRV_CONFIG_TYPE_CHOICE unsigned /* index of the word */

struct srv_config {
#define X(kind, name, def, min, max, words, help) SRV_CONFIG_TYPE_##kind name;
    SRV_CONFIG_MAP(X)
#undef X
};

/* Fills *cfg from defaults, file, environment and argv[0 .. argc), in that order
 * of strength. Arguments that are no flags are moved to the front of argv and
 * counted in *n_rest. *cfg is the caller's: srv_config_release(), also after an
 * error. CORE_E_UNKNOWN_FIELD, CORE_E_BAD_FIELD (param = the setting), CORE_E_BAD_JSON,
 * CORE_E_NOMEM. `env` is the environment (environ). */
int srv_config_load(struct srv_config *cfg, int argc, char **argv, char *const *env, int *n_rest,
                    struct core_err *err);
void srv_config_release(struct srv_config *cfg);

enum srv_metrics_access { SRV_METRICS_OPEN, SRV_METRICS_READ }; /* words of metrics_access */

/* One row of the table, for people: its flag, what follows the flag, and the words of a CHOICE
 * ("a|b"; NULL of other kinds). Borrowed from the table; false: there is no i-th row. */
struct srv_setting {
    const char *name, *value, *words, *help, *def;
    char flag[48];
};
bool srv_config_setting(size_t i, struct srv_setting *out);
/* All effective values as a JSON object (GET /v1/info), and as the log's line event=settings.
 * No setting is a secret yet. */
void srv_config_json(const struct srv_config *cfg, struct core_buf *out);
void srv_config_log(const struct srv_config *cfg);
/* The word of a CHOICE, borrowed from the table into buf. */
const char *srv_config_cpu_level(const struct srv_config *cfg, char buf[16]);
/* Sets it to the level that was chosen; a name that is no word of the table changes nothing. */
void srv_config_set_cpu_level(struct srv_config *cfg, const char *name);

#endif
