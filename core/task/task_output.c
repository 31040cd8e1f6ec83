/* core/task/task_output.c - the way out: scores, labels, spans, tags and entities. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/model.h"
#include "core/task/task.h"

int task_scores(const struct delta *d, const float *logits, size_t n, float *score)
{
    const bool is_sigmoid = d->head.kind == DELTA_MULTI_LABEL;
    float max = -INFINITY, sum = 0.0f;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return CORE_E_INTERNAL;
        max = logits[i] > max ? logits[i] : max;
    }
    for (size_t i = 0; i < n; i++) {
        score[i] = is_sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - max);
        sum += score[i];
    }
    for (size_t i = 0; !is_sigmoid && i < n; i++)
        score[i] /= sum;
    return 0;
}

const char *task_label(const struct delta *d, size_t i, char buf[24])
{
    if (d->head.label && i < d->head.n_labels)
        return d->head.label[i];
    snprintf(buf, 24, "LABEL_%zu", i);
    return buf;
}

static bool may_answer(const struct task_input *in, const struct tok_encoding *e, size_t row)
{
    return in->form == TASK_TOKENS || e->seq[row] == 1;
}

/* Rows that share the probability: those that may answer, and the first, where a model says
 * that there is no answer, if the tokenizer puts it there to stand for the whole input. A
 * decoder's first token sees nothing and says nothing. */
static bool has_share(const struct model *m, const struct task_input *in,
                      const struct tok_encoding *e, size_t row)
{
    return may_answer(in, e, row) ||
           (row == 0 && e->seq[0] == 255 && !model_config(m)->stack[0].is_causal);
}

/* The probability of row `at` as a start (which 0) or an end (which 1). */
static float share_of(const struct model *m, const struct task_input *in,
                      const struct tok_encoding *e, const float *logits, size_t at, unsigned which)
{
    float max = -INFINITY, sum = 0.0f;

    for (size_t i = 0; i < e->n; i++)
        if (has_share(m, in, e, i))
            max = fmaxf(max, logits[2 * i + which]);
    for (size_t i = 0; i < e->n; i++)
        if (has_share(m, in, e, i))
            sum += expf(logits[2 * i + which] - max);
    return expf(logits[2 * at + which] - max) / sum;
}

int task_span(const struct model *m, const struct task_input *in, const struct tok_encoding *e,
              const float *logits, struct task_span *out)
{
    double best = -INFINITY; /* the product's logarithm, but for what all of them have */

    *out = (struct task_span){0};
    for (size_t i = 0; i < 2 * e->n; i++)
        if (!isfinite(logits[i]))
            return CORE_E_INTERNAL;
    for (size_t i = 0; i < e->n; i++)
        for (size_t k = i; k < e->n && k < i + TASK_ANSWER_MAX; k++) {
            const double sum = (double)logits[2 * i] + (double)logits[2 * k + 1];

            if (sum <= best || !may_answer(in, e, i) || !may_answer(in, e, k))
                continue;
            best = sum;
            out->first = i;
            out->last = k;
        }
    out->score =
        share_of(m, in, e, logits, out->first, 0) * share_of(m, in, e, logits, out->last, 1);
    return 0;
}

/* A label's class without its position mark; *mark is 'B', 'I', 'O' or 0. */
static const char *split_label(const char *label, char *mark)
{
    *mark = 0;
    if (strcmp(label, "O") == 0)
        *mark = 'O';
    else if ((label[0] == 'B' || label[0] == 'I') && (label[1] == '-' || label[1] == '_'))
        *mark = label[0];
    return *mark == 'B' || *mark == 'I' ? label + 2 : label;
}

size_t task_entities(const struct delta *d, const struct task_tag *tag, size_t n,
                     struct task_entity *out)
{
    size_t n_out = 0, run = 0;
    bool is_open = false;

    for (size_t i = 0; i < n; i++) {
        char buf[24], mark;
        const char *cls = split_label(task_label(d, tag[i].label, buf), &mark);
        struct task_entity *last = n_out ? &out[n_out - 1] : NULL;

        if (mark == 'O') {
            is_open = false;
            continue;
        }
        if (is_open && mark != 'B' && strcmp(last->label, cls) == 0) {
            last->end = tag[i].end;
            last->score = (last->score * (float)run + tag[i].score) / (float)(run + 1);
            run++;
            continue;
        }
        out[n_out] =
            (struct task_entity){.start = tag[i].start, .end = tag[i].end, .score = tag[i].score};
        snprintf(out[n_out].label, sizeof(out[n_out].label), "%s", cls);
        n_out++;
        run = 1;
        is_open = true;
    }
    return n_out;
}
