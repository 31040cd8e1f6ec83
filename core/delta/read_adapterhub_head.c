/* core/delta/read_adapterhub_head.c - AdapterHub's prediction heads.
 *
 * A flexible head is a torch Sequential: dropout and activation take numbers but store
 * nothing, so the layers are the numbered tensors in order, whatever the gaps. A static
 * class of transformers has no head configuration and keeps Hugging Face's names. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* Highest number that a module of a head of DELTA_HEAD_STEPS_MAX layers can have. */
enum { HEAD_INDEX_MAX = 4 * DELTA_HEAD_STEPS_MAX };

static int add_layer(struct delta_builder *b, const struct tensor *w, const struct tensor *bias,
                     enum kern_act act)
{
    struct delta__head *h = &b->plan;

    if (w->n_dims == 1 && h->n_layers) { /* the LayerNorm after a dense layer */
        h->layer[h->n_layers - 1].gamma = w;
        h->layer[h->n_layers - 1].beta = bias;
        return 0;
    }
    if (h->n_layers == DELTA_HEAD_STEPS_MAX)
        return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED, "the head has more than %d layers",
                            (int)DELTA_HEAD_STEPS_MAX);
    h->layer[h->n_layers++] = (struct delta__dense){.w = w, .b = bias, .act = act};
    return 0;
}

/* Keys that are absent mean the defaults of the library's head classes; null is a value. */
static int read_layers(struct delta_builder *b, const json_t *config, const char *name)
{
    struct delta__head *h = &b->plan;
    const bool has_act = json_object_get(config, "activation_function") != NULL;
    enum kern_act act;
    const char *text;
    double n_layers;
    char path[600];
    int rc = delta__json_str(b, config, "activation_function", NULL, &text);

    if (!has_act && h->form != DELTA__FORM_LM)
        text = "tanh";
    if (rc == 0)
        rc = delta__ah_act(b, text, false, &act);
    if (rc == 0)
        rc = delta__json_number(
            b, config, "layers",
            h->form == DELTA__FORM_SEQUENCE || h->form == DELTA__FORM_CHOICE ? 2 : 1, &n_layers);
    for (unsigned i = 0; rc == 0 && i <= HEAD_INDEX_MAX; i++) {
        const int n = snprintf(path, sizeof(path), "heads.%s.%u", name, i);
        const struct tensor *w;

        if (n < 0 || (size_t)n >= sizeof(path))
            break; /* left over by name */
        w = delta__find(b, path, (size_t)n, ".weight");
        if (w)
            rc = add_layer(b, w, delta__find(b, path, (size_t)n, ".bias"), act);
    }
    if (rc < 0)
        return rc;
    if (h->n_layers == 0 || n_layers != (double)h->n_layers)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "layers",
                                  "head_config.json: got %u layers among the tensors, expected %g",
                                  h->n_layers, n_layers);
    h->layer[h->n_layers - 1].act = KERN_ACT_NONE;
    return 0;
}

static int read_outputs(struct delta_builder *b, const json_t *j)
{
    const json_t *labels = json_object_get(j, "label2id");
    double n = 0;
    int rc = 0;

    if (b->plan.form != DELTA__FORM_SEQUENCE && b->plan.form != DELTA__FORM_TOKENS)
        return 0;
    rc = delta__json_number(b, j, "num_labels", 0, &n);
    if (rc == 0 && !(n >= 0 && n < 1e9))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "num_labels", "num_labels: got %g",
                                n);
    if (rc < 0)
        return rc;
    b->plan.n_outputs = (size_t)n;
    return labels && !json_is_null(labels) ? delta__json_labels(b, labels, "label2id") : 0;
}

/* BART's classes save a bias of the logits that is no parameter: the base's own. */
static void take_logits_bias(struct delta_builder *b)
{
    const struct tensor *t = tensor_list_find(&b->tensors, "final_logits_bias");
    const struct tensor *own = model_tensor(b->m, "final_logits_bias");

    if (t && own && delta__is_copy(t, own))
        delta__take(b, t);
}

static int read_static(struct delta_builder *b, const json_t *head)
{
    const char *class_name;
    int rc = delta__json_str(b, head, "model_class", "", &class_name);

    if (rc == 0)
        rc = delta__form_of_class(b, class_name, &b->plan.form);
    if (rc == 0)
        rc = read_outputs(b, head);
    b->plan.end = DELTA_END_RIGHTMOST;
    take_logits_bias(b);
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++)
        if (!delta__is_taken(b, &b->tensors.t[i]))
            rc = delta__add_parameter(b, &b->tensors.t[i], b->tensors.t[i].name, false);
    return rc;
}

static int read_type(struct delta_builder *b, const json_t *config)
{
    static const struct {
        const char *type;
        enum delta__form form;
        enum delta__problem problem;
    } known[] = {
        {"classification", DELTA__FORM_SEQUENCE, DELTA__PROBLEM_UNSAID},
        {"multilabel_classification", DELTA__FORM_SEQUENCE, DELTA__PROBLEM_MULTI},
        {"tagging", DELTA__FORM_TOKENS, DELTA__PROBLEM_UNSAID},
        {"question_answering", DELTA__FORM_SPAN, DELTA__PROBLEM_UNSAID},
        {"multiple_choice", DELTA__FORM_CHOICE, DELTA__PROBLEM_UNSAID},
        {"causal_lm", DELTA__FORM_LM, DELTA__PROBLEM_UNSAID},
        {"seq2seq_lm", DELTA__FORM_LM, DELTA__PROBLEM_UNSAID},
    };
    const char *type;
    const int rc = delta__json_str(b, config, "head_type", "", &type);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].type, type) == 0) {
            b->plan.form = known[i].form;
            b->plan.problem = known[i].problem;
            return 0;
        }
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "head_type",
                              "head type %.60s is not computed", type);
}

int delta__ah_head(struct delta_builder *b, const json_t *head_config)
{
    const json_t *config = json_object_get(head_config, "config");
    const char *name;
    int rc;

    if (!config || json_is_null(config))
        return read_static(b, head_config);
    if (!json_is_object(config))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "config",
                                  "head_config.json: config is not an object");
    b->plan.end = DELTA_END_COUNT;
    b->plan.uncouples = true;
    rc = delta__json_str(b, head_config, "name", "", &name);
    if (rc == 0)
        rc = read_type(b, config);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_pooler", false, &b->plan.wants_pooler);
    if (rc == 0 && b->plan.wants_pooler && model_config(b->m)->is_pooler_of_class)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "use_pooler",
                                "use_pooler: the encoder of this base has no pooler, and the "
                                "library answers for every token");
    if (rc == 0)
        rc = read_outputs(b, config);
    return rc < 0 ? rc : read_layers(b, config, name);
}
