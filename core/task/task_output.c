/* core/task/task_output.c - the way out: scores, labels, tags and entities. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
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
