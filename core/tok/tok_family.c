/* core/tok/tok_family.c - the table of tokenizer classes, and the stages that each
 * class puts around its model.
 *
 * Next: tok_config.c (what the files beside the vocabulary say), tok_spm.c. */
#include "core/tok/tok_family.h"

#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/tok/tok_pattern.h"
#include "core/tok/tok_spm.h"
#include "core/tok/tok_unicode.h"

enum { EXTRA_IDS_MAX = 1 << 16 };

#define SPM_SPECIALS "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"
#define BERT_SPECIALS NULL, NULL, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"
#define END "<|endoftext|>"
#define ALL ((1u << TOK__N_SPECIALS) - 1)

static const struct tok__family families[] = {
    {"BertTokenizer", TOK__RULE_BERT, {"vocab.txt"}, {BERT_SPECIALS}, false, 0},
    {"DistilBertTokenizer", TOK__RULE_BERT, {"vocab.txt"}, {BERT_SPECIALS}, false, 0},
    {"ElectraTokenizer", TOK__RULE_BERT, {"vocab.txt"}, {BERT_SPECIALS}, false, 0},
    {"GPT2Tokenizer", TOK__RULE_GPT2, {"vocab.json", "merges.txt"}, {END, END, END}, false, ALL},
    {"RobertaTokenizer",
     TOK__RULE_ROBERTA,
     {"vocab.json", "merges.txt"},
     {SPM_SPECIALS},
     true,
     ALL & ~(1u << TOK__MASK)},
    {"BartTokenizer", TOK__RULE_ROBERTA, {"vocab.json", "merges.txt"}, {SPM_SPECIALS}, true, ALL},
    {"Qwen2Tokenizer",
     TOK__RULE_QWEN2,
     {"vocab.json", "merges.txt"},
     {NULL, END, END, NULL, END},
     false,
     0},
    {"XLMRobertaTokenizer",
     TOK__RULE_XLM_ROBERTA,
     {"sentencepiece.bpe.model"},
     {SPM_SPECIALS},
     true,
     0},
    {"MBartTokenizer", TOK__RULE_MBART, {"sentencepiece.bpe.model"}, {SPM_SPECIALS}, true, 0},
    {"T5Tokenizer",
     TOK__RULE_T5,
     {"spiece.model"},
     {NULL, "</s>", "<unk>", NULL, "<pad>"},
     false,
     0},
    {"DebertaV2Tokenizer",
     TOK__RULE_DEBERTA,
     {"spm.model"},
     {"[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"},
     false,
     1u << TOK__UNK},
    {"LlamaTokenizer", TOK__RULE_LLAMA, {"tokenizer.model"}, {"<s>", "</s>", "<unk>"}, false, 0},
    {"GemmaTokenizer",
     TOK__RULE_GEMMA,
     {"tokenizer.model"},
     {"<bos>", "<eos>", "<unk>", NULL, "<pad>"},
     false,
     0},
};
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static const char *const mbart_languages[] = {
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN",
    "hi_IN", "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP",
    "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"};
enum { N_LANGUAGES = sizeof(mbart_languages) / sizeof(mbart_languages[0]) };

const struct tok__family *tok__family_of_class(const char *class)
{
    size_t n = strlen(class);

    if (n > 4 && strcmp(class + n - 4, "Fast") == 0)
        n -= 4;
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i].class) == n && memcmp(families[i].class, class, n) == 0)
            return &families[i];
    return NULL;
}

/* ---- shared --------------------------------------------------------------- */

static int add_edit(struct tok__stages *s, enum tok__stage_kind kind, struct tok__stage **out,
                    struct core_err *err)
{
    *out = tok__stage_add(s, kind);
    return *out ? 0 : core_err_nomem(err, "tokenizer");
}

static int id_of(const struct tok *tok, const char *text, int32_t *id, struct core_err *err)
{
    if (text && tok_token_id(tok, text, id))
        return 0;
    return core_err_set(err, CORE_E_ADAPTER_INVALID,
                        "the tokenizer needs the token \"%.60s\", which the vocabulary lacks",
                        text ? text : "(null)");
}

/* Templates as texts: each letter and its type: A and B the texts, < and > ids. */
static int add_templates(struct tok *tok, const char *single, const char *pair,
                         const int32_t ids[2], struct core_err *err)
{
    const char *const specs[] = {single, pair};
    int rc = 0;

    tok->post.has_template = true;
    for (int p = 0; p < 2; p++) {
        for (const char *s = specs[p]; *s && rc == 0; s += 2) {
            const int type = s[1] - '0';

            if (*s == 'A' || *s == 'B')
                rc = tok__post_piece(&tok->post, p, *s - 'A', type, err);
            else
                rc = tok__post_special(&tok->post, p, &ids[*s == '>'], 1, type, err);
        }
    }
    return rc;
}

/* Around each text a beginning and an end, if the configuration asks for them. */
static int add_ends(const struct tok__config *c, struct tok *tok, bool bos_default,
                    struct core_err *err)
{
    static const char *const single[] = {"A0", "<0A0", "A0>0", "<0A0>0"};
    static const char *const pair[] = {"A0B1", "<0A0<1B1", "A0>0B1>1", "<0A0>0<1B1>1"};
    struct tok__special bos, eos;
    int32_t ids[2] = {0, 0};
    bool has_bos, has_eos;
    int rc = tok__config_bool(c, "add_bos_token", bos_default, false, &has_bos, err);

    if (rc == 0)
        rc = tok__config_bool(c, "add_eos_token", false, false, &has_eos, err);
    if (rc == 0)
        rc = tok__config_special(c, TOK__BOS, &bos, err);
    if (rc == 0)
        rc = tok__config_special(c, TOK__EOS, &eos, err);
    if (rc == 0 && has_bos)
        rc = id_of(tok, bos.text, &ids[0], err);
    if (rc == 0 && has_eos)
        rc = id_of(tok, eos.text, &ids[1], err);
    if (rc != 0)
        return rc;
    return add_templates(tok, single[has_bos + 2 * has_eos], pair[has_bos + 2 * has_eos], ids, err);
}

/* ---- SentencePiece: vocabularies ------------------------------------------ */

struct spm {
    const struct tok__config *c;
    enum tok__rule rule;
    struct tok__spm m;
    struct tok__spm_piece *list; /* the vocabulary */
    size_t n;
    char *texts; /* of sentinels */
    const char **extra;
    size_t n_extra;
};

static void spm_release(struct spm *b)
{
    tok__spm_release(&b->m);
    core_free(b->list);
    core_free(b->texts);
    core_free(b->extra);
}

static void put(struct spm *b, const char *text)
{
    b->list[b->n++] = (struct tok__spm_piece){.text = text, .n = strlen(text)};
}

/* How many sentinels T5 has, which additional_special_tokens must agree with. */
static int count_extra(const struct spm *b, size_t *n, struct core_err *err)
{
    const json_t *v = json_object_get(b->c->own, "extra_ids");
    const json_t *list = json_object_get(b->c->map, "additional_special_tokens");
    size_t listed = 0;

    *n = v ? (size_t)json_integer_value(v) : 100;
    if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || *n > EXTRA_IDS_MAX))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "tokenizer_config.json: \"extra_ids\" is not a count up to %d",
                            (int)EXTRA_IDS_MAX);
    if (!list)
        list = json_object_get(b->c->own, "additional_special_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        const char *text = json_string_value(t);

        text = text ? text : json_string_value(json_object_get(t, "content"));
        listed += text && strstr(text, "<extra_id_");
    }
    if (*n > 0 && listed > 0 && listed != *n)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "tokenizer_config.json: %zu extra_ids, but %zu of them listed", *n,
                            listed);
    return 0;
}

/* <extra_id_0> and on, and for mBART its languages. */
static int make_extra(struct spm *b, struct core_err *err)
{
    enum { TEXT_MAX = 24 };
    size_t n = b->rule == TOK__RULE_MBART ? N_LANGUAGES : 0;
    const int rc = b->rule == TOK__RULE_T5 ? count_extra(b, &n, err) : 0;

    if (rc != 0)
        return rc;
    b->extra = core_calloc(n + 1, sizeof(*b->extra));
    b->texts = core_calloc(n + 1, TEXT_MAX);
    if (!b->extra || !b->texts)
        return core_err_nomem(err, "tokenizer");
    for (b->n_extra = 0; b->n_extra < n; b->n_extra++) {
        char *text = b->texts + b->n_extra * TEXT_MAX;

        snprintf(text, TEXT_MAX, "<extra_id_%zu>", b->n_extra);
        b->extra[b->n_extra] = b->rule == TOK__RULE_T5 ? text : mbart_languages[b->n_extra];
    }
    return 0;
}

/* Gemma's first three pieces are the configuration's tokens; and a vocabulary
 * without a tab has one in the place of the byte. */
static int patch_gemma(struct spm *b, struct core_err *err)
{
    static const enum tok__special_kind first[] = {TOK__PAD, TOK__EOS, TOK__BOS};
    struct tok__spm_piece *byte = NULL;
    struct tok__special s;

    for (int i = 0; i < 3; i++) {
        const int rc = tok__config_special(b->c, first[i], &s, err);

        if (rc != 0)
            return rc;
        if (!s.text)
            return core_err_set(err, CORE_E_ADAPTER_INVALID,
                                "Gemma's tokenizer needs pad_token, eos_token and bos_token");
        b->list[i] = (struct tok__spm_piece){.text = s.text, .n = strlen(s.text)};
    }
    for (size_t i = 0; i < b->n; i++) {
        if (b->list[i].n == 1 && b->list[i].text[0] == '\t')
            return 0;
        if (!byte && b->list[i].n == 6 && memcmp(b->list[i].text, "<0x09>", 6) == 0)
            byte = &b->list[i];
    }
    if (byte)
        *byte = (struct tok__spm_piece){.text = "\t", .n = 1};
    return 0;
}

/* fairseq's ids: four special tokens in the place of the first three pieces. */
static int make_list(struct spm *b, struct core_err *err)
{
    static const char *const fairseq[] = {"<s>", "<pad>", "</s>", "<unk>"};
    const bool is_fairseq = b->rule == TOK__RULE_XLM_ROBERTA || b->rule == TOK__RULE_MBART;
    const size_t skipped = is_fairseq ? 3 : 0;

    if (b->m.n < 3)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "SentencePiece model: %zu pieces are too few", b->m.n);
    b->list = core_calloc(b->m.n + b->n_extra + 5, sizeof(*b->list));
    if (!b->list)
        return core_err_nomem(err, "tokenizer");
    for (int i = 0; i < 4 && is_fairseq; i++)
        put(b, fairseq[i]);
    for (size_t i = skipped; i < b->m.n; i++)
        b->list[b->n++] = b->m.pieces[i];
    for (size_t i = 0; i < b->n_extra; i++)
        put(b, b->extra[is_fairseq ? i : b->n_extra - 1 - i]);
    if (is_fairseq)
        put(b, "<mask>");
    for (int i = 0; i < 3 && b->rule == TOK__RULE_LLAMA; i++)
        b->list[i].score = 0;
    return b->rule == TOK__RULE_GEMMA ? patch_gemma(b, err) : 0;
}

static int make_model(struct spm *b, struct tok *tok, struct core_err *err)
{
    char *unk = core_strndup(b->m.unk, b->m.n_unk);
    struct tok__spm_model how = {.model_type = b->m.model_type, .unk_id = b->m.unk_id, .unk = unk};
    int rc = unk ? 0 : core_err_nomem(err, "tokenizer");

    if (b->rule == TOK__RULE_XLM_ROBERTA || b->rule == TOK__RULE_MBART ||
        b->rule == TOK__RULE_GEMMA)
        how.unk_id = 3;
    else if (b->rule == TOK__RULE_LLAMA)
        how.unk_id = 0;
    how.byte_fallback = b->rule == TOK__RULE_LLAMA || b->rule == TOK__RULE_GEMMA;
    if (rc == 0)
        rc = make_extra(b, err);
    if (rc == 0)
        rc = make_list(b, err);
    if (rc == 0)
        rc = tok__spm_model(tok, b->list, b->n, &how, err);
    core_free(unk);
    return rc;
}

/* Control and user-defined pieces are found in text as they are. */
static int add_controls(struct tok *tok, const void *arg, struct core_err *err)
{
    static const char *const turns[] = {"<start_of_turn>", "<end_of_turn>"};
    const struct spm *b = arg;
    int rc = 0;

    for (size_t i = 0; i < b->m.n && rc == 0; i++) {
        const struct tok__spm_piece *p = &b->m.pieces[i];
        struct tok__added_token t = {.is_special = p->type == TOK__PIECE_CONTROL};

        if (p->type != TOK__PIECE_CONTROL && p->type != TOK__PIECE_USER)
            continue;
        for (int k = 0; k < 2 && b->rule == TOK__RULE_GEMMA; k++)
            t.is_special |= p->n == strlen(turns[k]) && memcmp(p->text, turns[k], p->n) == 0;
        rc = tok__added_add(tok, &t, p->text, p->n, err);
    }
    return rc;
}

/* ---- SentencePiece: stages ------------------------------------------------ */

static int add_charsmap(struct spm *b, struct tok *tok, struct core_err *err)
{
    struct tok__stage *v;
    const int rc = b->m.n_charsmap > 0 ? add_edit(&tok->normalizer, TOK__CHARSMAP, &v, err) : 0;

    if (rc != 0 || b->m.n_charsmap == 0)
        return rc;
    return tok__charsmap_new(&v->map, b->m.charsmap, b->m.n_charsmap, err);
}

/* XLM-R, mBART, T5. */
static int stages_plain(struct spm *b, struct tok *tok, struct core_err *err)
{
    enum tok__scheme scheme = TOK__ALWAYS;
    bool prefix = true, legacy = true;
    int rc = add_charsmap(b, tok, err);

    if (rc == 0 && b->rule == TOK__RULE_T5)
        rc = tok__config_bool(b->c, "add_prefix_space", true, false, &prefix, err);
    if (rc == 0 && b->rule == TOK__RULE_T5)
        rc = tok__config_bool(b->c, "legacy", true, true, &legacy, err);
    scheme = !prefix ? TOK__NEVER : legacy ? TOK__ALWAYS : TOK__FIRST;
    if (rc == 0)
        rc = tok__build_spm_spaces(&tok->normalizer, err);
    if (rc == 0)
        rc = tok__build_metaspace(&tok->pretokenizer, tok__mark, scheme, true, err);
    return rc == 0
               ? tok__build_decoder(tok, TOK__DEC_METASPACE, tok__mark, scheme != TOK__NEVER, err)
               : rc;
}

static int stages_deberta(struct spm *b, struct tok *tok, struct core_err *err)
{
    struct tok__stage *v;
    bool lower, punct;
    int rc = tok__config_bool(b->c, "do_lower_case", false, false, &lower, err);

    if (rc == 0)
        rc = tok__config_bool(b->c, "split_by_punct", false, false, &punct, err);
    if (rc == 0 && lower)
        rc = add_edit(&tok->normalizer, TOK__LOWER, &v, err);
    if (rc == 0)
        rc = tok__build_strip(&tok->normalizer, true, err);
    if (rc == 0)
        rc = add_charsmap(b, tok, err);
    if (rc == 0)
        rc = tok__build_squeeze(&tok->normalizer, " ", err);
    if (rc == 0 && punct && (rc = add_edit(&tok->pretokenizer, TOK__CUT, &v, err)) == 0) {
        v->pat = (struct tok__pattern){.kind = TOK__BY_CLASS, .mask = TOK__PUNCT};
        v->behavior = TOK__ISOLATED;
    }
    if (rc == 0)
        rc = tok__build_metaspace(&tok->pretokenizer, tok__mark, TOK__ALWAYS, true, err);
    return rc == 0 ? tok__build_decoder(tok, TOK__DEC_METASPACE, tok__mark, true, err) : rc;
}

static int stages_llama(struct spm *b, struct tok *tok, struct core_err *err)
{
    struct tok__stage *v;
    bool prefix, legacy;
    int rc = tok__config_bool(b->c, "add_prefix_space", true, false, &prefix, err);

    if (rc == 0)
        rc = tok__config_bool(b->c, "legacy", true, true, &legacy, err);
    if (rc == 0 && !legacy)
        rc = tok__build_metaspace(&tok->pretokenizer, tok__mark, prefix ? TOK__FIRST : TOK__NEVER,
                                  false, err);
    if (rc == 0 && legacy && prefix &&
        (rc = add_edit(&tok->normalizer, TOK__PREPEND, &v, err)) == 0 &&
        !tok__str_set(&v->arg, tok__mark, strlen(tok__mark)))
        rc = core_err_nomem(err, "tokenizer");
    if (rc == 0 && legacy)
        rc = tok__build_replace(&tok->normalizer, " ", tok__mark, err);
    return rc == 0 ? tok__build_spm_decoder(tok, prefix, err) : rc;
}

static int stages_gemma(struct tok *tok, struct core_err *err)
{
    struct tok__stage *v;
    int rc = tok__build_replace(&tok->normalizer, " ", tok__mark, err);

    if (rc == 0)
        rc = add_edit(&tok->pretokenizer, TOK__CUT, &v, err);
    if (rc != 0)
        return rc;
    v->pat.kind = TOK__BY_STRING;
    v->behavior = TOK__MERGED_WITH_PREVIOUS;
    if (!tok__str_set(&v->pat.str, " ", 1))
        return core_err_nomem(err, "tokenizer");
    return tok__build_spm_decoder(tok, false, err);
}

static int add_stages(struct spm *b, struct tok *tok, struct core_err *err)
{
    switch (b->rule) {
    case TOK__RULE_DEBERTA:
        return stages_deberta(b, tok, err);
    case TOK__RULE_LLAMA:
        return stages_llama(b, tok, err);
    case TOK__RULE_GEMMA:
        return stages_gemma(tok, err);
    default:
        return stages_plain(b, tok, err);
    }
}

static int mbart_post(const struct spm *b, struct tok *tok, struct core_err *err)
{
    const json_t *lang = json_object_get(b->c->own, "src_lang");
    struct tok__special eos;
    int32_t ids[2];
    int rc = tok__config_special(b->c, TOK__EOS, &eos, err);

    if (rc == 0)
        rc = id_of(tok, json_is_string(lang) ? json_string_value(lang) : "en_XX", &ids[0], err);
    if (rc == 0)
        rc = id_of(tok, eos.text, &ids[1], err);
    return rc == 0 ? add_templates(tok, "A0>0<0", "A0B0>0<0", ids, err) : rc;
}

static int add_post(const struct spm *b, struct tok *tok, struct core_err *err)
{
    static const struct {
        enum tok__rule rule;
        const char *first, *last, *single, *pair;
    } rows[] = {{TOK__RULE_XLM_ROBERTA, "<s>", "</s>", "<0A0>0", "<0A0>0>0B0>0"},
                {TOK__RULE_T5, "</s>", "</s>", "A0>0", "A0>0B0>0"},
                {TOK__RULE_DEBERTA, "[CLS]", "[SEP]", "<0A0>0", "<0A0>0B1>1"}};
    int32_t ids[2];
    int rc;

    if (b->rule == TOK__RULE_MBART)
        return mbart_post(b, tok, err);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].rule != b->rule)
            continue;
        rc = id_of(tok, rows[i].first, &ids[0], err);
        if (rc == 0)
            rc = id_of(tok, rows[i].last, &ids[1], err);
        return rc == 0 ? add_templates(tok, rows[i].single, rows[i].pair, ids, err) : rc;
    }
    return add_ends(b->c, tok, true, err);
}

int tok__family_spm(struct tok **out, const struct tok__config *c, const struct core_file *vocab,
                    struct core_err *err)
{
    struct spm b = {.c = c, .rule = c->family->rule};
    struct tok__first first = {.add = add_controls, .arg = &b};
    struct tok *tok = NULL;
    int rc = tok__spm_read(&b.m, vocab->bytes, vocab->n_bytes, err);

    if (rc == 0)
        rc = tok__new(&tok, err);
    if (rc == 0)
        rc = make_model(&b, tok, err);
    for (size_t i = 0; i < b.m.n; i++)
        first.n +=
            b.m.pieces[i].type == TOK__PIECE_CONTROL || b.m.pieces[i].type == TOK__PIECE_USER;
    first.extra = b.extra;
    first.n_extra = b.n_extra;
    if (rc == 0)
        rc = add_stages(&b, tok, err);
    if (rc == 0)
        rc = tok__config_added(c, tok, &first, err);
    if (rc == 0)
        rc = add_post(&b, tok, err);
    if (rc == 0)
        rc = tok__finish(tok, err);
    spm_release(&b);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}

/* ---- byte-level BPE ------------------------------------------------------- */

static int roberta_post(const struct tok__config *c, struct tok *tok, bool prefix,
                        struct core_err *err)
{
    struct tok__special cls, sep;
    int32_t ids[2];
    bool trims;
    int rc = tok__config_bool(c, "trim_offsets", true, false, &trims, err);

    if (rc == 0)
        rc = tok__config_special(c, TOK__CLS, &cls, err);
    if (rc == 0)
        rc = tok__config_special(c, TOK__SEP, &sep, err);
    if (rc == 0)
        rc = id_of(tok, cls.text, &ids[0], err);
    if (rc == 0)
        rc = id_of(tok, sep.text, &ids[1], err);
    if (rc == 0 && trims)
        tok->post.trim_has_prefix[tok->post.n_trims++] = prefix;
    return rc == 0 ? tok__build_cls_sep(&tok->post, ids[0], ids[1], true, err) : rc;
}

static int gpt2_post(const struct tok__config *c, struct tok *tok, struct core_err *err)
{
    struct tok__special bos;
    int32_t ids[2] = {0, 0};
    bool has_bos;
    int rc = tok__config_bool(c, "add_bos_token", false, false, &has_bos, err);

    if (rc != 0 || !has_bos)
        return rc;
    rc = tok__config_special(c, TOK__BOS, &bos, err);
    if (rc == 0)
        rc = id_of(tok, bos.text, &ids[0], err);
    return rc == 0 ? add_templates(tok, "<0A0", "<0A0B1", ids, err) : rc;
}

int tok__family_bpe(struct tok **out, const struct tok__config *c, const struct core_file *vocab,
                    const struct core_file *merges, struct core_err *err)
{
    const bool is_qwen = c->family->rule == TOK__RULE_QWEN2;
    const struct tok__first first = {0};
    struct tok *tok = NULL;
    bool prefix;
    int rc = tok__config_bool(c, "add_prefix_space", false, false, &prefix, err);

    if (rc == 0)
        rc = tok__new(&tok, err);
    if (rc == 0)
        rc = tok__read_bpe(tok, vocab, merges, err);
    if (rc == 0 && is_qwen)
        rc = tok__build_form(&tok->normalizer, false, true, err);
    if (rc == 0 && is_qwen)
        rc = tok__build_split(&tok->pretokenizer, tok__pattern_qwen2, strlen(tok__pattern_qwen2),
                              err);
    if (rc == 0)
        rc = tok__build_byte_level(&tok->pretokenizer, prefix, !is_qwen, err);
    if (rc == 0)
        rc = tok__build_decoder(tok, TOK__DEC_BYTES, "", false, err);
    if (rc == 0)
        rc = tok__config_added(c, tok, &first, err);
    if (rc == 0 && c->family->rule == TOK__RULE_ROBERTA)
        rc = roberta_post(c, tok, prefix, err);
    else if (rc == 0 && c->family->rule == TOK__RULE_GPT2)
        rc = gpt2_post(c, tok, err);
    if (rc == 0)
        rc = tok__finish(tok, err);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}
