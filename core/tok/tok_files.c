/* core/tok/tok_files.c - the older file kinds, and choosing by what a path holds. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/pyjson.h"
#include "core/base/utf8.h"
#include "core/tok/tok_family.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"
#include "core/weights/weights.h"

/* The next line of [*p, end) without its end; false when there is none. */
static bool next_line(const char **p, const char *end, const char **line, size_t *n)
{
    const char *stop;

    if (*p >= end)
        return false;
    stop = memchr(*p, '\n', (size_t)(end - *p));
    *line = *p;
    *n = (size_t)((stop ? stop : end) - *p);
    *p = stop ? stop + 1 : end;
    if (*n > 0 && (*line)[*n - 1] == '\r')
        (*n)--;
    return true;
}

static size_t count_lines(const char *p, size_t n)
{
    size_t count = 1;

    for (size_t i = 0; i < n; i++)
        count += p[i] == '\n';
    return count;
}

static int check_utf8(const char *name, const void *p, size_t n, struct core_err *err)
{
    return core_utf8_valid(p, n)
               ? 0
               : core_err_set(err, CORE_E_ADAPTER_INVALID, "%s is not UTF-8", name);
}

/* ---- vocab.txt ------------------------------------------------------------ */

static size_t trim_end(const char *s, size_t n)
{
    while (n > 0) {
        size_t i = n - 1;
        uint32_t cp;

        while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80)
            i--;
        tok__get(s + i, &cp);
        if (!(tok__class(cp) & TOK__SPACE))
            break;
        n = i;
    }
    return n;
}

int tok_open_wordpiece(struct tok **out, const void *vocab, size_t n_bytes, bool lowercase,
                       bool strip_accents, struct core_err *err)
{
    const char *p = vocab, *line;
    const char *end = p + n_bytes;
    struct tok *tok = NULL;
    int64_t id = 0;
    size_t n;
    int rc = check_utf8("vocab.txt", vocab, n_bytes, err);

    if (rc == 0)
        rc = tok__new(&tok, err);
    if (rc == 0)
        rc = tok__vocab_init(&tok->model.vocab, count_lines(vocab, n_bytes), err);
    while (rc == 0 && next_line(&p, end, &line, &n))
        rc = tok__vocab_add(&tok->model.vocab, line, trim_end(line, n), id++, err);
    if (rc == 0)
        rc = tok__build_wordpiece(tok, lowercase, strip_accents, err);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}

/* ---- vocab.json and merges.txt -------------------------------------------- */

static int read_vocab_json(struct tok *tok, const void *bytes, size_t n_bytes, struct core_err *err)
{
    json_error_t why;
    json_t *root = core_pyjson_load(bytes, n_bytes, &why), *id;
    const char *text;
    int rc;

    if (!root)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "vocab.json: line %d: %s", why.line,
                            why.text);
    rc = json_is_object(root)
             ? tok__vocab_init(&tok->model.vocab, json_object_size(root), err)
             : core_err_set(err, CORE_E_ADAPTER_INVALID, "vocab.json is not an object");
    if (rc == 0) {
        json_object_foreach(root, text, id)
        {
            if (!json_is_integer(id))
                rc = core_err_set(err, CORE_E_ADAPTER_INVALID,
                                  "vocab.json: the id of \"%.60s\" is not a number", text);
            else
                rc = tok__vocab_add(&tok->model.vocab, text, strlen(text), json_integer_value(id),
                                    err);
            if (rc != 0)
                break;
        }
    }
    json_decref(root);
    return rc;
}

static int read_merges(struct tok *tok, const char *p, size_t n_bytes, struct core_err *err)
{
    const struct tok__bpe_options opt = {.n_merges = count_lines(p, n_bytes)};
    const char *end = p + n_bytes, *line;
    size_t n;
    int rc = check_utf8("merges.txt", p, n_bytes, err);

    if (rc == 0)
        rc = tok__bpe_new(&tok->model, &opt, err);
    while (rc == 0 && next_line(&p, end, &line, &n)) {
        if ((n >= 8 && memcmp(line, "#version", 8) == 0) || (n == 0 && p >= end))
            continue;
        rc = tok__bpe_add_merge_line(&tok->model, line, n, err);
    }
    return rc;
}

int tok__read_bpe(struct tok *tok, const struct core_file *vocab, const struct core_file *merges,
                  struct core_err *err)
{
    const int rc = read_vocab_json(tok, vocab->bytes, vocab->n_bytes, err);

    return rc == 0 ? read_merges(tok, merges->bytes, merges->n_bytes, err) : rc;
}

int tok_open_bpe(struct tok **out, const void *vocab, size_t n_vocab, const void *merges,
                 size_t n_merges, struct core_err *err)
{
    static const char *const specials[] = {"<|endoftext|>"};
    const struct core_file files[] = {{.bytes = vocab, .n_bytes = n_vocab},
                                      {.bytes = merges, .n_bytes = n_merges}};
    struct tok *tok = NULL;
    int rc = tok__new(&tok, err);

    if (rc == 0)
        rc = tok__read_bpe(tok, &files[0], &files[1], err);
    if (rc == 0)
        rc = tok__build_byte_level(&tok->pretokenizer, false, true, err);
    if (rc == 0)
        rc = tok__build_decoder(tok, TOK__DEC_BYTES, "", false, err);
    if (rc == 0)
        rc = tok__build_added(tok, specials, 1, err);
    if (rc == 0)
        rc = tok__finish(tok, err);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}

/* ---- folders -------------------------------------------------------------- */

/* do_lower_case and strip_accents of tokenizer_config.json. */
static int open_bert(struct tok **out, const struct tok__config *c, const struct core_file *vocab,
                     struct core_err *err)
{
    bool lowercase, strip_accents, cjk;
    int rc = tok__config_bool(c, "do_lower_case", true, true, &lowercase, err);

    if (rc == 0)
        rc = tok__config_bool(c, "strip_accents", lowercase, lowercase, &strip_accents, err);
    if (rc == 0)
        rc = tok__config_bool(c, "tokenize_chinese_chars", true, true, &cjk, err);
    if (rc == 0 && !cjk)
        rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                          "tokenizer_config.json: tokenize_chinese_chars false");
    return rc == 0 ? tok_open_wordpiece(out, vocab->bytes, vocab->n_bytes, lowercase, strip_accents,
                                        err)
                   : rc;
}

/* Without a class: what the names of the files tell, which SentencePiece's do not. */
static int open_by_name(struct tok **out, const struct tok__config *c, const struct core_file *f,
                        size_t n, struct core_err *err)
{
    const struct core_file *json = core_file_find(f, n, "vocab.json");
    const struct core_file *merges = core_file_find(f, n, "merges.txt");
    const struct core_file *txt = core_file_find(f, n, "vocab.txt");

    if (json && merges)
        return tok_open_bpe(out, json->bytes, json->n_bytes, merges->bytes, merges->n_bytes, err);
    if (json)
        return core_err_set(err, CORE_E_NO_TOKENIZER, "there is a vocab.json but no merges.txt");
    if (txt)
        return open_bert(out, c, txt, err);
    return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                        "a SentencePiece file, but no tokenizer_class in tokenizer_config.json to "
                        "say how to use it");
}

static int open_family(struct tok **out, const struct tok__config *c, const struct core_file *f,
                       size_t n, struct core_err *err)
{
    const struct tok__family *family = c->family;
    const struct core_file *found[2] = {NULL, NULL};

    for (int i = 0; i < 2 && family->files[i]; i++) {
        found[i] = core_file_find(f, n, family->files[i]);
        if (!found[i])
            return core_err_set(err, CORE_E_NO_TOKENIZER,
                                "the model's folder has no tokenizer.json, and no %s for a %s",
                                family->files[i], family->class);
    }
    if (family->rule == TOK__RULE_BERT)
        return open_bert(out, c, found[0], err);
    return found[1] ? tok__family_bpe(out, c, found[0], found[1], err)
                    : tok__family_spm(out, c, found[0], err);
}

/* Every name that tok_open_files() looks at: first what can be a tokenizer by itself. */
static const char *const names[] = {"tokenizer.json",
                                    "vocab.json",
                                    "vocab.txt",
                                    "spm.model",
                                    "spiece.model",
                                    "sentencepiece.bpe.model",
                                    "tokenizer.model",
                                    "merges.txt",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "config.json"};
enum { N_VOCABULARIES = 7, N_NAMES = sizeof(names) / sizeof(names[0]) };

int tok_open_files(struct tok **out, const char *tokenizer_class, const struct tok_defaults *dflt,
                   const struct core_file *files, size_t n_files, struct core_err *err)
{
    const struct core_file *json = core_file_find(files, n_files, names[0]);
    struct tok__config c;
    bool any = false;
    int rc;

    if (json)
        return tok_open_json(out, json->bytes, json->n_bytes, err);
    for (int i = 1; i < N_VOCABULARIES; i++)
        any |= core_file_find(files, n_files, names[i]) != NULL;
    if (!any)
        return core_err_set(err, CORE_E_NO_TOKENIZER,
                            "the model's folder has no tokenizer.json, vocab.json, vocab.txt or "
                            "SentencePiece file");
    rc = tok__config_read(&c, tokenizer_class, dflt, files, n_files, err);
    if (rc != 0)
        return rc;
    rc = c.family ? open_family(out, &c, files, n_files, err)
                  : open_by_name(out, &c, files, n_files, err);
    tok__config_release(&c);
    return rc;
}

/* ---- paths ---------------------------------------------------------------- */

/* Maps folder/name if there is such a file; *m stays empty if not. */
static int map_in(const char *folder, const char *name, struct core_map *m, bool *there,
                  struct core_err *err)
{
    char path[4096];
    struct stat st;
    const int n = snprintf(path, sizeof(path), "%s/%s", folder, name);

    *m = (struct core_map){0};
    *there = n > 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode);
    return *there ? core_map_open(m, path, err) : 0;
}

static int open_folder(struct tok **out, const char *folder, const struct tok_defaults *dflt,
                       struct core_err *err)
{
    struct core_map maps[N_NAMES] = {{0}};
    struct core_file files[N_NAMES];
    size_t n = 0;
    int rc = 0;

    for (int i = 0; i < N_NAMES && rc == 0; i++) {
        bool there;

        rc = map_in(folder, names[i], &maps[i], &there, err);
        if (rc == 0 && there)
            files[n++] = (struct core_file){
                .name = names[i], .bytes = maps[i].bytes, .n_bytes = maps[i].n_bytes};
        if (rc == 0 && there && i == 0)
            break; /* nothing else is needed */
    }
    if (rc == 0)
        rc = tok_open_files(out, NULL, dflt, files, n, err);
    for (int i = 0; i < N_NAMES; i++)
        core_map_release(&maps[i]);
    return rc;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

int tok_open_path(struct tok **out, const char *path, const struct gguf *g,
                  const struct tok_defaults *dflt, struct core_err *err)
{
    struct core_map m = {0};
    struct gguf *own = NULL;
    struct stat st;
    int rc;

    if (g)
        return tok_open_gguf(out, g, dflt, err);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return open_folder(out, path, dflt, err);
    rc = core_map_open(&m, path, err);
    if (rc == 0 && ends_with(path, ".json")) {
        rc = tok_open_json(out, m.bytes, m.n_bytes, err);
    } else if (rc == 0 && ends_with(path, ".txt")) {
        rc = tok_open_wordpiece(out, m.bytes, m.n_bytes, true, true, err);
    } else if (rc == 0) {
        rc = gguf_read(m.bytes, m.n_bytes, &own, err);
        if (rc == 0)
            rc = tok_open_gguf(out, own, dflt, err);
        gguf_free(own);
    }
    core_map_release(&m);
    return rc;
}
