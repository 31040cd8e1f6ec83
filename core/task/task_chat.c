/* core/task/task_chat.c - messages to text, as the model's chat template writes it.
 *
 * A chat template is a program in Jinja. We run none: we know whole programs, by the
 * SHA-256 of their normal form, and write what they write. A template that differs in
 * one byte is refused, since it may write anything. tests/oracle/chat_goldens.py asks
 * transformers what each row of known[] must write; a refusal names the digest, so that
 * the row of a new template is at hand. */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"
#include "core/task/task_internal.h"

static const char im_start[] = "<|im_start|>", im_end[] = "<|im_end|>\n";
static const char system_start[] = "<|im_start|>system\n";
static const char bos_llama3[] = "<|begin_of_text|>";
static const char head_start[] = "<|start_header_id|>", head_end[] = "<|end_header_id|>\n\n";

enum style {
    CHATML, /* contents as they are; a default system message if the first is none */
    LLAMA3, /* begins with bos_token; contents are trimmed */
};

static const struct known {
    const char *sha256; /* of the normal form */
    enum style style;
    /* The system message is always there and begins so; NULL = only if it is sent. */
    const char *system_prefix;
} known[] = {
    /* ChatML with a default system message: Qwen 1.5, Qwen 2, SmolLM2 */
    {"bf0c34b1af07f37d86dd9c6624d1a8d02574b3d3e5c158356534cb7ffa44add3", CHATML, NULL},
    /* ChatML */
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", CHATML, NULL},
    /* ChatML that sets add_generation_prompt if it is not defined */
    {"58c1a1f04baa7adaeaba1f90267c3d57d9396f0c1f0129bdde9e76d3c6784af7", CHATML, NULL},
    /* Qwen 2.5, without tools */
    {"0b13fb322ccd9216b4b6ff11bc10d39f5919ca11ef9ef26b2470497a8dd15fa7", CHATML, NULL},
    /* Llama 3, as first published: always writes the assistant's header */
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", LLAMA3, NULL},
    /* Llama 3 */
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", LLAMA3, NULL},
    /* Llama 3.1 and 3.3, without tools: the date is a constant of the template */
    {"99799a835a31e1d33c4a9c7ee8a0de3923b291a95155ed6dc8efcbd0fe1d0238", LLAMA3,
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"},
};
enum { N_KNOWN = sizeof(known) / sizeof(known[0]), TEMPLATE_MAX = 1 << 16 };

/* ---- recognition --------------------------------------------------------------------- */

/* The normal form of a template is the template, except that in string literals the
 * escape \n is a newline (files have either), that the default system message, which
 * differs between models, is left out, and that one newline at the end is dropped, as
 * Jinja does. */
struct program {
    struct core_buf text;    /* the normal form */
    struct core_buf literal; /* the one just read */
    struct core_buf system;  /* the default system message */
    bool has_system, is_short;
};

static void program_release(struct program *p)
{
    core_buf_release(&p->text);
    core_buf_release(&p->literal);
    core_buf_release(&p->system);
}

static bool is_equal(const struct core_buf *b, const char *s, size_t n)
{
    return b->n == n && (n == 0 || memcmp(b->p, s, n) == 0);
}

/* Reads the string literal at s without its quotes; returns its length with them, 0 if
 * it does not end. */
static size_t read_literal(const char *s, struct core_buf *out)
{
    size_t i = 1;

    core_buf_clear(out);
    for (; s[i] && s[i] != s[0]; i++) {
        const bool is_escape = s[i] == '\\' && s[i + 1];

        if (is_escape && s[i + 1] == 'n')
            core_buf_str(out, "\n");
        else
            core_buf_add(out, s + i, is_escape ? 2 : 1);
        i += is_escape;
    }
    return s[i] ? i + 1 : 0;
}

/* Whether the literal just read is a whole system message; *s and *n are its content. */
static bool is_system(const struct program *p, const char **s, size_t *n)
{
    const size_t n_start = strlen(system_start), n_end = strlen(im_end);
    const struct core_buf *l = &p->literal;

    if (l->n < n_start + n_end || memcmp(l->p, system_start, n_start) != 0 ||
        memcmp(l->p + l->n - n_end, im_end, n_end) != 0)
        return false;
    *s = l->p + n_start;
    *n = l->n - n_start - n_end;
    return true;
}

/* Adds the literal without the default system message. False if there are two of them,
 * or one with an escape that we do not read. */
static bool add_literal(struct program *p)
{
    const char *s;
    size_t n;

    if (!is_system(p, &s, &n)) {
        if (!p->has_system || !is_equal(&p->literal, p->system.p, p->system.n))
            core_buf_add(&p->text, p->literal.p, p->literal.n);
        return true;
    }
    if (p->has_system && !is_equal(&p->system, s, n))
        return false;
    if (!p->has_system)
        core_buf_add(&p->system, s, n);
    p->has_system = true;
    core_buf_str(&p->text, system_start);
    core_buf_str(&p->text, im_end);
    return !memchr(s, '\\', n);
}

/* One pass over the template's first n bytes. A literal is a literal only in a tag. */
static bool normalize(struct program *p, const char *t, size_t n)
{
    bool in_tag = false, is_read = true;

    p->is_short |= p->text.is_short;
    core_buf_clear(&p->text);
    for (size_t i = 0, step; is_read && i < n; i += step) {
        step = 1;
        if (in_tag && (t[i] == '\'' || t[i] == '"')) {
            step = read_literal(t + i, &p->literal);
            p->is_short |= p->literal.is_short;
            core_buf_add(&p->text, t + i, 1);
            is_read = step > 0 && add_literal(p);
        } else if (!in_tag && t[i] == '{' && (t[i + 1] == '{' || t[i + 1] == '%')) {
            in_tag = true;
        } else if (in_tag && (t[i] == '}' || t[i] == '%') && t[i + 1] == '}') {
            in_tag = false;
        }
        core_buf_add(&p->text, t + i, 1); /* of a literal, its second quote */
    }
    p->is_short |= p->text.is_short || p->system.is_short;
    return is_read;
}

static bool hex_digest(const struct core_buf *b, char out[65])
{
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n_md = 0;

    if (EVP_Digest(b->p ? b->p : "", b->n, md, &n_md, EVP_sha256(), NULL) != 1)
        return false;
    for (unsigned i = 0; i < n_md && i < 32; i++)
        snprintf(out + 2 * (size_t)i, 3, "%02x", md[i]);
    return true;
}

/* Reads the template into *p and digests its normal form; "?" if it has none. */
static int digest_template(const char *t, struct program *p, char digest[65], struct core_err *err)
{
    size_t n = strnlen(t, TEMPLATE_MAX);

    n -= n > 0 && t[n - 1] == '\n';
    strcpy(digest, "?");
    /* Twice: the default system message may stand in the template before we know it. */
    if (n < TEMPLATE_MAX - 1 && normalize(p, t, n) && normalize(p, t, n) &&
        !hex_digest(&p->text, digest))
        p->is_short = true;
    return p->is_short ? core_err_nomem(err, "chat template") : 0;
}

static const struct known *find_known(const char *sha256)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(known[i].sha256, sha256) == 0)
            return &known[i];
    return NULL;
}

/* ---- writing -------------------------------------------------------------------------- */

/* White space as Python's str.strip() sees it. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static void add_trimmed(struct core_buf *b, const char *s)
{
    const size_t n = strlen(s);
    size_t from = n, to = n, len;
    uint32_t c;

    for (size_t i = 0; i < n && (len = core_utf8_decode(s + i, n - i, &c)) > 0; i += len) {
        if (is_space(c))
            continue;
        from = from < i ? from : i;
        to = i + len;
    }
    core_buf_add(b, s + from, to - from);
}

static void add_llama3(struct core_buf *b, const char *role, const char *prefix,
                       const char *content)
{
    core_buf_printf(b, "%s%s%s%s", head_start, role, head_end, prefix);
    add_trimmed(b, content);
    core_buf_str(b, "<|eot_id|>");
}

static int check_roles(const struct task_message *message, size_t n, struct core_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *role = message[i].role;
        char where[48];

        if (!strcmp(role, "system") || !strcmp(role, "user") || !strcmp(role, "assistant"))
            continue;
        snprintf(where, sizeof(where), "input.messages[%zu].role", i);
        return core_err_set_param(err, CORE_E_BAD_FIELD, where,
                                  "a role is system, user or assistant");
    }
    return n > 0 ? 0
                 : core_err_set_param(err, CORE_E_BAD_FIELD, "input.messages",
                                      "at least one message is needed");
}

static void write_chatml(struct core_buf *b, const char *system, const struct task_message *message,
                         size_t n)
{
    if (system && strcmp(message[0].role, "system") != 0)
        core_buf_printf(b, "%s%s%s", system_start, system, im_end);
    for (size_t i = 0; i < n; i++)
        core_buf_printf(b, "%s%s\n%s%s", im_start, message[i].role, message[i].content, im_end);
    core_buf_printf(b, "%sassistant\n", im_start);
}

static void write_llama3(struct core_buf *b, const char *system_prefix,
                         const struct task_message *message, size_t n)
{
    size_t i = 0;

    core_buf_str(b, bos_llama3);
    if (system_prefix) {
        i = strcmp(message[0].role, "system") == 0;
        add_llama3(b, "system", system_prefix, i ? message[0].content : "");
    }
    for (; i < n; i++)
        add_llama3(b, message[i].role, "", message[i].content);
    core_buf_printf(b, "%sassistant%s", head_start, head_end);
}

int task__chat_write(const struct task__chat *chat, const struct task_message *message,
                     size_t n_messages, struct core_buf *b, struct core_err *err)
{
    const struct known *k = find_known(chat->sha256);
    int rc;

    if (!k)
        return core_err_set_param(err, CORE_E_WRONG_KIND, "input.messages",
                                  "the model's chat template is none that is known (SHA-256 of "
                                  "its normal form: %s)",
                                  chat->sha256);
    rc = check_roles(message, n_messages, err);
    if (rc < 0)
        return rc;
    if (k->style == LLAMA3 && (!chat->bos || strcmp(chat->bos, bos_llama3) != 0))
        return core_err_set_param(err, CORE_E_WRONG_KIND, "input.messages",
                                  "the chat template is Llama 3's, and the model's first token is "
                                  "not %s",
                                  bos_llama3);
    if (k->style == CHATML)
        write_chatml(b, chat->system, message, n_messages);
    else
        write_llama3(b, k->system_prefix, message, n_messages);
    return b->is_short ? core_err_nomem(err, "chat text") : 0;
}

int task__chat_text(const char *chat_template, const char *bos, const struct task_message *message,
                    size_t n_messages, struct core_buf *b, struct core_err *err)
{
    struct program p = {0};
    char digest[65];
    struct task__chat chat = {.sha256 = digest, .bos = bos};
    int rc;

    if (!chat_template)
        return core_err_set_param(err, CORE_E_WRONG_KIND, "input.messages",
                                  "the model has no chat template");
    rc = digest_template(chat_template, &p, digest, err);
    if (rc < 0)
        goto out;
    if (p.has_system)
        chat.system = p.system.p ? p.system.p : "";
    if (!find_known(digest) && strstr(chat_template, "strftime_now"))
        rc = core_err_set_param(err, CORE_E_WRONG_KIND, "input.messages",
                                "the model's chat template depends on today's date: equal messages "
                                "would be other tokens tomorrow");
    else
        rc = task__chat_write(&chat, message, n_messages, b, err);
out:
    program_release(&p);
    return rc;
}
