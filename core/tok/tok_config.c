/* core/tok/tok_config.c - tokenizer_config.json, special_tokens_map.json,
 * added_tokens.json and config.json, as from_pretrained() of transformers reads them
 * for a tokenizer that it makes anew.
 *
 * Precedence: added_tokens_decoder of tokenizer_config.json makes the two older files
 * void; without it special_tokens_map.json overrides tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/pyjson.h"
#include "core/tok/tok_family.h"

static const char *const keys[TOK__N_SPECIALS] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
static const char additional[] = "additional_special_tokens";

/* ---- reading -------------------------------------------------------------- */

static int load(json_t **out, const struct core_file *f, size_t n, const char *name,
                struct core_err *err)
{
    const struct core_file *file = core_file_find(f, n, name);
    json_error_t why;

    if (!file)
        return 0;
    *out = core_pyjson_load(file->bytes, file->n_bytes, &why);
    if (!*out)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: line %d: %s", name, why.line,
                            why.text);
    return json_is_object(*out)
               ? 0
               : core_err_set(err, CORE_E_ADAPTER_INVALID, "%s is not a JSON object", name);
}

static int find_family(struct tok__config *c, const char *class, const struct tok_defaults *dflt,
                       struct core_err *err)
{
    if (!class)
        class = json_string_value(json_object_get(c->own, "tokenizer_class"));
    if (!class)
        class = json_string_value(json_object_get(c->model, "tokenizer_class"));
    if (!class && dflt)
        class = dflt->class;
    if (!class && dflt)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "no tokenizer.json, and no tokenizer_class in tokenizer_config.json to "
                            "say how to use the other files");
    if (!class)
        return 0;
    c->family = tok__family_of_class(class);
    return c->family
               ? 0
               : core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                              "the tokenizer class \"%.60s\" without a tokenizer.json", class);
}

int tok__config_read(struct tok__config *c, const char *class, const struct tok_defaults *dflt,
                     const struct core_file *f, size_t n, struct core_err *err)
{
    struct tok__config new = {0};
    int rc = load(&new.own, f, n, "tokenizer_config.json", err);

    if (rc == 0 && !new.own && !(new.own = json_object()))
        rc = core_err_nomem(err, "tokenizer");
    if (rc == 0)
        rc = load(&new.model, f, n, "config.json", err);
    if (rc == 0 && !json_object_get(new.own, "added_tokens_decoder")) {
        rc = load(&new.map, f, n, "special_tokens_map.json", err);
        if (rc == 0)
            rc = load(&new.added, f, n, "added_tokens.json", err);
    }
    if (rc == 0)
        rc = find_family(&new, class, dflt, err);
    if (rc == 0)
        *c = new;
    else
        tok__config_release(&new);
    return rc;
}

void tok__config_release(struct tok__config *c)
{
    json_decref(c->own);
    json_decref(c->map);
    json_decref(c->added);
    json_decref(c->model);
    *c = (struct tok__config){0};
}

static int wrong(const char *key, const char *what, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "tokenizer_config.json: \"%.60s\" is not %s",
                        key, what);
}

int tok__config_bool(const struct tok__config *c, const char *key, bool otherwise, bool when_null,
                     bool *out, struct core_err *err)
{
    const json_t *v = json_object_get(c->own, key);

    if (v && !json_is_null(v) && !json_is_boolean(v))
        return wrong(key, "true or false", err);
    *out = !v ? otherwise : json_is_null(v) ? when_null : json_is_true(v);
    return 0;
}

/* ---- special tokens ------------------------------------------------------- */

static int flag(const json_t *o, const char *key, bool otherwise, bool *out, struct core_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (v && !json_is_boolean(v))
        return wrong(key, "true or false", err);
    *out = v ? json_is_true(v) : otherwise;
    return 0;
}

/* A text, or {"content": text, flags}; `special` if the object does not say. */
static int read_token(const char *key, const json_t *v, bool special, struct tok__special *out,
                      struct core_err *err)
{
    struct tok__special s = {.text = json_string_value(v), .flags = {.is_special = special}};
    int rc;

    if (json_is_string(v)) {
        *out = s;
        return 0;
    }
    s.text = json_string_value(json_object_get(v, "content"));
    s.is_object = true;
    if (!s.text)
        return wrong(key, "a text or an object with \"content\"", err);
    rc = flag(v, "lstrip", false, &s.flags.lstrip, err);
    if (rc == 0)
        rc = flag(v, "rstrip", false, &s.flags.rstrip, err);
    if (rc == 0)
        rc = flag(v, "single_word", false, &s.flags.single_word, err);
    if (rc == 0)
        rc = flag(v, "special", special, &s.flags.is_special, err);
    if (rc == 0)
        rc = flag(v, "normalized", !s.flags.is_special, &s.flags.is_normalized, err);
    if (rc == 0)
        *out = s;
    return rc;
}

static const json_t *find_token(const struct tok__config *c, const char *key)
{
    const json_t *v = json_object_get(c->map, key);

    return v ? v : json_object_get(c->own, key);
}

int tok__config_special(const struct tok__config *c, enum tok__special_kind kind,
                        struct tok__special *out, struct core_err *err)
{
    const json_t *v = find_token(c, keys[kind]);
    int rc = 0;

    *out = (struct tok__special){.text = c->family->specials[kind]};
    if (v)
        *out = (struct tok__special){0};
    if (v && !json_is_null(v))
        rc = read_token(keys[kind], v, true, out, err);
    if (rc == 0 && out->text && !out->is_object) { /* the class has flags of its own */
        out->flags =
            (struct tok__added_token){.is_special = true,
                                      .lstrip = kind == TOK__MASK && c->family->mask_lstrip,
                                      .is_normalized = (c->family->normalized >> kind & 1) != 0};
        out->is_object = out->flags.lstrip || out->flags.is_normalized;
    }
    out->flags.is_special = true;
    out->is_named = v != NULL;
    return rc;
}

/* ---- sets of texts -------------------------------------------------------- */

static int set_add(struct tok__vocab *set, const char *text, struct core_err *err)
{
    const size_t n = text ? strlen(text) : 0;

    if (n == 0 || tok__vocab_id(set, text, n) >= 0)
        return 0;
    return tok__vocab_add(set, text, n, (int64_t)set->n_entries, err);
}

static bool set_has(const struct tok__vocab *set, const char *text)
{
    return text && tok__vocab_id(set, text, strlen(text)) >= 0;
}

/* All special tokens, or only those that the files name. */
static int fill_specials(const struct tok__config *c, bool named, struct tok__vocab *set,
                         struct core_err *err)
{
    const json_t *list = find_token(c, additional);
    struct tok__special s;
    int rc = tok__vocab_init(set, json_array_size(list) + TOK__N_SPECIALS, err);

    for (int k = 0; k < TOK__N_SPECIALS && rc == 0; k++) {
        rc = tok__config_special(c, (enum tok__special_kind)k, &s, err);
        if (rc == 0 && (!named || s.is_named))
            rc = set_add(set, s.text, err);
    }
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        rc = read_token(additional, json_array_get(list, i), true, &s, err);
        if (rc == 0)
            rc = set_add(set, s.text, err);
    }
    return rc;
}

/* ---- added tokens --------------------------------------------------------- */

struct listed {
    json_int_t id;
    struct tok__special token;
};

static int by_id(const void *x, const void *y)
{
    const struct listed *a = x, *b = y;

    return (a->id > b->id) - (a->id < b->id);
}

/* What is known while tokens are added. */
struct adding {
    const struct tok__config *c;
    struct tok *tok;
    struct tok__vocab specials, named, listed; /* texts */
};

/* added_tokens_decoder: {"5": {"content": ...}}; added_tokens.json: {"<x>": 5}. */
static int read_listed(struct adding *a, const char *key, const json_t *v, struct listed *out,
                       struct core_err *err)
{
    char *end = NULL;
    int rc;

    if (!a->c->added) {
        out->id = (json_int_t)strtoll(key, &end, 10);
        if (!*key || *end || out->id < 0)
            return wrong("added_tokens_decoder", "a map of ids to tokens", err);
        rc = read_token("added_tokens_decoder", v, false, &out->token, err);
        out->token.flags.is_special |= set_has(&a->specials, out->token.text);
        return rc == 0 ? set_add(&a->listed, out->token.text, err) : rc;
    }
    if (!json_is_integer(v))
        return wrong("added_tokens.json", "a map of tokens to ids", err);
    out->id = json_integer_value(v);
    out->token = (struct tok__special){.text = key, .is_object = true};
    out->token.flags.is_special = set_has(&a->specials, key);
    out->token.flags.is_normalized = !set_has(&a->named, key);
    return 0;
}

static int add_listed(struct adding *a, json_t *list, struct core_err *err)
{
    struct listed *v = core_calloc(json_object_size(list) + 1, sizeof(*v));
    const struct tok__vocab *names = &a->tok->added.names;
    size_t n = 0;
    const char *key;
    json_t *value;
    int rc = v ? 0 : core_err_nomem(err, "added tokens");

    if (rc == 0) {
        json_object_foreach(list, key, value)
        {
            rc = read_listed(a, key, value, &v[n++], err);
            if (rc != 0)
                break;
        }
    }
    if (rc == 0)
        qsort(v, n, sizeof(*v), by_id);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const char *text = v[i].token.text;

        rc = tok__added_add(a->tok, &v[i].token.flags, text, strlen(text), err);
        if (rc == 0 && *text && tok__vocab_id(names, text, strlen(text)) != v[i].id)
            rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                              "added token \"%.60s\": the file says id %lld, its place says %d",
                              text, (long long)v[i].id,
                              (int)tok__vocab_id(names, text, strlen(text)));
    }
    core_free(v);
    return rc;
}

/* A text that is there already keeps its flags; an object brings its own, unless
 * added_tokens_decoder has given them. */
static int add_special(struct adding *a, const struct tok__special *s, struct core_err *err)
{
    const size_t n = s->text ? strlen(s->text) : 0;

    if (n == 0 || set_has(&a->listed, s->text) ||
        (!s->is_object && tok__vocab_id(&a->tok->added.names, s->text, n) >= 0))
        return 0;
    return tok__added_add(a->tok, &s->flags, s->text, n, err);
}

static int add_specials(struct adding *a, const struct tok__first *first, const json_t *list,
                        struct core_err *err)
{
    struct tok__special s;
    int rc = 0;

    for (int k = 0; k < TOK__N_SPECIALS && rc == 0; k++) {
        rc = tok__config_special(a->c, (enum tok__special_kind)k, &s, err);
        if (rc == 0)
            rc = add_special(a, &s, err);
    }
    for (size_t i = 0; i < first->n_extra && rc == 0; i++) {
        s = (struct tok__special){.text = first->extra[i], .flags = {.is_special = true}};
        rc = add_special(a, &s, err);
    }
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        rc = read_token(additional, json_array_get(list, i), true, &s, err);
        s.flags.is_special = true;
        if (rc == 0)
            rc = add_special(a, &s, err);
    }
    return rc;
}

int tok__config_added(const struct tok__config *c, struct tok *tok, const struct tok__first *first,
                      struct core_err *err)
{
    json_t *decoder = json_object_get(c->own, "added_tokens_decoder");
    const json_t *list = find_token(c, additional);
    json_t *listed = decoder ? decoder : c->added;
    struct adding a = {.c = c, .tok = tok};
    int rc;

    if (decoder && !json_is_object(decoder))
        return wrong("added_tokens_decoder", "an object", err);
    if (list && !json_is_null(list) && !json_is_array(list))
        return wrong(additional, "a list", err);
    rc = fill_specials(c, false, &a.specials, err);
    if (rc == 0)
        rc = fill_specials(c, true, &a.named, err);
    if (rc == 0)
        rc = tok__vocab_init(&a.listed, json_object_size(listed), err);
    if (rc == 0)
        rc = tok__added_init(tok,
                             first->n + first->n_extra + json_object_size(listed) +
                                 json_array_size(list) + TOK__N_SPECIALS,
                             err);
    if (rc == 0 && first->add)
        rc = first->add(tok, first->arg, err);
    if (rc == 0 && listed)
        rc = add_listed(&a, listed, err);
    if (rc == 0)
        rc = add_specials(&a, first, list, err);
    tok__vocab_release(&a.specials);
    tok__vocab_release(&a.named);
    tok__vocab_release(&a.listed);
    return rc;
}
