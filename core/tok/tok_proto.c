/* core/tok/tok_proto.c - SentencePiece's ModelProto (protocol buffers, proto2).
 *
 * A message is a list of (field number, wire type, value); fields that we do not
 * need are stepped over, and every length is checked against what is left. Of a
 * field that stands twice the last one counts; of messages, the fields of both.
 * Next: tok_spm.c, which makes models of the pieces. */
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_spm.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* What is left of a message. */
struct input {
    const unsigned char *p, *end;
};

struct field {
    uint64_t number;
    int wire;
    uint64_t value;   /* VARINT, FIXED32, FIXED64 */
    struct input sub; /* BYTES */
};

static bool read_varint(struct input *in, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && in->p < in->end; shift += 7) {
        const unsigned char c = *in->p++;

        *out |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80))
            return true;
    }
    return false;
}

static bool read_fixed(struct input *in, size_t n, uint64_t *out)
{
    if ((size_t)(in->end - in->p) < n)
        return false;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)in->p[i] << (8 * i);
    in->p += n;
    return true;
}

/* The next field; false if there is no whole one. */
static bool read_field(struct input *in, struct field *f)
{
    uint64_t key;

    if (!read_varint(in, &key) || key >> 3 == 0)
        return false;
    f->number = key >> 3;
    f->wire = (int)(key & 7);
    switch (f->wire) {
    case VARINT:
        return read_varint(in, &f->value);
    case FIXED64:
        return read_fixed(in, 8, &f->value);
    case FIXED32:
        return read_fixed(in, 4, &f->value);
    case BYTES:
        if (!read_varint(in, &f->value) || f->value > (uint64_t)(in->end - in->p))
            return false;
        f->sub = (struct input){.p = in->p, .end = in->p + f->value};
        in->p = f->sub.end;
        return true;
    default: /* groups are no part of this format */
        return false;
    }
}

static int invalid(const char *what, size_t i, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "SentencePiece model: %s (piece %zu)", what,
                        i);
}

static int wrong_wire(const char *field, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID,
                        "SentencePiece model: %s is damaged or of another type", field);
}

/* SentencePiece { 1: piece, 2: score, 3: type } */
static int read_piece(struct tok__spm *m, struct input in, struct core_err *err)
{
    struct tok__spm_piece piece = {.type = TOK__PIECE_NORMAL};
    struct field f;
    float score;
    uint32_t bits;

    while (in.p < in.end) {
        if (!read_field(&in, &f))
            return invalid("the file is damaged", m->n, err);
        if (f.number == 1 && f.wire == BYTES) {
            piece.text = (const char *)f.sub.p;
            piece.n = (size_t)(f.sub.end - f.sub.p);
        } else if (f.number == 2 && f.wire == FIXED32) {
            bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof(score));
            piece.score = (double)score;
        } else if (f.number == 3 && f.wire == VARINT) {
            piece.type = f.value <= TOK__PIECE_BYTE ? (int)f.value : 0;
        } else if (f.number <= 3) {
            return wrong_wire("a field of a piece", err);
        }
    }
    if (piece.n == 0 || !core_utf8_valid(piece.text, piece.n) || memchr(piece.text, 0, piece.n))
        return invalid("a piece is empty or no UTF-8", m->n, err);
    if (!isfinite(piece.score) || piece.type == 0)
        return invalid("a score or a type is no value", m->n, err);
    if (!tok__grow(&m->pieces, &m->cap, m->n + 1, sizeof(*m->pieces)))
        return core_err_nomem(err, "SentencePiece model");
    m->pieces[m->n++] = piece;
    return 0;
}

/* TrainerSpec { 3: model_type, 40: unk_id, 45: unk_piece } */
static int read_trainer(struct tok__spm *m, struct input in, struct core_err *err)
{
    struct field f;

    while (in.p < in.end) {
        if (!read_field(&in, &f))
            return wrong_wire("trainer_spec", err);
        if ((f.number == 3 || f.number == 40) && f.wire != VARINT)
            return wrong_wire("trainer_spec", err);
        if (f.number == 3)
            m->model_type = f.value <= 4 ? (int)f.value : 0;
        else if (f.number == 40)
            m->unk_id = (int64_t)(int32_t)(uint32_t)f.value;
        if (f.number != 45)
            continue;
        if (f.wire != BYTES || !core_utf8_valid((const char *)f.sub.p, f.value))
            return wrong_wire("unk_piece", err);
        m->unk = (const char *)f.sub.p;
        m->n_unk = f.value;
    }
    return 0;
}

/* NormalizerSpec { 2: precompiled_charsmap } */
static int read_normalizer(struct tok__spm *m, struct input in, struct core_err *err)
{
    struct field f;

    while (in.p < in.end) {
        if (!read_field(&in, &f) || (f.number == 2 && f.wire != BYTES))
            return wrong_wire("normalizer_spec", err);
        if (f.number == 2) {
            m->charsmap = f.sub.p;
            m->n_charsmap = f.value;
        }
    }
    return 0;
}

/* ModelProto { 1: pieces, 2: trainer_spec, 3: normalizer_spec } */
static int read_model(struct tok__spm *m, struct input in, struct core_err *err)
{
    struct field f;
    int rc = 0;

    while (in.p < in.end && rc == 0) {
        if (!read_field(&in, &f))
            return invalid("the file is damaged", m->n, err);
        if (f.number <= 3 && f.wire != BYTES)
            return wrong_wire("a part", err);
        if (f.number == 1)
            rc = read_piece(m, f.sub, err);
        else if (f.number == 2)
            rc = read_trainer(m, f.sub, err);
        else if (f.number == 3)
            rc = read_normalizer(m, f.sub, err);
    }
    if (rc == 0 && m->n == 0)
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "SentencePiece model: there are no pieces");
    if (rc == 0 && m->model_type != TOK__SPM_UNIGRAM && m->model_type != TOK__SPM_BPE)
        rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                          "SentencePiece model: model_type %d is neither UNIGRAM nor BPE",
                          m->model_type);
    return rc;
}

int tok__spm_read(struct tok__spm *out, const void *bytes, size_t n_bytes, struct core_err *err)
{
    struct tok__spm m = {.model_type = TOK__SPM_UNIGRAM, .unk = "<unk>", .n_unk = 5};
    const struct input in = {.p = bytes, .end = (const unsigned char *)bytes + n_bytes};
    const int rc = read_model(&m, in, err);

    if (rc == 0)
        *out = m;
    else
        tok__spm_release(&m);
    return rc;
}

void tok__spm_release(struct tok__spm *m)
{
    core_free(m->pieces);
    *m = (struct tok__spm){0};
}
