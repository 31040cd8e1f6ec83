/* core/tok/tok_json.c - tokenizer.json: the model, the added tokens, and the order
 * in which the parts are read. The stages are in tok_json_stages.c.
 *
 * "truncation" and "padding" of the file are not read: whoever encodes says how
 * many tokens there may be, and nothing is padded here. */
#include "core/tok/tok_json.h"

#include <string.h>

#include "core/base/err.h"
#include "core/base/pyjson.h"
#include "core/tok/tok_internal.h"

/* ---- fields --------------------------------------------------------------- */

const char *tok__json_type(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));

    return type ? type : "?";
}

static int wrong(const json_t *o, const char *key, const char *what, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "tokenizer.json: %s: \"%s\" is not %s",
                        tok__json_type(o), key, what);
}

int tok__json_unsupported(const char *what, const json_t *o, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                        "tokenizer.json: %s of type \"%.60s\" is not supported", what,
                        tok__json_type(o));
}

int tok__json_bool(const json_t *o, const char *key, bool otherwise, bool *out,
                   struct core_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (v && !json_is_null(v) && !json_is_boolean(v))
        return wrong(o, key, "true or false", err);
    *out = v && !json_is_null(v) ? json_is_true(v) : otherwise;
    return 0;
}

int tok__json_int(const json_t *o, const char *key, json_int_t otherwise, json_int_t *out,
                  struct core_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 0))
        return wrong(o, key, "a count", err);
    *out = v && !json_is_null(v) ? json_integer_value(v) : otherwise;
    return 0;
}

int tok__json_str(const json_t *o, const char *key, const char *otherwise, const char **out,
                  struct core_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (v && !json_is_null(v) && !json_is_string(v))
        return wrong(o, key, "a text", err);
    *out = v && !json_is_null(v) ? json_string_value(v) : otherwise;
    return 0;
}

/* ---- models --------------------------------------------------------------- */

static int read_vocab(struct tok *tok, const json_t *o, struct core_err *err)
{
    json_t *vocab = json_object_get(o, "vocab");
    const char *text;
    json_t *id;
    int rc;

    if (!json_is_object(vocab))
        return wrong(o, "vocab", "an object", err);
    rc = tok__vocab_init(&tok->model.vocab, json_object_size(vocab), err);
    if (rc != 0)
        return rc;
    json_object_foreach(vocab, text, id)
    {
        rc = json_is_integer(id) ? tok__vocab_add(&tok->model.vocab, text, strlen(text),
                                                  json_integer_value(id), err)
                                 : wrong(o, "vocab", "a map of texts to numbers", err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_wordpiece(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__wordpiece_options opt = {0};
    json_int_t n = 0;
    int rc = read_vocab(tok, o, err);

    if (rc == 0)
        rc = tok__json_str(o, "unk_token", "[UNK]", &opt.unk, err);
    if (rc == 0)
        rc = tok__json_str(o, "continuing_subword_prefix", "##", &opt.prefix, err);
    if (rc == 0)
        rc = tok__json_int(o, "max_input_chars_per_word", 100, &n, err);
    opt.n_chars_max = (size_t)n;
    return rc == 0 ? tok__wordpiece_new(&tok->model, &opt, err) : rc;
}

static int read_merge(struct tok *tok, const json_t *o, const json_t *m, struct core_err *err)
{
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);

    if (json_is_string(m))
        return tok__bpe_add_merge_line(&tok->model, json_string_value(m), json_string_length(m),
                                       err);
    if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
        return wrong(o, "merges", "a list of pairs", err);
    return tok__bpe_add_merge(&tok->model, json_string_value(a), json_string_length(a),
                              json_string_value(b), json_string_length(b), err);
}

static int read_bpe(struct tok *tok, const json_t *o, struct core_err *err)
{
    const json_t *merges = json_object_get(o, "merges"), *dropout = json_object_get(o, "dropout");
    struct tok__bpe_options opt = {.n_merges = json_array_size(merges)};
    int rc;

    if (!json_is_array(merges))
        return wrong(o, "merges", "a list", err);
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "tokenizer.json: BPE: dropout makes encoding random");
    rc = read_vocab(tok, o, err);
    if (rc == 0)
        rc = tok__json_str(o, "unk_token", NULL, &opt.unk, err);
    if (rc == 0)
        rc = tok__json_str(o, "continuing_subword_prefix", NULL, &opt.prefix, err);
    if (rc == 0)
        rc = tok__json_str(o, "end_of_word_suffix", NULL, &opt.suffix, err);
    if (rc == 0)
        rc = tok__json_bool(o, "fuse_unk", false, &opt.fuse_unk, err);
    if (rc == 0)
        rc = tok__json_bool(o, "byte_fallback", false, &opt.byte_fallback, err);
    if (rc == 0)
        rc = tok__json_bool(o, "ignore_merges", false, &opt.ignore_merges, err);
    if (rc == 0)
        rc = tok__bpe_new(&tok->model, &opt, err);
    for (size_t i = 0; i < opt.n_merges && rc == 0; i++)
        rc = read_merge(tok, o, json_array_get(merges, i), err);
    return rc;
}

static int read_unigram(struct tok *tok, const json_t *o, struct core_err *err)
{
    const json_t *vocab = json_object_get(o, "vocab"), *unk = json_object_get(o, "unk_id");
    bool byte_fallback = false;
    json_int_t unk_id = -1;
    int rc;

    if (!json_is_array(vocab))
        return wrong(o, "vocab", "a list", err);
    rc = tok__json_bool(o, "byte_fallback", false, &byte_fallback, err);
    if (rc == 0 && unk && !json_is_null(unk))
        rc = tok__json_int(o, "unk_id", 0, &unk_id, err);
    if (rc == 0)
        rc = tok__unigram_new(&tok->model, json_array_size(vocab), err);
    for (size_t i = 0; i < json_array_size(vocab) && rc == 0; i++) {
        const json_t *row = json_array_get(vocab, i);
        const json_t *text = json_array_get(row, 0), *score = json_array_get(row, 1);

        if (json_array_size(row) != 2 || !json_is_string(text) || !json_is_number(score))
            return wrong(o, "vocab", "a list of texts and scores", err);
        rc = tok__unigram_add(&tok->model, json_string_value(text), json_string_length(text),
                              json_number_value(score), err);
    }
    return rc == 0 ? tok__unigram_finish(&tok->model, unk_id, byte_fallback, err) : rc;
}

static int read_model(struct tok *tok, const json_t *o, struct core_err *err)
{
    if (!json_is_object(o))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "tokenizer.json: there is no \"model\"");
    if (strcmp(tok__json_type(o), "WordPiece") == 0)
        return read_wordpiece(tok, o, err);
    if (strcmp(tok__json_type(o), "BPE") == 0)
        return read_bpe(tok, o, err);
    if (strcmp(tok__json_type(o), "Unigram") == 0)
        return read_unigram(tok, o, err);
    return tok__json_unsupported("a model", o, err);
}

/* ---- added tokens and the whole ------------------------------------------- */

static int read_added_token(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__added_token t = {0};
    const char *text = NULL;
    int rc = tok__json_str(o, "content", NULL, &text, err);

    if (rc != 0)
        return rc;
    if (!text)
        return wrong(o, "added_tokens", "a list of tokens with \"content\"", err);
    rc = tok__json_bool(o, "special", false, &t.is_special, err);
    if (rc == 0)
        rc = tok__json_bool(o, "normalized", !t.is_special, &t.is_normalized, err);
    if (rc == 0)
        rc = tok__json_bool(o, "single_word", false, &t.single_word, err);
    if (rc == 0)
        rc = tok__json_bool(o, "lstrip", false, &t.lstrip, err);
    if (rc == 0)
        rc = tok__json_bool(o, "rstrip", false, &t.rstrip, err);
    return rc == 0 ? tok__added_add(tok, &t, text, strlen(text), err) : rc;
}

static int read_added(struct tok *tok, const json_t *list, struct core_err *err)
{
    int rc;

    if (list && !json_is_null(list) && !json_is_array(list))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "tokenizer.json: \"added_tokens\" is not a list");
    rc = tok__added_init(tok, json_array_size(list), err);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
        rc = read_added_token(tok, json_array_get(list, i), err);
    return rc;
}

int tok_open_json(struct tok **out, const void *bytes, size_t n_bytes, struct core_err *err)
{
    struct tok *tok = NULL;
    json_error_t why;
    json_t *root = core_pyjson_load(bytes, n_bytes, &why);
    int rc;

    if (!root)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "tokenizer.json: line %d: %s", why.line,
                            why.text);
    rc = tok__new(&tok, err);
    if (rc == 0)
        rc = read_model(tok, json_object_get(root, "model"), err);
    if (rc == 0)
        rc = tok__json_normalizer(tok, json_object_get(root, "normalizer"), err);
    if (rc == 0)
        rc = tok__json_pretokenizer(tok, json_object_get(root, "pre_tokenizer"), err);
    if (rc == 0)
        rc = tok__json_post(tok, json_object_get(root, "post_processor"), err);
    if (rc == 0)
        rc = tok__json_decoder(tok, json_object_get(root, "decoder"), err);
    if (rc == 0)
        rc = read_added(tok, json_object_get(root, "added_tokens"), err);
    if (rc == 0)
        rc = tok__finish(tok, err);
    json_decref(root);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}
