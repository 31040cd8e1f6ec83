/* server/dialects/vllm_score.c - vLLM's POST /score (`text_1`, `text_2`) and POST /rerank, which
 * has two forms on one path: `documents` is vLLM's (and Jina's, Cohere's), `texts` TEI's. */
#include <jansson.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/arena.h"
#include "server/dialects/rank.h"
#include "server/json_writer.h"
#include "server/routes.h"

/* What both routes have beside the texts, into the form that rank_read_pairs() has made. */
static int read_form(struct json_reader *p, const struct infer_source *src, const json_t *root,
                     bool is_needed, struct infer *in)
{
    struct rank_form *f = in->form;
    bool is_sigmoid = true;
    int rc = openai_read_form(p, src, root, is_needed, in);

    if (rc < 0)
        return rc;
    f->openai = *(const struct openai_form *)in->form;
    in->form = f;
    rc = jr_bool(p, root, "use_activation", &is_sigmoid);
    if (rc == 0)
        rc = jr_bool(p, root, "raw_scores", &f->is_raw);
    if (rc == 0)
        rc = openai_read_limits(p, root, &in->item->params);
    f->is_raw |= !is_sigmoid;
    return rc;
}

/* ---- /score -------------------------------------------------------------------------- */

static int read_score(struct json_reader *p, const struct infer_source *src, json_t *root,
                      struct infer *in)
{
    static const char *const side[][2] = {
        {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};
    size_t k = 0;
    int rc = jr_names(p, root,
                      "model text_1 text_2 queries documents items data_1 data_2 "
                      "use_activation " OPENAI_LIMIT_NAMES);

    for (size_t i = 0; i < sizeof(side) / sizeof(side[0]); i++)
        if (json_object_get(root, side[i][1])) {
            k = i;
            break;
        }
    for (size_t i = 0; rc == 0 && i < sizeof(side) / sizeof(side[0]); i++)
        for (int s = 0; rc == 0 && s < 2; s++)
            if (json_object_get(root, side[i][s]) && strcmp(side[i][s], side[k][s]) != 0)
                rc = jr_fail(p, CORE_E_BAD_FIELD, side[i][s], "does not go with %s", side[k][1]);
    if (rc == 0)
        rc = rank_read_pairs(p, in, json_object_get(root, side[k][0]), side[k][0],
                             json_object_get(root, side[k][1]), side[k][1]);
    return rc < 0 ? rc : read_form(p, src, root, true, in);
}

static void write_score(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    struct rank *rank = rank_scores(w, in, false);
    const size_t n = ((const struct rank_form *)in->form)->n;

    jw_object(w);
    openai_write_head(w, r, in, "score-", "list");
    jw_key(w, "data");
    jw_array(w);
    for (size_t i = 0; rank && i < n; i++) {
        jw_object(w);
        jw_key(w, "index");
        jw_uint(w, i);
        jw_key(w, "object");
        jw_cstr(w, "score");
        jw_key(w, "score");
        jw_float(w, rank[i].score);
        jw_object_end(w);
    }
    jw_array_end(w);
    openai_write_usage(w, in->item->call);
    jw_object_end(w);
    core_free(rank);
}

const struct infer_dialect infer_score = {
    .read = read_score, .check = rank_check, .lay = rank_lay, .write = write_score};

enum srv_outcome srv_score_post(struct srv_request *r)
{
    return infer_begin(r, &infer_score);
}

/* ---- /rerank ------------------------------------------------------------------------- */

static int read_vllm(struct json_reader *p, const struct infer_source *src, json_t *root,
                     struct infer *in)
{
    int rc = jr_names(
        p, root, "model query documents top_n return_documents use_activation " OPENAI_LIMIT_NAMES);
    bool wants_text = true;
    unsigned n_top = 0;

    if (rc == 0 && !json_is_array(json_object_get(root, "documents")))
        rc = jr_fail(p, CORE_E_BAD_FIELD, "documents", "expected an array of strings");
    if (rc == 0)
        rc = jr_uint(p, root, "top_n", 1 << 30, &n_top);
    if (rc == 0)
        rc = jr_bool(p, root, "return_documents", &wants_text);
    if (rc == 0)
        rc = rank_read_pairs(p, in, json_object_get(root, "query"), "query",
                             json_object_get(root, "documents"), "documents");
    if (rc == 0)
        rc = read_form(p, src, root, true, in);
    if (rc < 0)
        return rc;
    ((struct rank_form *)in->form)->wants_text = wants_text;
    ((struct rank_form *)in->form)->n_top = n_top;
    return 0;
}

static int read_tei(struct json_reader *p, const struct infer_source *src, json_t *root,
                    struct infer *in)
{
    int rc = jr_names(p, root, "model query texts raw_scores return_text " OPENAI_LIMIT_NAMES);
    bool wants_text = false;

    if (rc == 0 && !json_is_array(json_object_get(root, "texts")))
        rc = jr_fail(p, json_object_get(root, "texts") ? CORE_E_BAD_FIELD : CORE_E_MISSING_FIELD,
                     "texts", "expected an array of strings, or `documents`");
    if (rc == 0)
        rc = jr_bool(p, root, "return_text", &wants_text);
    if (rc == 0)
        rc = rank_read_pairs(p, in, json_object_get(root, "query"), "query",
                             json_object_get(root, "texts"), "texts");
    if (rc == 0)
        rc = read_form(p, src, root, false, in);
    if (rc < 0)
        return rc;
    ((struct rank_form *)in->form)->wants_text = wants_text;
    return 0;
}

static void write_vllm(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct rank_form *f = in->form;
    struct rank *rank = rank_scores(w, in, true);
    const size_t n = f->n_top && f->n_top < f->n ? f->n_top : f->n;

    jw_object(w);
    openai_write_head(w, r, in, "rerank-", "list");
    jw_key(w, "results");
    jw_array(w);
    for (size_t i = 0; rank && i < n; i++) {
        size_t n_text;
        const char *text = rank_text(in, rank[i].index, &n_text);

        jw_object(w);
        jw_key(w, "index");
        jw_uint(w, rank[i].index);
        if (f->wants_text) {
            jw_key(w, "document");
            jw_object(w);
            jw_key(w, "text");
            jw_str(w, text, n_text);
            jw_object_end(w);
        }
        jw_key(w, "relevance_score");
        jw_float(w, rank[i].score);
        jw_object_end(w);
    }
    jw_array_end(w);
    openai_write_usage(w, in->item->call);
    jw_object_end(w);
    core_free(rank);
}

static void write_tei(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct rank_form *f = in->form;
    struct rank *rank = rank_scores(w, in, true);

    (void)r;
    jw_array(w);
    for (size_t i = 0; rank && i < f->n; i++) {
        size_t n_text;
        const char *text = rank_text(in, rank[i].index, &n_text);

        jw_object(w);
        jw_key(w, "index");
        jw_uint(w, rank[i].index);
        if (f->wants_text) {
            jw_key(w, "text");
            jw_str(w, text, n_text);
        }
        jw_key(w, "score");
        jw_float(w, rank[i].score);
        jw_object_end(w);
    }
    jw_array_end(w);
    core_free(rank);
}

static const struct infer_dialect of_vllm = {
    .read = read_vllm, .check = rank_check, .lay = rank_lay, .write = write_vllm};
static const struct infer_dialect of_tei = {
    .read = read_tei, .check = rank_check, .lay = rank_lay, .write = write_tei};

static int read_either(struct json_reader *p, const struct infer_source *src, json_t *root,
                       struct infer *in)
{
    in->dialect = json_object_get(root, "documents") ? &of_vllm : &of_tei;
    return in->dialect->read(p, src, root, in);
}

const struct infer_dialect infer_rerank = {.read = read_either};

enum srv_outcome srv_rerank_post(struct srv_request *r)
{
    return infer_begin(r, &infer_rerank);
}
