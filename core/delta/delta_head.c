/* core/delta/delta_head.c - from what a reader found of a head, and what task.json
 * says, to the steps that answer.
 *
 * Heads under Hugging Face's names are those of its classes: the family's table
 * (model_head()) says which rows are pooled and which layers follow. AdapterHub lists its
 * layers itself. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* Epsilon of the LayerNorm in AdapterHub's language-model heads on bases whose
 * configuration names none (layer_norm_eps is BERT's key, not a decoder's). */
static const float head_norm_eps = 1e-12f;

int delta__form_of_class(struct delta_builder *b, const char *class_name, enum delta__form *out)
{
    static const struct {
        const char *part;
        enum delta__form form;
    } known[] = {
        {"ForSequenceClassification", DELTA__FORM_SEQUENCE},
        {"ForTokenClassification", DELTA__FORM_TOKENS},
        {"ForQuestionAnswering", DELTA__FORM_SPAN},
        {"ForMultipleChoice", DELTA__FORM_CHOICE},
        {"ForCausalLM", DELTA__FORM_LM},
        {"LMHeadModel", DELTA__FORM_LM},
        {"ForConditionalGeneration", DELTA__FORM_LM},
        {"AdapterModel", DELTA__FORM_UNSAID},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strstr(class_name, known[i].part)) {
            *out = known[i].form;
            return 0;
        }
    if (strstr(class_name, "ForMaskedLM"))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "model_class",
                                  "%.100s fills gaps in a text, and no kind of task answers with "
                                  "that: save the adapter without this head, or with one of the "
                                  "other kinds",
                                  class_name);
    if (strstr(class_name, "For"))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "model_class",
                                  "the head of %.100s is not computed", class_name);
    *out = DELTA__FORM_UNSAID;
    return 0;
}

/* Appends one step; *width is the vector's width before and after it. */
static int add_step(struct delta_builder *b, const struct delta__dense *l, size_t *width)
{
    struct delta_head *h = &b->head;
    struct delta_head_step *s = &h->step[h->n_steps];
    const float **vec[] = {&s->bias, &s->gamma, &s->beta};
    const struct tensor *t[] = {l->b, l->gamma, l->beta};
    const size_t n_out = l->w->n_dims == 2 ? l->w->dim[0] : 0;
    int rc;

    if (h->n_steps == DELTA_HEAD_STEPS_MAX)
        return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED, "the head has more than %d layers",
                            (int)DELTA_HEAD_STEPS_MAX);
    if (n_out == 0)
        return delta__misfit(b, l->w, "[outputs, inputs]");
    rc = delta__matrix(b, l->w, n_out, *width, &s->w);
    for (int i = 0; rc == 0 && i < 3; i++) {
        if (!t[i])
            continue;
        rc = delta__expect(b, t[i], 1, n_out, 0);
        if (rc == 0)
            rc = delta__floats(b, t[i], vec[i]);
    }
    if (rc < 0)
        return rc;
    s->act = l->act;
    s->eps = l->gamma ? head_norm_eps : 0.0f;
    h->n_steps++;
    *width = n_out;
    return 0;
}

/* The norm behind the adapter's own pooler: its own too, or the base's. */
static void add_pooler_norm(struct delta_builder *b)
{
    const site_id site = site_make(0, SITE_POOLER_NORM);
    struct delta_head_step *s = &b->head.step[b->head.n_steps - 1];

    s->gamma = model_norm_gamma(b->m, site);
    s->beta = model_norm_beta(b->m, site);
    s->eps = model_config(b->m)->norm_eps;
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_NORM && b->op[i].site == site) {
            s->gamma = b->op[i].norm.gamma ? b->op[i].norm.gamma : s->gamma;
            s->beta = b->op[i].norm.beta ? b->op[i].norm.beta : s->beta;
        }
}

/* The base's pooler, or the adapter's own copy of it, before the head's layers. */
static int pass_pooler(struct delta_builder *b, size_t *width)
{
    const struct model_config *c = model_config(b->m);
    struct delta__dense l = b->plan.pooler;
    int rc;

    if (!l.w) {
        if (!c->has_pooler)
            return core_err_set(b->err, CORE_E_ADAPTER_MISMATCH,
                                "the head of this adapter stands on a pooler, and this base has "
                                "none");
        b->head.passes_pooler = true;
        return 0;
    }
    if (!l.b && !(c->has_pooler && !model_site_bias(b->m, site_make(0, SITE_POOLER))))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, l.w->name,
                                  "tensor %s stands without its bias", l.w->name);
    l.act = c->pooler_act;
    rc = add_step(b, &l, width);
    if (rc == 0)
        add_pooler_norm(b);
    return rc;
}

static int add_pooler(struct delta_builder *b, size_t *width)
{
    const int rc = pass_pooler(b, width);

    b->head.pool = b->head.passes_pooler ? DELTA_POOL_POOLER : DELTA_POOL_CLS;
    return rc;
}

/* The class that a head of the plan's form belongs to, or NULL. */
static const struct model_head *class_of(const struct delta_builder *b)
{
    switch (b->plan.form) {
    case DELTA__FORM_SEQUENCE:
        return model_head(b->m, MODEL_FORM_SEQUENCE);
    case DELTA__FORM_TOKENS:
        return model_head(b->m, MODEL_FORM_TOKENS);
    case DELTA__FORM_SPAN:
        return model_head(b->m, MODEL_FORM_SPAN);
    case DELTA__FORM_CHOICE:
        return model_head(b->m, MODEL_FORM_CHOICE);
    default:
        return NULL;
    }
}

/* Which rows a head of one answer for a sequence pools. */
static enum model_head_pool sequence_pool(const struct delta_builder *b)
{
    if (!b->plan.n_layers && class_of(b))
        return class_of(b)->pool;
    /* AdapterHub's decoders pool their last token, whatever use_pooler says. */
    if (b->plan.wants_pooler && !model_last_stack(model_config(b->m))->is_causal)
        return MODEL_HEAD_POOLER;
    return model_flexible_pool(b->m);
}

static const enum delta_pool pool_of_config[] = {
    [MODEL_POOL_CLS] = DELTA_POOL_CLS,
    [MODEL_POOL_MEAN] = DELTA_POOL_MEAN,
    [MODEL_POOL_LAST] = DELTA_POOL_LAST,
};

static int choose_sequence_pool(struct delta_builder *b, size_t *width)
{
    switch (sequence_pool(b)) {
    case MODEL_HEAD_POOLER:
        return add_pooler(b, width);
    case MODEL_HEAD_LAST:
        b->head.pool = DELTA_POOL_LAST;
        b->head.end = b->plan.end;
        break;
    case MODEL_HEAD_EOS:
        b->head.pool = DELTA_POOL_LAST;
        b->head.end = DELTA_END_EOS;
        break;
    case MODEL_HEAD_EACH:
        b->head.pool = DELTA_POOL_TOKENS;
        break;
    case MODEL_HEAD_FIRST:
        b->head.pool = DELTA_POOL_CLS;
        break;
    case MODEL_HEAD_SAID:
        b->head.pool = pool_of_config[model_config(b->m)->head_pool];
        break;
    }
    return 0;
}

static int choose_pool(struct delta_builder *b, size_t *width)
{
    const struct delta__head *p = &b->plan;

    switch (p->form) {
    case DELTA__FORM_TOKENS:
    case DELTA__FORM_SPAN:
        b->head.pool = DELTA_POOL_TOKENS;
        break;
    case DELTA__FORM_LM:
        b->head.pool = DELTA_POOL_LAST;
        break;
    case DELTA__FORM_EMBEDDING:
        b->head.pool = p->has_pooling ? p->pooling : pool_of_config[model_config(b->m)->pooling];
        break;
    default:
        if (!p->has_pooling)
            return choose_sequence_pool(b, width);
        b->head.pool = p->pooling;
    }
    return 0;
}

static enum delta_kind kind_of(const struct delta__head *p, size_t n_outputs)
{
    switch (p->form) {
    case DELTA__FORM_TOKENS:
        return DELTA_TAGGING;
    case DELTA__FORM_SPAN:
        return DELTA_SPAN;
    case DELTA__FORM_CHOICE:
        return DELTA_MULTIPLE_CHOICE;
    case DELTA__FORM_LM:
        return DELTA_GENERATION;
    case DELTA__FORM_EMBEDDING:
        return DELTA_EMBEDDING;
    default:
        break;
    }
    switch (p->problem) {
    case DELTA__PROBLEM_MULTI:
        return DELTA_MULTI_LABEL;
    case DELTA__PROBLEM_REGRESSION:
        return DELTA_REGRESSION;
    case DELTA__PROBLEM_SINGLE:
        return DELTA_CLASSIFICATION;
    default:
        return n_outputs == 1 ? DELTA_REGRESSION : DELTA_CLASSIFICATION;
    }
}

/* A parameter of a class's head: the adapter's, else the base checkpoint's, else NULL. */
static const struct tensor *param(const struct delta_builder *b, const char *module,
                                  const char *suffix)
{
    char path[256];

    snprintf(path, sizeof(path), "%s%s", module, suffix);
    for (unsigned i = 0; i < b->plan.n_params; i++)
        if (strcmp(b->plan.param[i].path, path) == 0)
            return b->plan.param[i].t;
    return model_tensor(b->m, path);
}

/* The layers of a class's head. */
static int add_class_layers(struct delta_builder *b, size_t *width)
{
    const struct model_head *h = class_of(b);
    int rc = 0;

    if (!h)
        return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED,
                            "this base has no class with such a head: give its layers in the "
                            "adapter");
    if (h->passes_pooler)
        rc = pass_pooler(b, width);
    for (unsigned i = 0; rc == 0 && i < MODEL_HEAD_LAYERS_MAX && h->layer[i].path; i++) {
        const struct model_head_layer *l = &h->layer[i];
        const struct delta__dense dense = {
            .w = param(b, l->path, ".weight"),
            .b = param(b, l->path, ".bias"),
            .act = l->act,
        };

        if (!dense.w)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, l->path,
                                      "the adapter has no head: tensor %s.weight is missing",
                                      l->path);
        rc = add_step(b, &dense, width);
    }
    return rc;
}

/* An LM head of the adapter's own keeps what the base adds to its logits (BART's
 * final_logits_bias, a buffer that no adapter holds); behind the base's ids nothing. */
static int keep_logits_bias(struct delta_builder *b)
{
    struct delta__dense *own = &b->plan.lm_head;
    const struct model_config *c = model_config(b->m);
    const float *base =
        model_site_bias(b->m, site_make(model_last_stack(c)->first_layer, SITE_LM_HEAD));
    const size_t n = own->w->dim[0];
    struct tensor *t;
    float *x;

    if (own->b || !base || n < c->n_vocab)
        return 0;
    t = delta__scratch(b, 1, sizeof(*t));
    x = delta__scratch(b, n, sizeof(*x));
    if (!t || !x)
        return CORE_E_NOMEM;
    memcpy(x, base, c->n_vocab * sizeof(*x));
    *t = (struct tensor){.name = own->w->name,
                         .type = TENSOR_F32,
                         .n_dims = 1,
                         .dim = {n},
                         .data = x,
                         .n_bytes = n * sizeof(*x)};
    own->b = t;
    return 0;
}

/* The dense layers after pooling. */
static int add_layers(struct delta_builder *b, size_t *width)
{
    const struct delta__head *p = &b->plan;
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < p->n_layers; i++)
        rc = add_step(b, &p->layer[i], width);
    if (rc < 0 || p->n_layers)
        return rc;
    if (p->form != DELTA__FORM_LM)
        return add_class_layers(b, width);
    if (p->lm_head.w) {
        rc = keep_logits_bias(b);
        return rc < 0 ? rc : add_step(b, &p->lm_head, width);
    }
    b->head.uses_base_lm_head = true;
    *width = model_config(b->m)->n_vocab;
    return 0;
}

/* What the base puts behind its own pooling. */
static int add_dense(struct delta_builder *b, size_t *width)
{
    const struct model_dense *d;
    const size_t n = b->plan.has_pooling ? 0 : model_dense(b->m, &d);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_step(b, &(struct delta__dense){.w = d[i].w, .b = d[i].b, .act = d[i].act}, width);
    return rc;
}

/* An operation at a layer that the head replaces would never be computed. */
static int check_replaced(struct delta_builder *b)
{
    const bool has_lm_head = b->plan.form == DELTA__FORM_LM && !b->head.uses_base_lm_head;
    char path[160];

    for (size_t i = 0; i < b->n_ops; i++) {
        const enum site_kind kind = site_kind_of(b->op[i].site);

        if ((kind == SITE_LM_HEAD && has_lm_head) || (kind == SITE_POOLER && b->plan.pooler.w))
            return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED,
                                "%s at %s: the adapter replaces this layer",
                                delta_op_text(b->op[i].kind),
                                model_site_path(b->m, b->op[i].site, path, sizeof(path)));
    }
    return 0;
}

/* Outputs that every head of this form has; 0: any number. */
static size_t outputs_of(const struct delta_builder *b)
{
    switch (b->plan.form) {
    case DELTA__FORM_LM:
        return b->n_vocab ? b->n_vocab : model_config(b->m)->n_vocab;
    case DELTA__FORM_SPAN: /* a token as an answer's first, and as its last */
        return 2;
    case DELTA__FORM_CHOICE:
        return 1;
    default:
        return 0;
    }
}

static int check_outputs(struct delta_builder *b, size_t n)
{
    const size_t want = outputs_of(b);
    const struct delta__head *p = &b->plan;
    const bool has_labels = p->form == DELTA__FORM_SEQUENCE || p->form == DELTA__FORM_TOKENS;

    if (want && n != want)
        return core_err_set(b->err, CORE_E_ADAPTER_MISMATCH,
                            "the adapter's head: got %zu outputs, expected %zu%s", n, want,
                            p->form == DELTA__FORM_LM ? ", the ids of its token table" : "");
    if (p->n_outputs && p->n_outputs != n)
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                            "the head has %zu outputs, its configuration says %zu", n,
                            p->n_outputs);
    if (p->label && !has_labels)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "labels",
                                  "labels: this task answers without labels");
    if (p->label && p->n_labels != n)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "labels",
                                  "labels: got %zu, expected one for each of %zu outputs",
                                  p->n_labels, n);
    if (has_labels && (p->form == DELTA__FORM_TOKENS || n > 1)) {
        const int rc = delta__config_beside(b, n);

        if (rc < 0)
            return rc;
    }
    if ((p->has_normalize && p->form != DELTA__FORM_EMBEDDING) ||
        (p->has_pooling && p->form != DELTA__FORM_EMBEDDING && p->form != DELTA__FORM_SEQUENCE))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "task.json",
                                  "task.json: pooling or normalize has no use for this task");
    if (p->problem != DELTA__PROBLEM_UNSAID && p->form != DELTA__FORM_SEQUENCE)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "problem_type",
                                  "problem_type has no use for this task");
    return 0;
}

/* What the files leave open: without head tensors the task answers as its base. */
static int settle_form(struct delta_builder *b)
{
    struct delta__head *p = &b->plan;
    const bool is_decoder = model_config(b->m)->has_lm_head;

    if (p->form == DELTA__FORM_UNSAID && (p->n_params || p->n_layers))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "head",
                                  "the files do not say what kind of head this is: give \"head\" "
                                  "in task.json");
    if (p->form == DELTA__FORM_UNSAID) {
        p->form = is_decoder && !p->is_bare ? DELTA__FORM_LM : DELTA__FORM_EMBEDDING;
        b->head.is_assumed = p->form == DELTA__FORM_EMBEDDING;
    }
    if (p->form == DELTA__FORM_LM && !is_decoder)
        return core_err_set(b->err, CORE_E_ADAPTER_MISMATCH,
                            "the adapter generates text, and this base is an encoder");
    return 0;
}

/* A pooler's bias without its weight (BitFit, bias="all") changes the base's pooler. */
static int pooler_bias(struct delta_builder *b)
{
    const struct tensor *t = b->plan.pooler.b;
    struct delta__place p;

    if (!t || b->plan.pooler.w || !delta__place_at(b, t, site_make(0, SITE_POOLER), &p))
        return 0;
    return delta__add_bias(b, &p, NULL, false);
}

/* A coupling is undone on rows of the model's width, before the last matrix of an LM head. */
static int settle_coupling(struct delta_builder *b)
{
    const struct delta_head *h = &b->head;
    bool has_coupling = false;

    for (size_t i = 0; i < b->n_ops; i++)
        has_coupling |= b->op[i].kind == DELTA_COUPLING;
    b->head.uncouples = has_coupling && b->plan.uncouples && b->plan.form == DELTA__FORM_LM;
    if (b->head.uncouples && h->n_steps &&
        h->step[h->n_steps - 1].w.n_cols != model_config(b->m)->d_model)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "inv_adapter",
                                  "inv_adapter is not computed with an LM head of another width");
    return 0;
}

/* In front of a source only text is generated: the library hands its heads on
 * encoder-decoders no embeddings. */
static int check_soft(struct delta_builder *b)
{
    bool has_soft = false;

    for (size_t i = 0; i < b->n_ops; i++)
        has_soft |= b->op[i].kind == DELTA_SOFT_ROWS;
    if (has_soft && model_config(b->m)->n_stacks > 1 && b->plan.form != DELTA__FORM_LM)
        return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED,
                            "virtual tokens of an encoder-decoder are computed for generation "
                            "only");
    return 0;
}

/* Ids of a task's own have rows of their own, and nothing else. */
static int check_vocabulary(struct delta_builder *b)
{
    for (size_t i = 0; b->n_vocab && i < b->n_ops; i++)
        if (site_kind_of(b->op[i].site) == SITE_EMBED_TOKENS &&
            (b->op[i].kind == DELTA_LOWRANK || b->op[i].kind == DELTA_SPARSE))
            return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED,
                                "%s at a token table that the adapter resizes is not computed",
                                delta_op_text(b->op[i].kind));
    return 0;
}

/* The model's output scale is the LM head's. AdapterHub's models of such a family hand
 * scaled rows to every flexible head that reads each of them. */
static float input_scale(const struct delta_builder *b)
{
    const struct delta__head *p = &b->plan;
    const bool reads_each = b->head.pool == DELTA_POOL_TOKENS && p->n_layers;

    return p->form == DELTA__FORM_LM || reads_each ? model_config(b->m)->output_scale : 0.0f;
}

int delta__build_head(struct delta_builder *b)
{
    const struct model_config *c = model_config(b->m);
    struct delta_head *h = &b->head;
    size_t width = c->d_model;
    int rc = settle_form(b);

    if (rc == 0)
        rc = pooler_bias(b);
    if (rc == 0)
        rc = choose_pool(b, &width);
    if (rc == 0)
        rc = b->plan.form == DELTA__FORM_EMBEDDING ? add_dense(b, &width) : add_layers(b, &width);
    if (rc == 0)
        rc = check_replaced(b);
    if (rc == 0)
        rc = check_outputs(b, width);
    if (rc == 0)
        rc = settle_coupling(b);
    if (rc == 0)
        rc = check_soft(b);
    if (rc == 0)
        rc = check_vocabulary(b);
    if (rc < 0)
        return rc;
    h->kind = kind_of(&b->plan, width);
    h->skips_soft = h->pool == DELTA_POOL_TOKENS || h->kind == DELTA_EMBEDDING;
    h->n_labels = (unsigned)width;
    h->input_scale = input_scale(b);
    h->label = b->plan.label;
    if (h->kind == DELTA_EMBEDDING)
        h->is_normalized = b->plan.has_normalize ? b->plan.normalize : c->is_normalized;
    return 0;
}
