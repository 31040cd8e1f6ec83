/* core/delta/read_peft_lora.c - PEFT's LoRA: pairs lora_A, lora_B on linears and
 * embeddings (where x is one-hot).
 *
 * y += s (B (A x) + b_B) with s = alpha / r, or alpha / sqrt(r) under rslora. The rank
 * is A's row count; alpha and rank may differ by module, through alpha_pattern and
 * rank_pattern, whose keys are regular expressions over module paths.
 *
 * With a magnitude m beside the pair (DoRA, Liu et al. 2024): y = g (*) (W x + s B (A x)) + b,
 * g = m / |W + s B A|, the norm of each row; of an embedding, of each of its columns.
 *
 * With alora_invocation_tokens (aLoRA, Greenewald et al. 2025) the pairs act from the last
 * occurrence of these tokens in the prompt on. The library looks for them for a causal
 * language model only; for other tasks it leaves such pairs out of every forward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

struct lora {
    struct delta__by_module alpha, rank;
    bool has_rank; /* the file says ranks; without, the tensors' */
    bool is_rslora, is_dora;
    enum delta__residual residual;
    bool is_invoked;    /* an aLoRA */
    bool is_never_used; /* of a task for which the library does not look for the invocation */
};

/* s of the module at path, whose A is t. */
static int scale_of(struct delta_builder *b, const struct lora *l, const char *path, size_t n,
                    const struct tensor *t, float *out)
{
    const double rank = (double)t->dim[0];
    double alpha, said;
    char want[64];
    int rc = delta__by_module_value(b, &l->alpha, path, n, &alpha);

    if (rc == 0)
        rc = delta__by_module_value(b, &l->rank, path, n, &said);
    if (rc < 0)
        return rc;
    if (l->has_rank && said != rank) {
        snprintf(want, sizeof(want), "rank %g, as the configuration says", said);
        return delta__misfit(b, t, want);
    }
    *out = (float)(alpha / (l->is_rslora ? sqrt(rank) : rank));
    if (!isfinite(*out))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "lora_alpha",
                                  "lora_alpha: the scale is not finite");
    return 0;
}

/* ---- DoRA ---------------------------------------------------------------------- */

/* Sums of squares of the rows of W + s B A [n_out, n_in]. */
static int row_norms(struct delta_builder *b, const struct delta__place *p, const float *A,
                     const float *B, size_t rank, float s, double *sum)
{
    float *w = delta__scratch(b, p->n_in, sizeof(*w));
    size_t n_in, n_out;

    if (!w)
        return CORE_E_NOMEM;
    for (unsigned i = 0; i < p->mod.n_parts; i++) {
        model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
        for (size_t r = 0; r < n_out; r++) {
            const size_t o = p->mod.row0[i] + r;

            model_weight_row(b->m, p->mod.site[i], r, w);
            for (size_t k = 0; k < rank; k++)
                for (size_t j = 0; j < n_in; j++)
                    w[j] += s * B[o * rank + k] * A[k * n_in + j];
            for (size_t j = 0; j < n_in; j++)
                sum[o] += (double)w[j] * (double)w[j];
        }
    }
    return 0;
}

/* The same for the columns of an embedding's table + s (B A)^T [n_in, n_out]. */
static int column_norms(struct delta_builder *b, const struct delta__place *p, const float *A,
                        const float *B, size_t rank, float s, double *sum)
{
    float *w = delta__scratch(b, p->n_out, sizeof(*w));

    if (!w)
        return CORE_E_NOMEM;
    for (size_t t = 0; t < p->n_in; t++) {
        model_weight_row(b->m, p->site, t, w);
        for (size_t o = 0; o < p->n_out; o++) {
            for (size_t k = 0; k < rank; k++)
                w[o] += s * B[o * rank + k] * A[k * p->n_in + t];
            sum[o] += (double)w[o] * (double)w[o];
        }
    }
    return 0;
}

/* SCALE by g, and B's rows multiplied by it in in->up. */
static int add_magnitude(struct delta_builder *b, const struct delta__place *p,
                         const struct tensor *magnitude, struct delta__lowrank *in)
{
    const bool is_table = site_kind_class(site_kind_of(p->site)) == SITE_CLASS_EMBED;
    const size_t rank = in->down->dim[0];
    const float *A, *B, *m;
    double *sum = delta__scratch(b, p->n_out, sizeof(*sum));
    float *g = delta__scratch(b, p->n_out, sizeof(*g)), *up;
    int rc = sum && g ? delta__expect(b, in->down, 2, rank, p->n_in) : CORE_E_NOMEM;

    if (rc == 0)
        rc = delta__expect(b, in->up, 2, p->n_out, rank);
    if (rc == 0)
        rc = delta__expect(b, magnitude, 1, p->n_out, 0);
    if (rc == 0 && (in->up_bias || !model_has_weight(b->m, p->site)))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, magnitude->name,
                                "tensor %s: DoRA with a bias of B, or where the base has no "
                                "weight, is not computed",
                                magnitude->name);
    if (rc == 0)
        rc = delta__floats(b, in->down, &A);
    if (rc == 0)
        rc = delta__floats(b, in->up, &B);
    if (rc == 0)
        rc = delta__floats(b, magnitude, &m);
    if (rc == 0)
        rc = (is_table ? column_norms : row_norms)(b, p, A, B, rank, in->scale, sum);
    if (rc < 0)
        return rc;
    in->up = delta__computed(b, in->up, p->n_out, rank, &up);
    if (!in->up)
        return CORE_E_NOMEM;
    for (size_t o = 0; o < p->n_out; o++) {
        g[o] = (float)((double)m[o] / sqrt(sum[o]));
        if (!isfinite(g[o]))
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, magnitude->name,
                                      "tensor %s: the norm of output %zu is 0", magnitude->name, o);
        for (size_t k = 0; k < rank; k++)
            up[o * rank + k] = g[o] * B[o * rank + k];
    }
    return delta__add_scale(b, p, g, DELTA__SCALE_PRE);
}

/* ---- pairs --------------------------------------------------------------------- */

/* Names of a pair and of B's bias, after the module's path. */
struct pair_name {
    const char *a, *b, *b_bias; /* b_bias may be NULL */
    bool is_table;
};

/* One module: `t` is its A, named path[0..n) + pair->a. */
static int add_module(struct delta_builder *b, const struct lora *l, const struct pair_name *pair,
                      const struct tensor *t, size_t n)
{
    static const char prefix[] = "base_model.model.";
    const size_t n_prefix = n >= sizeof(prefix) && strncmp(t->name, prefix, sizeof(prefix) - 1) == 0
                                ? sizeof(prefix) - 1
                                : 0;
    struct delta__lowrank in = {
        .down = t,
        .up = delta__find(b, t->name, n, pair->b),
        .up_bias = pair->b_bias ? delta__find(b, t->name, n, pair->b_bias) : NULL,
    };
    const struct tensor *magnitude = delta__find(b, t->name, n, ".lora_magnitude_vector");
    struct delta__place p;
    int rc;

    if (!in.up)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its %s", t->name, pair->b + 1);
    rc = delta__place(b, t, t->name + n_prefix, n - n_prefix, false, &p);
    if (rc == 0 && (t->n_dims != 2 || t->dim[0] == 0))
        rc = delta__misfit(b, t, "[rank, inputs] with a rank of 1 or more");
    if (rc == 0)
        rc = scale_of(b, l, t->name + n_prefix, n - n_prefix, t, &in.scale);
    if (rc == 0 && l->residual && !pair->is_table) /* it leaves tables as they are */
        rc = delta__take_residual(b, &p, l->residual, t->name + n_prefix, n - n_prefix, &in);
    in.is_invoked = l->is_invoked;
    in.scale = l->is_never_used ? 0.0f : in.scale;
    if (rc == 0 && magnitude)
        rc = add_magnitude(b, &p, magnitude, &in);
    if (rc == 0 && l->is_dora && !magnitude)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                "tensor %s stands without its lora_magnitude_vector", t->name);
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

/* Options that change the arithmetic, and initialisations that change the base: A and B
 * are only right on a base that was edited the same way, which is known of PiSSA and OLoRA
 * (read_peft_residual.c); PiSSA's fast one draws numbers at each load. The configurations of
 * such initialisations stay in files that were converted to plain LoRA and mean nothing there.
 */
static int read_options(struct delta_builder *b, const json_t *config, struct lora *l)
{
    static const char *const option[] = {
        "layer_replication", "target_parameters", "use_qalora",      "use_bdlora",
        "arrow_config",      "kasa_config",       "megatron_config", NULL,
    };
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal", "mica"};
    const json_t *init = json_object_get(config, "init_lora_weights");
    const char *name = json_string_value(init);
    const int rc = delta__json_refuse(b, config, option);

    if (rc < 0 || !name)
        return rc;
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (strcmp(name, harmless[i]) == 0)
            return 0;
    if (delta__residual_named(name, &l->residual))
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "init_lora_weights",
                              "init_lora_weights '%.60s' edits the base: convert the adapter "
                              "to plain LoRA when saving it",
                              name);
}

/* VeLoRA and MonteCLoRA differ from LoRA only while they train; what they need for that
 * is in the file. */
static void take_training_state(struct delta_builder *b)
{
    static const char *const mark[] = {".lora_velora_embed", ".lora_monteclora_sampler."};

    for (size_t i = 0; i < b->tensors.n; i++)
        for (size_t k = 0; k < sizeof(mark) / sizeof(mark[0]); k++)
            if (strstr(b->tensors.t[i].name, mark[k]))
                delta__take(b, &b->tensors.t[i]);
}

/* With tied weights asked for, a change of the token embedding or of the output head is
 * one of both, which is not computed. Elsewhere the option means nothing. */
static int check_tying(struct delta_builder *b, const json_t *config)
{
    static const char *const part[] = {"embed_tokens", "word_embeddings", "lm_head"};
    bool is_asked;
    const int rc = delta__json_bool(b, config, "ensure_weight_tying", false, &is_asked);

    for (size_t i = 0; rc == 0 && is_asked && i < b->tensors.n; i++)
        for (size_t k = 0; k < sizeof(part) / sizeof(part[0]); k++)
            if (strstr(b->tensors.t[i].name, part[k]))
                return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "ensure_weight_tying",
                                          "ensure_weight_tying is not computed with tensor %s",
                                          b->tensors.t[i].name);
    return rc;
}

static int read_numbers(struct delta_builder *b, const json_t *config, struct lora *l)
{
    int rc = 0;

    /* PEFT computes with them: a null there is no default, and fails. */
    if (json_is_null(json_object_get(config, "lora_alpha")) ||
        json_is_null(json_object_get(config, "r")))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "lora_alpha",
                                "lora_alpha and r: expected numbers, got null");
    if (rc == 0)
        rc = delta__json_number(b, config, "lora_alpha", 8, &l->alpha.dflt);

    if (rc == 0)
        rc = delta__json_number(b, config, "r", 0, &l->rank.dflt);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_rslora", false, &l->is_rslora);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_dora", false, &l->is_dora);
    l->has_rank = json_is_number(json_object_get(config, "r"));
    if (rc == 0)
        rc = delta__by_module_read(b, config, &l->alpha);
    return rc < 0 ? rc : delta__by_module_read(b, config, &l->rank);
}

/* aLoRA. An empty list is none. */
static int read_invocation(struct delta_builder *b, const json_t *config, struct lora *l)
{
    static const char key[] = "alora_invocation_tokens";
    const json_t *list = json_object_get(config, key), *v;
    const char *task;
    double *value;
    size_t i, n;
    int rc = delta__json_str(b, config, "task_type", NULL, &task);

    if (rc < 0 || !list || json_is_null(list))
        return rc;
    if (!json_is_array(list))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key, "%s: expected a list", key);
    if (json_array_size(list) == 0)
        return 0;
    if (l->is_dora)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                  "%s and use_dora: the library has no such layer", key);
    if (l->residual) /* its change of the base is there before the invocation, too */
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, key,
                                  "%s with an initialisation that edits the base is not computed",
                                  key);
    value = delta__scratch(b, json_array_size(list), sizeof(*value));
    if (!value)
        return CORE_E_NOMEM;
    json_array_foreach(list, i, v)
    {
        value[i] = json_is_integer(v) ? json_number_value(v) : -1.0;
    }
    n = i;
    if (!task || strcmp(task, "CAUSAL_LM") != 0) {
        l->is_never_used = true;
        return 0;
    }
    if (model_config(b->m)->n_stacks > 1)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, key,
                                  "%s: CAUSAL_LM of an encoder-decoder is not computed", key);
    l->is_invoked = true;
    return delta__invocation(b, key, value, n);
}

/* ---- trained tokens -------------------------------------------------------------- */

/* trainable_token_indices: a list, of the input embedding, or lists by the end of a module's
 * path. */
static int read_tokens(struct delta_builder *b, const struct delta__module *m, const void *config)
{
    json_t *said = json_object_get(config, "trainable_token_indices");
    const json_t *id = json_is_array(said) ? said : NULL;
    const char *key;
    json_t *v;

    json_object_foreach(said, key, v)
    {
        const size_t n = strlen(key);

        if (n <= m->n_path && memcmp(m->path + m->n_path - n, key, n) == 0 &&
            (n == m->n_path || m->path[m->n_path - n - 1] == '.'))
            id = v;
    }
    if (!json_is_array(id))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "trainable_token_indices",
                                  "trainable_token_indices: expected a list of the tokens of "
                                  "tensor %s",
                                  m->p.t->name);
    return delta__token_rows(b, m, id);
}

int delta__peft_lora(struct delta_builder *b, const json_t *config)
{
    static const struct pair_name pair[] = {
        {".lora_A.weight", ".lora_B.weight", ".lora_B.bias", false},
        {".lora_A", ".lora_B", NULL, false}, /* old files */
        {".lora_embedding_A", ".lora_embedding_B", NULL, true},
    };
    struct lora l = {.alpha.name = "alpha_pattern", .rank.name = "rank_pattern"};
    int rc = read_options(b, config, &l);

    if (rc == 0)
        rc = check_tying(b, config);
    if (rc == 0)
        rc = read_numbers(b, config, &l);
    if (rc == 0)
        rc = read_invocation(b, config, &l);
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const size_t n_name = strlen(t->name);

        for (size_t k = 0; rc == 0 && k < sizeof(pair) / sizeof(pair[0]); k++) {
            const size_t n = strlen(pair[k].a);

            if (n_name > n && strcmp(t->name + n_name - n, pair[k].a) == 0)
                rc = add_module(b, &l, &pair[k], t, n_name - n);
        }
    }
    if (rc == 0)
        rc = delta__each_module(b, ".token_adapter.trainable_tokens_delta", read_tokens, config);
    if (rc == 0)
        take_training_state(b);
    delta__by_module_release(&l.alpha);
    delta__by_module_release(&l.rank);
    return rc;
}
