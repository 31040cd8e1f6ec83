/* core/delta/read_adapterhub_lora.c - AdapterHub's LoRA and (IA)3: `<linear>.loras.NAME.`
 * lora_A and lora_B, or lora_B alone, which multiplies the output. VeRA and DoRA are
 * folded in read_adapterhub_dora.c.
 *
 * The configuration says at which linears the library looks for them; tensors elsewhere
 * are left over. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

struct ah_lora {
    const struct delta__ah *ah;
    const json_t *config;
    double alpha, r;
    bool is_scale; /* (IA)3: lora_B (out, 1) multiplies the output */
    bool is_vera, is_dora;
    bool has_gate; /* it takes the place of the scale */
    bool has_selfattn, has_intermediate, has_output;
};

/* ---- where ------------------------------------------------------------------------ */

/* What the library calls a linear of a plug-in model, whose interface names them. */
static const char *hooked_role_of(const json_t *interface, const char *path, size_t n)
{
    static const struct {
        const char *key, *role;
    } known[] = {
        {"attn_q_proj", "q"},
        {"attn_k_proj", "k"},
        {"attn_v_proj", "v"},
        {"layer_intermediate_proj", "intermediate"},
        {"layer_output_proj", "output"},
    };
    const json_t *names = json_object_get(interface, "interface");

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const char *name = json_string_value(json_object_get(names, known[i].key));
        const size_t n_name = name ? strlen(name) : 0;

        if (n_name && n_name < n && path[n - n_name - 1] == '.' &&
            strncmp(path + n - n_name, name, n_name) == 0)
            return known[i].role;
    }
    return NULL;
}

static bool lists(const json_t *list, const char *text)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), text) == 0)
            return true;
    }
    return false;
}

/* True if the configuration wants the linear of this role in this layer. */
static bool is_role_wanted(const struct ah_lora *l, const char *role, unsigned layer)
{
    const json_t *attn = json_object_get(l->config, "attn_matrices");

    if (!role || !delta__ah_has_layer(l->config, layer))
        return false;
    if (strcmp(role, "intermediate") == 0)
        return l->has_intermediate;
    if (strcmp(role, "output") == 0)
        return l->has_output;
    if (!attn) /* the default of LoRA, of (IA)3 */
        return l->has_selfattn && *role != (l->is_scale ? 'q' : 'k');
    return l->has_selfattn && lists(attn, role);
}

/* The same of the linear at path[0..n). */
static bool is_wanted(const struct delta_builder *b, const struct ah_lora *l,
                      const struct delta__place *p, const char *path, size_t n)
{
    const char *role = l->ah->interface ? hooked_role_of(l->ah->interface, path, n)
                                        : model_site_role(b->m, p->site);

    return is_role_wanted(l, role, site_layer_of(p->site));
}

/* ---- what ------------------------------------------------------------------------- */

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
    return delta__add_scale(b, p, scaled, DELTA__SCALE_OUT);
}

/* Tensors of one module: lora_A, gate.weight, gate.bias, as far as it has them. */
struct parts {
    const struct tensor *up, *down, *gate_w, *gate_b, *magnitude;
};

/* The LOWRANK of a place that an adapter before this one has, or NULL. */
static struct delta_lowrank *lowrank_before(const struct delta_builder *b, site_id site)
{
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_LOWRANK && b->op[i].site == site && !b->op[i].lowrank.join)
            return &b->op[i].lowrank.a;
    return NULL;
}

/* A stack: the second LoRA reads what the first one makes, B2 A2 (B1 A1 x), so that the
 * first one's up becomes B2 A2 B1. Only where a linear is as wide as its input. */
static int add_behind(struct delta_builder *b, const struct delta__place *p,
                      const struct delta__lowrank *in, struct delta_lowrank *first)
{
    const size_t n = p->n_out, r = in->down->dim[0], r1 = first->up.n_rows;
    const float *down, *up;
    float *up1, *t, *product;
    int rc = delta__expect(b, in->down, 2, r, p->n_in);

    if (rc == 0 && p->n_in != n)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
                                  "tensor %s: a stack of LoRAs is not computed where outputs are "
                                  "not as many as inputs",
                                  p->t->name);
    if (rc == 0)
        rc = delta__expect(b, p->t, 2, n, r);
    if (rc == 0)
        rc = delta__floats(b, in->down, &down);
    if (rc == 0)
        rc = delta__floats(b, p->t, &up);
    if (rc < 0)
        return rc;
    up1 = delta__scratch(b, r1 * n, sizeof(*up1));
    t = delta__scratch(b, r1 * r, sizeof(*t));
    product = delta__scratch(b, r1 * n, sizeof(*product));
    if (!up1 || !t || !product || delta__unturn(b, &first->up) < 0)
        return CORE_E_NOMEM;
    model_kern(b->m)->to_f32(first->up.type, r1 * n, first->up.data, up1);
    model_kern(b->m)->dots(r1, r, n, up1, n, TENSOR_F32, down, n, t, r);
    model_kern(b->m)->dots(r1, n, r, t, r, TENSOR_F32, up, r, product, n);
    first->up = (struct delta_mat){product, TENSOR_F32, (uint32_t)r1, (uint32_t)n};
    first->scale *= in->scale;
    b->n_folded++;
    return 0;
}

/* The LOWRANK or the SCALE of one linear, p->t its lora_B (vera_B). */
static int add_part(struct delta_builder *b, const struct ah_lora *l, const struct delta__place *p,
                    const struct parts *t)
{
    struct delta_lowrank *before = l->ah->is_behind ? lowrank_before(b, p->site) : NULL;
    struct delta__lowrank in = {
        .down = t->down,
        .up = t->up ? t->up : p->t,
        .scale = l->has_gate ? 1.0f : (float)(l->alpha / l->r),
        .gate_w = t->gate_w,
        .gate_b = t->gate_b,
    };
    int rc;

    if (l->ah->n_mixed > 1)
        in.scale *= l->ah->weight / (float)l->ah->n_mixed;
    if (l->is_scale)
        return add_ia3(b, p, l->alpha);
    if (before)
        return add_behind(b, p, &in, before);
    rc = delta__add_lowrank(b, p, &in);
    return rc < 0 || !t->magnitude ? rc : delta__ah_dora(b, p, in.down, in.up, t->magnitude);
}

/* Rows of a matrix. */
static struct tensor rows_of(const struct tensor *t, size_t row0, size_t n)
{
    const size_t row_bytes = t->n_bytes / t->dim[0];
    struct tensor part = *t;

    part.dim[0] = n;
    part.data = (const unsigned char *)t->data + row0 * row_bytes;
    part.n_bytes = n * row_bytes;
    return part;
}

/* A module of several matrices side by side (GPT-2's c_attn; LoRAMergedLinear): lora_A
 * and lora_B hold one after the other those of the matrices that have a LoRA, in the
 * module's order. */
static int add_merged(struct delta_builder *b, const struct ah_lora *l,
                      const struct delta__place *all, const struct parts *t)
{
    const size_t n_out = all->n_out / all->mod.n_parts, r = (size_t)l->r;
    unsigned n = 0;
    int rc;

    for (unsigned i = 0; i < all->mod.n_parts; i++)
        n += is_role_wanted(l, model_site_role(b->m, all->mod.site[i]), site_layer_of(all->site));
    if (n == 0)
        return 0;
    rc = delta__expect(b, all->t, 2, n * n_out, l->is_scale ? 1 : r);
    if (rc == 0 && t->down)
        rc = delta__expect(b, t->down, 2, n * r, all->n_in);
    if (rc == 0 && t->gate_w)
        rc = delta__expect(b, t->gate_w, 2, n, all->n_in);
    if (rc == 0 && t->gate_b)
        rc = delta__expect(b, t->gate_b, 1, n, 0);
    for (unsigned i = 0, k = 0; rc == 0 && i < all->mod.n_parts; i++) {
        struct tensor up, down, gate_w, gate_b;
        struct parts part = {0};
        struct delta__place p;

        if (!is_role_wanted(l, model_site_role(b->m, all->mod.site[i]), site_layer_of(all->site)))
            continue;
        up = rows_of(all->t, k * n_out, n_out);
        part.down = t->down ? (down = rows_of(t->down, k * r, r), &down) : NULL;
        part.gate_w = t->gate_w ? (gate_w = rows_of(t->gate_w, k, 1), &gate_w) : NULL;
        part.gate_b = t->gate_b ? (gate_b = rows_of(t->gate_b, k, 1), &gate_b) : NULL;
        k++;
        if (delta__place_at(b, &up, all->mod.site[i], &p))
            rc = add_part(b, l, &p, &part);
    }
    return rc;
}

static void take_parts(struct delta_builder *b, const struct tensor *up, const struct parts *t)
{
    const struct tensor *const all[] = {up, t->down, t->gate_w, t->gate_b};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            delta__take(b, all[i]);
}

/* True if the library reads the module as q, k and v side by side. */
static bool is_merged(const struct delta_builder *b, const struct delta__place *p)
{
    const char *role = model_site_role(b->m, p->site);

    return p->mod.n_parts == 3 && role && strcmp(role, "q") == 0;
}

/* The tensor beside a module's lora_B that has this name, which must be there. */
static int find_part(struct delta_builder *b, const struct tensor *up, const char *name,
                     const struct tensor **out)
{
    *out = delta__find(b, up->name, strlen(up->name) - strlen("lora_B"), name); /* or vera_B */
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, up->name,
                              "tensor %s stands without its %s", up->name, name);
}

/* One module; t is its lora_B, and path[0..n_path) the module's own path. */
static int add_linear(struct delta_builder *b, const struct ah_lora *l, const struct tensor *t,
                      size_t n_path)
{
    struct parts part = {0};
    struct delta__place p;
    char want[64];
    int rc = delta__place(b, t, t->name, n_path, false, &p);

    if (rc < 0 || (!is_merged(b, &p) && !is_wanted(b, l, &p, t->name, n_path)))
        return rc;
    if (l->is_vera)
        rc = delta__ah_vera(b, l->ah->name, &p, (size_t)l->r, &part.down, &part.up);
    else if (!l->is_scale)
        rc = find_part(b, t, "lora_A", &part.down);
    if (rc == 0 && l->is_dora)
        rc = find_part(b, t, "m.weight", &part.magnitude);
    if (rc == 0 && l->has_gate)
        rc = find_part(b, t, "gate.weight", &part.gate_w);
    if (rc == 0 && l->has_gate)
        rc = find_part(b, t, "gate.bias", &part.gate_b);
    if (rc < 0)
        return rc;
    if (is_merged(b, &p) && (l->is_vera || l->is_dora))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s: %s is not computed at this module", t->name,
                                  l->is_vera ? "VeRA" : "DoRA");
    if (is_merged(b, &p) && l->ah->place != DELTA__AH_ALONE)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s: the library composes no LoRAs of this module",
                                  t->name);
    if (is_merged(b, &p)) {
        const size_t n_ops = b->n_ops;

        rc = add_merged(b, l, &p, &part);
        if (rc == 0 && b->n_ops > n_ops)
            take_parts(b, t, &part);
        return rc;
    }
    if (part.down && !l->is_vera && (part.down->n_dims != 2 || (double)part.down->dim[0] != l->r)) {
        snprintf(want, sizeof(want), "[%g, inputs], as the configuration says", l->r);
        return delta__misfit(b, part.down, want);
    }
    return add_part(b, l, &p, &part);
}

/* ---- the configuration --------------------------------------------------------------- */

/* What follows a version's numbers marks one before that release: a, b, c, alpha, beta,
 * dev, rc, pre, preview; not post, rev, or a local "+...". */
static bool is_prerelease(const char *rest)
{
    int c;

    if (*rest == '.' || *rest == '-' || *rest == '_')
        rest++;
    c = tolower((unsigned char)*rest);
    if (c == 'r')
        return tolower((unsigned char)rest[1]) == 'c';
    if (c == 'p')
        return tolower((unsigned char)rest[1]) == 'r';
    return c >= 'a' && c <= 'd';
}

/* Libraries before 1.1.0 did not divide by the rank: their "alpha" is read as r.
 * `version` is like "adapters.1.0.1"; another library's, or none, is not before. */
static int is_before_division(struct delta_builder *b, const char *version, bool *out)
{
    static const char prefix[] = "adapters.";
    const unsigned since[3] = {1, 1, 0};
    unsigned n_parts = 0;
    int order = 0;
    const char *p;

    *out = false;
    if (!version || strncmp(version, prefix, sizeof(prefix) - 1) != 0)
        return 0;
    p = version + sizeof(prefix) - 1;
    while (isdigit((unsigned char)*p)) {
        unsigned long part = 0;

        for (; isdigit((unsigned char)*p); p++)
            part = part < 1000000 ? 10 * part + (unsigned long)(*p - '0') : part;
        if (order == 0) {
            const unsigned long want = n_parts < 3 ? since[n_parts] : 0;

            order = part < want ? -1 : part > want;
        }
        n_parts++;
        if (*p == '.' && isdigit((unsigned char)p[1]))
            p++;
    }
    if (n_parts == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "version",
                                  "version: '%.60s' is no version", version);
    /* "1" is 1.0.0, and "1.1" is 1.1.0 */
    *out = order < 0 || (order == 0 && (n_parts < 2 || is_prerelease(p)));
    return 0;
}

static int read_config(struct delta_builder *b, struct ah_lora *l)
{
    const struct {
        const char *key;
        bool dflt, *out;
    } flag[] = {
        {"selfattn_lora", true, &l->has_selfattn},
        {"intermediate_lora", false, &l->has_intermediate},
        {"output_lora", false, &l->has_output},
        {"use_gating", false, &l->has_gate},
        {"use_dora", false, &l->is_dora},
    };
    const char *mode;
    bool is_old = false;
    int rc = delta__json_number(b, l->config, "alpha", 8, &l->alpha);

    if (rc == 0)
        rc = delta__json_number(b, l->config, "r", 8, &l->r);
    if (rc == 0)
        rc = delta__json_str(b, l->config, "composition_mode", "add", &mode);
    for (size_t i = 0; rc == 0 && i < sizeof(flag) / sizeof(flag[0]); i++)
        rc = delta__json_bool(b, l->config, flag[i].key, flag[i].dflt, flag[i].out);
    if (rc == 0)
        rc = is_before_division(b, l->ah->version, &is_old);
    if (rc < 0)
        return rc;
    l->is_scale = strcmp(mode, "scale") == 0;
    if ((!l->is_scale && strcmp(mode, "add") != 0) || (l->is_scale && l->r != 1.0) ||
        !(l->r >= 1.0 && l->r < 1e9) || fabs(l->alpha) > 1e30)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "composition_mode",
                                  "composition_mode %.60s with r %g and alpha %g is not computed",
                                  mode, l->r, l->alpha);
    l->is_vera = json_is_real(json_object_get(l->config, "vera_d")) ||
                 json_is_real(json_object_get(l->config, "vera_b"));
    if (l->ah->place != DELTA__AH_ALONE &&
        (l->is_scale || l->is_vera || l->is_dora || l->ah->is_fused))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "adapter_setup.json",
                                  "adapter_setup.json: a composition of (IA)3, VeRA or DoRA, or "
                                  "a fusion of LoRA, is not computed");
    if (l->is_scale && (l->is_vera || l->is_dora))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "composition_mode",
                                  "composition_mode scale is not computed in VeRA or DoRA");
    if (l->is_scale && l->has_gate)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "use_gating",
                                  "use_gating is not computed in (IA)3");
    if (is_old)
        l->alpha = l->r;
    return 0;
}

int delta__ah_lora(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    struct ah_lora l = {.ah = ah, .config = config};
    const char *rest;
    int rc = read_config(b, &l);

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *mark = delta__ah_mark(t->name, "loras", ah->name, &rest);

        if (mark && mark != t->name && strcmp(rest, l.is_vera ? "vera_B" : "lora_B") == 0)
            rc = add_linear(b, &l, t, (size_t)(mark - t->name) - 1);
    }
    snprintf(b->method, sizeof(b->method), "%s", l.is_scale ? "ia3" : l.is_vera ? "vera" : "lora");
    return rc;
}
