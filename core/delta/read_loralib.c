/* core/delta/read_loralib.c - microsoft/LoRA's (loralib's) tensors in a delta of ours:
 * what torch.save(lora.lora_state_dict(model)) leaves, `<module>.lora_A` and `.lora_B`.
 *
 * The files say neither alpha nor rank, so delta.json does. lora.Linear and lora.Embedding
 * are plain pairs, s = alpha / r. lora.MergedLinear computes several outputs of one width
 * side by side, of which `enable_lora` lists those with a pair: A [r * pairs, n_in] has their
 * rows one after the other, and so B [width * pairs, r], a grouped convolution. That is one
 * pair of rank r * pairs whose B has blocks. */
#include <math.h>
#include <string.h>

#include "core/delta/delta_internal.h"

enum { RANK_MAX = 1 << 16 };

struct loralib {
    double alpha;
    size_t r;
    const json_t *enable; /* or NULL */
    size_t n_on;
};

static int read_enabled(struct delta_builder *b, const json_t *config, struct loralib *l)
{
    size_t i;
    json_t *v;

    l->enable = json_object_get(config, "enable_lora");
    if (!l->enable)
        return 0;
    json_array_foreach(l->enable, i, v)
    {
        if (!json_is_boolean(v))
            break;
        l->n_on += json_is_true(v);
    }
    if (l->n_on > 0 && i == json_array_size(l->enable))
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "enable_lora",
                              "delta.json: enable_lora: expected a list of true and false, as "
                              "lora.MergedLinear() had it");
}

static int read_numbers(struct delta_builder *b, const json_t *config, struct loralib *l)
{
    const json_t *alpha = json_object_get(config, "alpha"), *r = json_object_get(config, "r");

    if (!json_is_number(alpha) || !json_is_integer(r) || json_integer_value(r) < 1 ||
        json_integer_value(r) > RANK_MAX)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID,
                                  json_is_number(alpha) ? "r" : "alpha",
                                  "delta.json: files of microsoft/LoRA do not say lora_alpha and "
                                  "r: give them as \"alpha\", a number, and \"r\", a whole one");
    l->alpha = json_number_value(alpha);
    l->r = (size_t)json_integer_value(r);
    return read_enabled(b, config, l);
}

/* A MergedLinear's pair as one: in->up gets its blocks. */
static int merge(struct delta_builder *b, const struct loralib *l, const struct delta__place *p,
                 struct delta__lowrank *in)
{
    const size_t n = json_array_size(l->enable), width = n ? p->n_out / n : 0;
    const size_t rank = l->r * l->n_on;
    const float *B;
    float *up;
    size_t k = 0;
    int rc;

    if (n == 0 || p->n_out % n)
        return delta__misfit(b, in->up,
                             "all outputs and rank r (of a lora.MergedLinear: \"enable_lora\" in "
                             "delta.json, as long as the module has parts)");
    rc = delta__expect(b, in->down, 2, rank, p->n_in);
    if (rc == 0)
        rc = delta__expect(b, in->up, 2, width * l->n_on, l->r);
    if (rc == 0)
        rc = delta__check_rank(b, p, in->down, rank);
    if (rc == 0)
        rc = delta__floats(b, in->up, &B);
    if (rc < 0)
        return rc;
    in->up = delta__computed(b, in->up, p->n_out, rank, &up);
    if (!in->up)
        return CORE_E_NOMEM;
    for (size_t part = 0; part < n; part++) {
        if (!json_is_true(json_array_get(l->enable, part)))
            continue;
        for (size_t i = 0; i < width; i++)
            memcpy(up + (part * width + i) * rank + k * l->r, B + (k * width + i) * l->r,
                   l->r * sizeof(*up));
        k++;
    }
    return 0;
}

/* t is `<module>.lora_A`, n the length of <module>. */
static int add_pair(struct delta_builder *b, const struct loralib *l, const struct tensor *t,
                    size_t n)
{
    struct delta__lowrank in = {.down = t, .up = delta__find(b, t->name, n, ".lora_B")};
    struct delta__place p;
    int rc;

    if (!in.up)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its lora_B", t->name);
    rc = delta__place(b, t, t->name, n, false, &p);
    if (rc < 0)
        return rc;
    if (!tensor_is(t, 2, l->r, p.n_in) || !tensor_is(in.up, 2, p.n_out, l->r))
        rc = merge(b, l, &p, &in);
    in.scale = (float)(l->alpha / (double)l->r);
    if (rc == 0 && !isfinite(in.scale))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "alpha",
                                "delta.json: alpha: the scale is not finite");
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

bool delta__is_loralib(const char *name)
{
    const size_t n = strlen(name);

    return n > 7 && (strcmp(name + n - 7, ".lora_A") == 0 || strcmp(name + n - 7, ".lora_B") == 0);
}

/* Of a file without such tensors. */
static int refuse_keys(struct delta_builder *b, const json_t *config)
{
    static const char *const key[] = {"alpha", "r", "enable_lora"};

    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        if (json_object_get(config, key[i]))
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key[i],
                                      "delta.json: %s: no tensor <module>.lora_A is there", key[i]);
    return 0;
}

int delta__read_loralib(struct delta_builder *b, const json_t *config)
{
    struct loralib l = {0};
    bool is_read = false;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const size_t n = strlen(t->name);

        if (!delta__is_loralib(t->name) || t->name[n - 1] != 'A')
            continue; /* a lora_B without its lora_A is left over */
        if (!is_read)
            rc = read_numbers(b, config, &l);
        is_read = true;
        if (rc == 0)
            rc = add_pair(b, &l, t, n - 7);
    }
    return rc < 0 || is_read ? rc : refuse_keys(b, config);
}
