/* core/delta/made_for.c - for which base an adapter was made, where its files say so: what
 * shapes do not show. Names are compared as people write them, by their last part, letters
 * and digits alone: "meta-llama/Llama-3.2-1B" is "/models/llama-3.2-1b". */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* The last part of a path; *n its length. */
static const char *last_part(const char *path, size_t *n)
{
    size_t end = strlen(path), begin;

    while (end > 0 && path[end - 1] == '/')
        end--;
    begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    *n = end - begin;
    return path + begin;
}

struct spelling {
    char text[128];   /* letters and digits, small */
    bool is_one_word; /* nothing else stood between them */
};

/* False if the name says nothing: it is none, or a commit in a hub's cache. */
static bool spell(const char *path, struct spelling *out)
{
    size_t n, n_out = 0;
    const char *name = last_part(path, &n);

    if (n == 40 && strspn(name, "0123456789abcdef") >= n)
        return false;
    out->is_one_word = true;
    for (size_t i = 0; i < n && n_out + 1 < sizeof(out->text); i++) {
        if (isalnum((unsigned char)name[i]))
            out->text[n_out++] = (char)tolower((unsigned char)name[i]);
        else
            out->is_one_word = false;
    }
    out->text[n_out] = 0;
    return n_out > 0;
}

/* May `ours` be what `theirs` names? So also a file whose name goes on (a quantisation), and
 * a folder with a nickname: "minilm" of "all-MiniLM-L6-v2". A name that says nothing may. */
static bool may_be(const char *ours, const struct spelling *theirs)
{
    struct spelling s;

    if (!spell(ours, &s) || strcmp(s.text, theirs->text) == 0)
        return true;
    return (s.is_one_word && strstr(theirs->text, s.text)) ||
           (strstr(s.text, "gguf") && strstr(s.text, theirs->text));
}

/* What others may print: a name of letters, digits, '.', '_' and '-'. */
static void note(struct delta_builder *b, const char *name)
{
    size_t n, k = 0;
    const char *part = last_part(name, &n);

    for (size_t i = 0; i < n && k + 1 < sizeof(b->made_for); i++) {
        const bool is_plain = isalnum((unsigned char)part[i]) || strchr("._-", part[i]);

        b->made_for[k++] = is_plain ? part[i] : '_';
    }
    b->made_for[k] = 0;
}

static void compare_names(struct delta_builder *b, const char *said)
{
    const struct model_config *c = model_config(b->m);
    struct spelling theirs;

    if (said && !b->made_for[0] && spell(said, &theirs) && !may_be(c->name, &theirs) &&
        !may_be(c->file, &theirs))
        note(b, said);
}

/* A family, as model_type names it. */
static void compare_types(struct delta_builder *b, const char *said)
{
    if (said && !b->made_for[0] && strcmp(said, model_config(b->m)->arch) != 0)
        note(b, said);
}

int delta__note_base(struct delta_builder *b, const json_t *library, const json_t *own)
{
    const char *base = json_string_value(json_object_get(own, "base"));
    json_t *config = NULL, *vocab;
    int rc = delta__json_file(b, "config.json", &config);

    if (rc < 0)
        return rc;
    compare_types(b, json_string_value(json_object_get(library, "model_type")));
    compare_types(b, json_string_value(json_object_get(config, "model_type")));
    vocab = json_object_get(config, "vocab_size");
    if (json_is_integer(vocab) && !b->n_vocab && !b->made_for[0] &&
        json_integer_value(vocab) != (json_int_t)model_config(b->m)->n_vocab)
        snprintf(b->made_for, sizeof(b->made_for), "%lld_ids",
                 (long long)json_integer_value(vocab));
    compare_names(b, json_string_value(json_object_get(library, "base_model_name_or_path")));
    compare_names(b, json_string_value(json_object_get(library, "model_name")));
    if (base && strlen(base) != 64) /* a hash binds: read_own.c */
        compare_names(b, base);
    json_decref(config);
    return 0;
}
