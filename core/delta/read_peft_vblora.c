/* core/delta/read_peft_vblora.c - PEFT's VB-LoRA (Li et al. 2024): A and B are made of parts,
 * each a mixture of a few vectors of one bank, `base_model.vblora_vector_bank` (vectors,
 * length). The file says for each part logits of all vectors, of which the topk largest count
 * by their softmax, or (save_only_topk_weights) their numbers and all weights but the last. */
#include <math.h>
#include <stdio.h>

#include "core/delta/delta_internal.h"

struct bank {
    const float *vector; /* [n, length] */
    size_t n, length, topk;
};

/* One matrix's parts: as many as the first two dimensions say. */
struct parts {
    size_t d0, d1;
    const float *logit;    /* [d0, d1, vectors], or NULL and */
    const float *weight;   /* [d0, d1, topk - 1] */
    const int64_t *number; /* [d0, d1, topk] */
};

static int read_parts(struct delta_builder *b, const struct delta__module *m,
                      const struct bank *bank, const char *name, struct parts *p)
{
    const size_t n = p->d0 * p->d1 * bank->topk;
    const struct tensor *t;
    char full[64];
    int64_t *number;
    int rc;

    if (delta__beside(b, m, name))
        return delta__values(b, m, name, (size_t[]){p->d0, p->d1, bank->n}, 3, &p->logit);
    snprintf(full, sizeof(full), "%s_topk_weights", name);
    rc = delta__values(b, m, full, (size_t[]){p->d0, p->d1, bank->topk - 1}, 3, &p->weight);
    snprintf(full, sizeof(full), "%s_topk_indices", name);
    if (rc == 0)
        rc = delta__beside_must(b, m, full, &t);
    if (rc < 0)
        return rc;
    number = delta__scratch(b, n, sizeof(*number));
    if (!number)
        return CORE_E_NOMEM;
    if (t->n_dims != 3 || t->dim[0] != p->d0 || t->dim[1] != p->d1 || t->dim[2] != bank->topk ||
        !tensor_to_i64(t, 0, n, number))
        return delta__misfit(b, t, "whole numbers, topk for each part");
    for (size_t i = 0; i < n; i++)
        if (number[i] < 0 || (uint64_t)number[i] >= bank->n)
            return delta__misfit(b, t, "numbers of vectors in the bank");
    delta__take(b, t);
    p->number = number;
    return 0;
}

/* out [length] with stride = the mixture of part `at`. used [vectors] is scratch. */
static void mix(const struct bank *bank, const struct parts *p, size_t at, bool *used, float *out,
                size_t stride)
{
    const float *logit = p->logit ? p->logit + at * bank->n : NULL;
    double sum = 0.0, first = 0.0, left = 1.0;

    for (size_t i = 0; logit && i < bank->n; i++)
        used[i] = false;
    for (size_t k = 0; k < bank->topk; k++) {
        size_t v = 0;
        double share;

        if (logit) {
            while (used[v])
                v++;
            for (size_t i = v + 1; i < bank->n; i++)
                if (!used[i] && logit[i] > logit[v])
                    v = i;
            used[v] = true;
            first = k ? first : (double)logit[v];
            share = exp((double)logit[v] - first);
        } else {
            v = (size_t)p->number[at * bank->topk + k];
            share = k + 1 < bank->topk ? (double)p->weight[at * (bank->topk - 1) + k] : left;
            left -= share;
        }
        sum += share;
        for (size_t i = 0; i < bank->length; i++)
            out[i * stride] += (float)share * bank->vector[v * bank->length + i];
    }
    for (size_t i = 0; logit && i < bank->length; i++)
        out[i * stride] = (float)((double)out[i * stride] / sum);
}

static int read_module(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct bank *bank = arg;
    const size_t rank = m->p.t->n_dims == 3 ? m->p.t->dim[0] : 0;
    struct parts in = {.d0 = rank, .d1 = m->p.n_in / bank->length};
    struct parts out = {.d0 = m->p.n_out / bank->length, .d1 = rank};
    struct delta__lowrank pair = {.scale = 1.0f};
    bool *used = delta__scratch(b, bank->n, sizeof(*used));
    float *A, *B;
    int rc;

    if (rank == 0 || rank > m->p.n_in || in.d1 * bank->length != m->p.n_in ||
        out.d0 * bank->length != m->p.n_out)
        return delta__misfit(b, m->p.t, "[rank, inputs / length of a vector, ...]");
    rc = read_parts(b, m, bank, ".vblora_logits_A", &in);
    if (rc == 0)
        rc = read_parts(b, m, bank, ".vblora_logits_B", &out);
    if (rc < 0)
        return rc;
    pair.down = delta__computed(b, m->p.t, rank, m->p.n_in, &A);
    pair.up = delta__computed(b, m->p.t, m->p.n_out, rank, &B);
    if (!pair.down || !pair.up || !used)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < rank * in.d1; i++)
        mix(bank, &in, i, used, A + i * bank->length, 1);
    for (size_t i = 0; i < out.d0 * rank; i++)
        mix(bank, &out, i, used, B + i / rank * bank->length * rank + i % rank, rank);
    return delta__add_lowrank(b, &m->p, &pair);
}

int delta__peft_vblora(struct delta_builder *b, const json_t *config)
{
    static const char name[] = "base_model.vblora_vector_bank";
    const struct tensor *t = delta__find(b, name, sizeof(name) - 1, "");
    struct bank bank;
    double topk;
    int rc = delta__json_number(b, config, "topk", 2, &topk);

    if (rc == 0 && !t)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                "the adapter has no tensor "
                                "%s",
                                name);
    if (rc == 0 && (t->n_dims != 2 || t->dim[0] == 0 || t->dim[1] == 0 || !(topk >= 1.0) ||
                    topk > (double)t->dim[0]))
        rc = delta__misfit(b, t, "[vectors, length], topk vectors or more");
    if (rc == 0)
        rc = delta__floats(b, t, &bank.vector);
    if (rc < 0)
        return rc;
    bank.n = t->dim[0];
    bank.length = t->dim[1];
    bank.topk = (size_t)topk;
    rc = delta__each_module(b, ".vblora_logits_A", read_module, &bank);
    return rc < 0 ? rc : delta__each_module(b, ".vblora_logits_A_topk_weights", read_module, &bank);
}
