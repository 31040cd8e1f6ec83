/* core/delta/read_adapterhub.c - what AdapterHub's `adapters` saves: a configuration,
 * tensors whose names hold the adapter's name, and a head beside them.
 *
 * `config.architecture` names the method; a union is the sum of its parts, which share
 * one set of tensors, so each part's reader takes what is its own. LoRA and (IA)3 are
 * here; bottlenecks, prefixes and heads have their own files. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

const char *delta__ah_mark(const char *tensor, const char *kind, const char *name,
                           const char **rest)
{
    const size_t n_kind = strlen(kind), n_name = strlen(name);

    for (const char *p = strstr(tensor, kind); p; p = strstr(p + 1, kind)) {
        const char *q = p + n_kind;

        if ((p != tensor && p[-1] != '.') || *q != '.' || strncmp(q + 1, name, n_name) != 0 ||
            q[1 + n_name] != '.')
            continue;
        *rest = q + n_name + 2;
        return p;
    }
    return NULL;
}

bool delta__ah_has_layer(const json_t *config, unsigned layer)
{
    const json_t *v;
    size_t k;

    json_array_foreach(json_object_get(config, "leave_out"), k, v)
    {
        if (json_is_integer(v) && json_integer_value(v) == (json_int_t)layer)
            return false;
    }
    return true;
}

int delta__ah_act(struct delta_builder *b, const char *name, bool is_old, enum kern_act *out)
{
    static const struct {
        const char *name;
        enum kern_act act;
    } known[] = {
        {"relu", KERN_ACT_RELU},
        {"gelu", KERN_ACT_GELU},
        {"gelu_new", KERN_ACT_GELU_NEW},
        {"gelu_fast", KERN_ACT_GELU_NEW},
        {"gelu_pytorch_tanh", KERN_ACT_GELU_NEW},
        {"quick_gelu", KERN_ACT_QUICK_GELU},
        {"swish", KERN_ACT_SILU},
        {"silu", KERN_ACT_SILU},
        {"tanh", KERN_ACT_TANH},
        {"sigmoid", KERN_ACT_SIGMOID},
        {"leakyrelu", KERN_ACT_LEAKY_RELU},
        {"leaky_relu", KERN_ACT_LEAKY_RELU},
        {"linear", KERN_ACT_NONE},
    };
    char lower[32] = "";

    *out = KERN_ACT_NONE;
    if (!name)
        return 0;
    for (size_t i = 0; name[i] && i + 1 < sizeof(lower); i++)
        lower[i] = (char)tolower((unsigned char)name[i]);
    /* Before versions were written, "gelu" was the tanh form. */
    if (is_old && strcmp(lower, "gelu") == 0)
        snprintf(lower, sizeof(lower), "gelu_new");
    else if (is_old && strcmp(lower, "gelu_orig") == 0)
        snprintf(lower, sizeof(lower), "gelu");
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, lower) == 0) {
            *out = known[i].act;
            return 0;
        }
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "non_linearity",
                              "activation %.60s is not computed", name);
}

/* ---- LoRA and (IA)3 ------------------------------------------------------------ */

struct ah_lora {
    const char *name; /* the adapter's */
    double alpha;
    bool divides;  /* by the rank; files older than 1.1.0 did not */
    bool is_scale; /* (IA)3: lora_B (out, 1) multiplies the output */
};

static int add_ia3(struct delta_builder *b, const struct delta__place *p, double alpha)
{
    const float *vec;
    float *scaled;
    int rc = delta__expect(b, p->t, 2, p->n_out, 1);

    if (rc == 0)
        rc = delta__floats(b, p->t, &vec);
    if (rc < 0)
        return rc;
    scaled = delta__scratch(b, p->n_out, sizeof(*scaled));
    if (!scaled)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < p->n_out; i++)
        scaled[i] = vec[i] * (float)alpha;
    return delta__add_scale(b, p, scaled, DELTA_SCALE_OUT);
}

/* One linear; t is its lora_B, and path[0..n_path) the linear's own path. */
static int add_linear(struct delta_builder *b, const struct ah_lora *l, const struct tensor *t,
                      size_t n_path)
{
    struct delta__lowrank in = {.up = t};
    struct delta__place p;
    int rc = delta__place(b, t, t->name, n_path, false, &p);

    if (rc < 0)
        return rc;
    if (l->is_scale)
        return add_ia3(b, &p, l->alpha);
    in.down = delta__find(b, t->name, strlen(t->name) - 1, "A");
    if (!in.down)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its lora_A", t->name);
    if (in.down->n_dims != 2 || in.down->dim[0] == 0)
        return delta__misfit(b, in.down, "[rank, inputs] with a rank of 1 or more");
    in.scale = (float)(l->divides ? l->alpha / (double)in.down->dim[0] : 1.0);
    return delta__add_lowrank(b, &p, &in);
}

/* True if `version` ("adapters.1.0.1") is a library that did not divide by r. */
static bool is_before_division(const char *version)
{
    unsigned major, minor;

    return version && sscanf(version, "adapters.%u.%u", &major, &minor) == 2 &&
           (major < 1 || (major == 1 && minor < 1));
}

static int read_lora(struct delta_builder *b, const json_t *config, const char *name,
                     const char *version)
{
    static const char *const option[] = {"use_gating", "use_dora", "vera_d", "vera_b", NULL};
    struct ah_lora l = {.name = name};
    const char *mode, *rest;
    double r;
    int rc = delta__json_refuse(b, config, option);

    if (rc == 0)
        rc = delta__json_number(b, config, "alpha", 8, &l.alpha);
    if (rc == 0)
        rc = delta__json_number(b, config, "r", 8, &r);
    if (rc == 0)
        rc = delta__json_str(b, config, "composition_mode", "add", &mode);
    if (rc < 0)
        return rc;
    l.is_scale = strcmp(mode, "scale") == 0;
    l.divides = !is_before_division(version);
    if ((!l.is_scale && strcmp(mode, "add") != 0) || (l.is_scale && r != 1.0) ||
        fabs(l.alpha) > 1e30)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "composition_mode",
                                  "composition_mode %.60s with r %g and alpha %g is not computed",
                                  mode, r, l.alpha);
    for (size_t i = 0; i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *mark = delta__ah_mark(t->name, "loras", name, &rest);

        if (!mark || mark == t->name || strcmp(rest, "lora_B") != 0)
            continue;
        rc = add_linear(b, &l, t, (size_t)(mark - t->name) - 1);
        if (rc < 0)
            return rc;
    }
    snprintf(b->method, sizeof(b->method), "%s", l.is_scale ? "ia3" : "lora");
    return 0;
}

/* ---- methods -------------------------------------------------------------------- */

static int read_method(struct delta_builder *b, const json_t *config, const char *name,
                       const char *version, bool is_old)
{
    const json_t *arch = json_object_get(config, "architecture");
    const char *text = json_string_value(arch);

    if (!json_is_object(config))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "config",
                                  "adapter_config.json: config is not an object");
    if (!arch || json_is_null(arch))
        return delta__ah_bottleneck(b, config, name, is_old);
    if (text && strcmp(text, "lora") == 0)
        return read_lora(b, config, name, version);
    if (text && strcmp(text, "prefix_tuning") == 0)
        return delta__ah_prefix(b, config, name, is_old);
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "architecture",
                              "AdapterHub architecture %.60s is not computed",
                              text ? text : "(no text)");
}

/* A union: prefix and parallel bottleneck together are MAM. The rule for old LoRA files
 * does not hold inside unions, so parts see no version. */
static int read_union(struct delta_builder *b, const json_t *config, const char *name, bool is_old)
{
    const json_t *parts = json_object_get(config, "configs");
    bool has_prefix = false, has_parallel = false;
    const json_t *part;
    size_t i;

    if (json_array_size(parts) == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "configs",
                                  "adapter_config.json: a union without configs");
    json_array_foreach(parts, i, part)
    {
        const int rc = read_method(b, part, name, NULL, is_old);

        if (rc < 0)
            return rc;
        has_prefix |= strcmp(b->method, "prefix") == 0;
        has_parallel |= strcmp(b->method, "parallel") == 0;
    }
    snprintf(b->method, sizeof(b->method), "%s",
             has_prefix && has_parallel && i == 2 ? "mam" : "union");
    return 0;
}

static int load(struct delta_builder *b)
{
    bool is_found;
    int rc = delta__load(b, "adapter.safetensors", "pytorch_adapter.bin", &is_found);

    if (rc == 0 && !is_found)
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                            "no adapter.safetensors and no pytorch_adapter.bin");
    if (rc == 0)
        rc = delta__load(b, "model_head.safetensors", "pytorch_model_head.bin", &is_found);
    return rc < 0 ? rc : delta__tensors_ready(b);
}

int delta__read_adapterhub(struct delta_builder *b, const json_t *config)
{
    const json_t *method = json_object_get(config, "config");
    const char *arch = json_string_value(json_object_get(method, "architecture"));
    const char *name, *version;
    json_t *head = NULL;
    int rc = delta__json_str(b, config, "name", NULL, &name);

    if (rc == 0)
        rc = delta__json_str(b, config, "version", NULL, &version);
    if (rc < 0)
        return rc;
    if (!name || !*name)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "name",
                                  "adapter_config.json: name is missing");
    rc = load(b);
    if (rc < 0)
        return rc;
    rc = arch && strcmp(arch, "union") == 0 ? read_union(b, method, name, !version)
                                            : read_method(b, method, name, version, !version);
    if (rc == 0)
        rc = delta__json_file(b, "head_config.json", &head);
    if (rc == 0 && head)
        rc = delta__ah_head(b, head, !version);
    json_decref(head);
    return rc;
}
