/* core/delta/read_peft_factors.c - methods of PEFT whose change is of low rank, though their
 * files hold something else than a pair: each becomes LOWRANK when it is compiled.
 *
 *   DELORA   B diag(lambda / (r |A_k| |B_k|)) A (x (*) w_norm)         (Bini et al. 2025)
 *   DEFT     Q (s R - right^T W), Q = P and right = relu(P), or both the Q of P's QR
 *   GRALORA  a k x k grid of small pairs, and a LoRA beside it on request
 *   MISS     inputs summed by their number modulo r, then r -> outputs
 *   POLY     a mixture of skills, of one of the file's tasks           (Ponti et al. 2023) */
#include <math.h>
#include <string.h>

#include "core/delta/delta_internal.h"

int delta__pair_make(struct delta_builder *b, const struct delta__module *m, size_t rank,
                     struct delta__pair *p)
{
    int rc = delta__check_linear(b, &m->p, DELTA_LOWRANK);

    if (rc == 0)
        rc = delta__check_rank(b, &m->p, m->p.t, rank);
    if (rc < 0)
        return rc;
    p->rank = rank;
    p->down = delta__computed(b, m->p.t, rank, m->p.n_in, &p->A);
    p->up = delta__computed(b, m->p.t, m->p.n_out, rank, &p->B);
    return p->down && p->up ? 0 : CORE_E_NOMEM;
}

int delta__pair_add(struct delta_builder *b, const struct delta__module *m,
                    const struct delta__pair *p, float scale)
{
    const struct delta__lowrank in = {.down = p->down, .up = p->up, .scale = scale};

    return delta__add_lowrank(b, &m->p, &in);
}

/* ---- DeLoRA -------------------------------------------------------------------------- */

static float length(const float *x, size_t n, size_t stride)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i * stride] * (double)x[i * stride];
    return sqrt(sum) > 1e-4 ? (float)sqrt(sum) : 1e-4f;
}

static int read_delora(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const size_t rank = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0;
    const float *A, *B, *norm, *lambda;
    struct delta__pair p;
    int rc = delta__expect(b, m->p.t, 2, rank, m->p.n_in);

    (void)arg;
    if (rc == 0)
        rc = delta__values(b, m, ".delora_A", (size_t[]){rank, m->p.n_in}, 2, &A);
    if (rc == 0)
        rc = delta__values(b, m, ".delora_B", (size_t[]){m->p.n_out, rank}, 2, &B);
    if (rc == 0)
        rc = delta__values(b, m, ".delora_w_norm", (size_t[]){m->p.n_in}, 1, &norm);
    if (rc == 0)
        rc = delta__values(b, m, ".delora_lambda", (size_t[]){1}, 1, &lambda);
    if (rc == 0)
        rc = delta__pair_make(b, m, rank, &p);
    if (rc < 0)
        return rc;
    memcpy(p.B, B, m->p.n_out * rank * sizeof(*B));
    for (size_t k = 0; k < rank; k++) {
        const float s = lambda[0] / (float)rank /
                        (length(A + k * m->p.n_in, m->p.n_in, 1) * length(B + k, m->p.n_out, rank));

        for (size_t i = 0; i < m->p.n_in; i++)
            p.A[k * m->p.n_in + i] = s * A[k * m->p.n_in + i] * norm[i];
    }
    return delta__pair_add(b, m, &p, 1.0f);
}

int delta__peft_delora(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".delora_A", read_delora, NULL);
}

/* ---- DEFT ---------------------------------------------------------------------------- */

struct deft {
    bool is_qr, only_removes;
    double alpha;
};

/* Householder's QR as LAPACK computes it, whose signs the file's R stands for: q [n, rank]
 * becomes Q of a [n, rank]. v [n, rank]. */
static void orthogonalise(size_t n, size_t rank, double *a, double *v, double *q)
{
    for (size_t k = 0; k < rank; k++) {
        double tail = 0.0, beta, norm = 0.0;

        for (size_t i = 0; i < n; i++)
            v[i * rank + k] = i < k ? 0.0 : a[i * rank + k];
        for (size_t i = k + 1; i < n; i++)
            tail += v[i * rank + k] * v[i * rank + k];
        beta = sqrt(tail + v[k * rank + k] * v[k * rank + k]);
        v[k * rank + k] += v[k * rank + k] < 0.0 ? -beta : beta;
        for (size_t i = k; i < n; i++)
            norm += v[i * rank + k] * v[i * rank + k];
        for (size_t i = k; i < n; i++)
            v[i * rank + k] /= tail > 0.0 && norm > 0.0 ? sqrt(norm) : INFINITY;
        for (size_t j = k; j < rank; j++) {
            double dot = 0.0;

            for (size_t i = k; i < n; i++)
                dot += v[i * rank + k] * a[i * rank + j];
            for (size_t i = k; i < n; i++)
                a[i * rank + j] -= 2.0 * dot * v[i * rank + k];
        }
    }
    for (size_t j = 0; j < rank; j++) {
        for (size_t i = 0; i < n; i++)
            q[i * rank + j] = i == j;
        for (size_t k = rank; k-- > 0;) {
            double dot = 0.0;

            for (size_t i = 0; i < n; i++)
                dot += v[i * rank + k] * q[i * rank + j];
            for (size_t i = 0; i < n; i++)
                q[i * rank + j] -= 2.0 * dot * v[i * rank + k];
        }
    }
}

/* Q into p->B, and p->A -= right^T W. */
static int remove_subspace(struct delta_builder *b, const struct delta__module *m,
                           const struct deft *d, const float *P, const struct delta__pair *p)
{
    const size_t n = m->p.n_out, rank = p->rank;
    double *a = delta__scratch(b, 3 * n * rank, sizeof(*a));
    float *w = delta__scratch(b, m->p.n_in, sizeof(*w));

    if (!a || !w)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n * rank; i++)
        a[i] = (double)P[i];
    if (d->is_qr)
        orthogonalise(n, rank, a, a + n * rank, a + 2 * n * rank);
    for (size_t i = 0; i < n * rank; i++)
        p->B[i] = d->is_qr ? (float)a[2 * n * rank + i] : P[i];
    for (size_t o = 0; o < n; o++) {
        delta__base_row(b, &m->p, o, w);
        for (size_t k = 0; k < rank; k++) {
            const float right = p->B[o * rank + k];

            for (size_t i = 0; (d->is_qr || right > 0.0f) && i < m->p.n_in; i++)
                p->A[k * m->p.n_in + i] -= right * w[i];
        }
    }
    return 0;
}

static int read_deft(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct deft *d = arg;
    const size_t rank = m->p.t->n_dims == 2 ? m->p.t->dim[1] : 0;
    const float scale = d->alpha > 0.0 ? (float)(d->alpha / (double)rank) : 1.0f;
    const float *P, *R = NULL;
    struct delta__pair p;
    int rc;

    if (rank == 0 || rank > m->p.n_out || rank > m->p.n_in || !model_has_weight(b->m, m->p.site))
        return delta__misfit(b, m->p.t, "[outputs, rank], a rank of 1 to the module's width");
    rc = delta__values(b, m, ".deft_P", (size_t[]){m->p.n_out, rank}, 2, &P);
    if (rc == 0 && !d->only_removes)
        rc = delta__values(b, m, ".deft_R", (size_t[]){rank, m->p.n_in}, 2, &R);
    if (rc == 0)
        rc = delta__pair_make(b, m, rank, &p);
    if (rc < 0)
        return rc;
    for (size_t i = 0; R && i < rank * m->p.n_in; i++)
        p.A[i] = scale * R[i];
    rc = remove_subspace(b, m, d, P, &p);
    return rc < 0 ? rc : delta__pair_add(b, m, &p, 1.0f);
}

int delta__peft_deft(struct delta_builder *b, const json_t *config)
{
    struct deft d;
    const char *method;
    int rc = delta__json_str(b, config, "decomposition_method", "relu", &method);

    if (rc == 0)
        rc = delta__json_bool(b, config, "para", false, &d.only_removes);
    if (rc == 0)
        rc = delta__json_number(b, config, "alpha", 0, &d.alpha);
    if (rc == 0 && strcmp(method, "relu") != 0 && strcmp(method, "qr") != 0)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "decomposition_method",
                                "decomposition_method '%.60s' is not computed", method);
    if (rc < 0)
        return rc;
    d.is_qr = strcmp(method, "qr") == 0;
    return delta__each_module(b, ".deft_P", read_deft, &d);
}

/* ---- GraLoRA --------------------------------------------------------------------------- */

struct gralora {
    double alpha, r, hybrid_r;
};

/* Outputs in block j read inputs in block n through A[n], columns j s .. j s + s, and B[j],
 * rows n s .. n s + s, s = r / k. */
static int read_gralora(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct gralora *g = arg;
    const struct tensor *t = m->p.t, *general = delta__beside(b, m, ".gralora_A_general.weight");
    const size_t k = t->n_dims == 3 ? t->dim[0] : 0, r = k ? t->dim[2] : 0, s = k ? r / k : 0;
    const size_t w_in = k ? m->p.n_in / k : 0, w_out = k ? m->p.n_out / k : 0;
    const float scale = (float)(g->alpha / ((double)r + g->hybrid_r)), *A, *B;
    struct delta__lowrank in = {.down = general, .scale = scale};
    struct delta__pair p;
    int rc = 0;

    if (s == 0 || s * k != r || w_in * k != m->p.n_in || w_out * k != m->p.n_out || r > m->p.n_in ||
        k > m->p.n_in)
        return delta__misfit(b, t, "[k, inputs / k, r], r a multiple of k");
    rc = delta__values(b, m, ".gralora_A", (size_t[]){k, w_in, r}, 3, &A);
    if (rc == 0)
        rc = delta__values(b, m, ".gralora_B", (size_t[]){k, r, w_out}, 3, &B);
    if (rc == 0)
        rc = delta__pair_make(b, m, k * r, &p);
    if (rc < 0)
        return rc;
    for (size_t c = 0; c < k * r; c++) { /* (n, j, its number) */
        const size_t n = c / r, j = c % r / s;

        for (size_t i = 0; i < w_in; i++)
            p.A[c * m->p.n_in + n * w_in + i] = A[(n * w_in + i) * r + c % r];
        for (size_t o = 0; o < w_out; o++)
            p.B[(j * w_out + o) * k * r + c] = B[(j * r + n * s + c % s) * w_out + o];
    }
    rc = delta__pair_add(b, m, &p, scale);
    if (rc < 0 || !general)
        return rc;
    rc = delta__beside_must(b, m, ".gralora_B_general.weight", &in.up);
    return rc < 0 ? rc : delta__add_lowrank(b, &m->p, &in);
}

int delta__peft_gralora(struct delta_builder *b, const json_t *config)
{
    struct gralora g;
    int rc = delta__json_number(b, config, "alpha", 64, &g.alpha);

    if (rc == 0)
        rc = delta__json_number(b, config, "hybrid_r", 0, &g.hybrid_r);
    if (rc == 0 && !(g.hybrid_r >= 0.0 && isfinite(g.alpha)))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "hybrid_r",
                                "hybrid_r: expected 0 or more");
    return rc < 0 ? rc : delta__each_module(b, ".gralora_A", read_gralora, &g);
}

/* ---- MiSS ------------------------------------------------------------------------------ */

/* The block of MiSS (r, outputs), or of "mini" (r, some), repeated. */
static int read_miss(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const bool is_mini = *(const bool *)arg;
    const struct tensor *t = m->p.t;
    const size_t r = t->n_dims == 2 ? t->dim[0] : 0, n = r ? t->dim[1] : 0;
    const float *x;
    struct delta__pair p;
    int rc;

    if (n == 0 || r > m->p.n_in || (is_mini ? m->p.n_out % n != 0 : n != m->p.n_out))
        return delta__misfit(b, t, "[r, outputs]");
    rc = delta__floats(b, t, &x);
    if (rc == 0)
        rc = delta__pair_make(b, m, r, &p);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m->p.n_in; i++)
        p.A[i % r * m->p.n_in + i] = 1.0f;
    for (size_t o = 0; o < m->p.n_out; o++)
        for (size_t k = 0; k < r; k++)
            p.B[o * r + k] = x[k * n + o % n];
    return delta__pair_add(b, m, &p, 1.0f);
}

/* "bat": each block w of r x r weights becomes w + w B + B, one B for a row of blocks. */
static int change_bat(struct delta_builder *b, const struct delta__module *m, const void *arg,
                      float *w)
{
    const struct tensor *t = m->p.t;
    const size_t r = t->n_dims == 3 ? t->dim[1] : 0, n_in = m->p.n_in;
    float *row;
    const float *B;
    int rc;

    (void)arg;
    if (r == 0 || t->dim[2] != r || t->dim[0] * r != m->p.n_out || n_in % r != 0)
        return delta__misfit(b, t, "[outputs / r, r, r]");
    rc = delta__floats(b, t, &B);
    row = rc == 0 ? delta__scratch(b, r, sizeof(*row)) : NULL;
    if (!row)
        return rc < 0 ? rc : CORE_E_NOMEM;
    for (size_t o = 0; o < m->p.n_out; o++)
        for (size_t c = 0; c < n_in; c += r) {
            const float *block = B + o / r * r * r;
            float *x = w + o * n_in + c;

            memcpy(row, block + o % r * r, r * sizeof(*row));
            for (size_t k = 0; k < r; k++)
                for (size_t q = 0; q < r; q++)
                    row[q] += x[k] * block[k * r + q];
            for (size_t q = 0; q < r; q++)
                x[q] += row[q];
        }
    return 0;
}

int delta__peft_miss(struct delta_builder *b, const json_t *config)
{
    const char *init = json_string_value(json_object_get(config, "init_weights"));
    const bool is_mini = init && strcmp(init, "mini") == 0;

    if (init && strcmp(init, "bat") == 0)
        return delta__each_weight(b, ".miss_block", change_bat, NULL);
    return delta__each_module(b, ".miss_block", read_miss, &is_mini);
}

/* ---- Poly ------------------------------------------------------------------------------ */

/* What one task takes of each skill, [splits, skills]. */
static int read_mix(struct delta_builder *b, const struct delta__module *m, size_t n_splits,
                    size_t n_skills, double **out)
{
    const struct tensor *t;
    const float *logit;
    size_t task;
    int rc = delta__beside_must(b, m, ".poly_router.module_logits", &t);

    if (rc == 0 && (t->n_dims != 2 || t->dim[1] != n_splits * n_skills))
        rc = delta__misfit(b, t, "[tasks, splits x skills]");
    if (rc == 0)
        rc = delta__task_id(b, t->dim[0], &task);
    if (rc == 0)
        rc = delta__floats(b, t, &logit);
    *out = rc == 0 ? delta__scratch(b, n_splits * n_skills, sizeof(**out)) : NULL;
    if (!*out)
        return rc < 0 ? rc : CORE_E_NOMEM;
    for (size_t q = 0; q < n_splits; q++) {
        double sum = 1e-12;

        for (size_t s = 0; s < n_skills; s++) {
            const size_t at = q * n_skills + s;

            (*out)[at] = 1.0 / (1.0 + exp(-(double)logit[task * n_splits * n_skills + at]));
            sum += (*out)[at];
        }
        for (size_t s = 0; s < n_skills; s++)
            (*out)[q * n_skills + s] /= sum;
    }
    return 0;
}

static int read_poly(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct tensor *t = m->p.t;
    const size_t n_splits = t->n_dims == 4 ? t->dim[0] : 0, n_skills = n_splits ? t->dim[1] : 0;
    const size_t w_in = n_splits ? t->dim[2] : 0, r = n_splits ? t->dim[3] : 0;
    const size_t w_out = n_splits ? m->p.n_out / n_splits : 0;
    const float *A, *B;
    double *mix = NULL;
    struct delta__pair p;
    int rc;

    (void)arg;
    if (n_skills == 0 || r == 0 || r > m->p.n_in || w_in > m->p.n_in ||
        n_splits * w_in != m->p.n_in || n_splits * w_out != m->p.n_out)
        return delta__misfit(b, t, "[splits, skills, inputs / splits, rank]");
    rc = delta__floats(b, t, &A);
    if (rc == 0)
        rc = delta__values(b, m, ".poly_lora_B", (size_t[]){n_splits, n_skills, r, w_out}, 4, &B);
    if (rc == 0)
        rc = read_mix(b, m, n_splits, n_skills, &mix);
    if (rc == 0)
        rc = delta__pair_make(b, m, r, &p);
    if (rc < 0)
        return rc;
    for (size_t at = 0; at < n_splits * n_skills; at++) {
        const size_t q = at / n_skills;
        const float share = (float)mix[at];

        for (size_t k = 0; k < r; k++) {
            for (size_t i = 0; i < w_in; i++)
                p.A[k * m->p.n_in + q * w_in + i] += share * A[(at * w_in + i) * r + k];
            for (size_t o = 0; o < w_out; o++)
                p.B[(q * w_out + o) * r + k] += share * B[(at * r + k) * w_out + o];
        }
    }
    return delta__pair_add(b, m, &p, 1.0f / (float)r);
}

int delta__peft_poly(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".poly_lora_A", read_poly, NULL);
}
