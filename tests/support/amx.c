/* tests/support/amx.c - see amx.h. Source: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 2: LDTILECFG, TILELOADD, TILERELEASE, TILESTORED, TILEZERO, TDPBF16PS,
 * TDPBSUD. */
#include "tests/support/amx.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#if defined(__x86_64__)
enum { N_TILES = 8, ROWS = 16, ROW_BYTES = 64, CONFIG_BYTES = 64 };

struct tile {
    unsigned n_rows, row_bytes; /* 0: no such tile */
    union {
        uint16_t u16[ROW_BYTES / 2];
        float f32[ROW_BYTES / 4];
        int32_t i32[ROW_BYTES / 4];
        int8_t i8[ROW_BYTES];
        uint8_t u8[ROW_BYTES];
    } row[ROWS];
};
static _Thread_local struct tile tiles[N_TILES];

/* What VEX and the bytes behind it say. */
struct instruction {
    unsigned prefix; /* 0 none, 1 66, 2 F3, 3 F2 */
    uint8_t opcode;
    unsigned mod, reg, rm, vvvv;
    uint64_t address, stride; /* of memory */
    unsigned n_bytes;
};

static uint64_t gpr(const ucontext_t *c, unsigned i)
{
    static const int at[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                             REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                             REG_R12, REG_R13, REG_R14, REG_R15};

    return (uint64_t)c->uc_mcontext.gregs[at[i]];
}

/* The operand in memory, whose ModRM byte is at p + 4; p[1] has the upper bits of registers. */
static void read_memory(const ucontext_t *c, const uint8_t *p, struct instruction *in)
{
    const unsigned b = p[1] & 0x20 ? 0 : 8, x = p[1] & 0x40 ? 0 : 8;
    const uint8_t *at = p + 5;
    unsigned base = in->rm, index = 4;
    int32_t displacement = 0;

    if (in->rm == 4) {
        base = *at & 7;
        index = (*at >> 3 & 7) + x;
        in->stride = index == 4 ? 0 : gpr(c, index) << (*at >> 6);
        at++;
    }
    if (in->mod == 0 && base == 5) /* no base, or the instruction's own place: not in kernels */
        abort();
    if (in->mod == 1)
        displacement = (int8_t)*at++;
    if (in->mod == 2) {
        memcpy(&displacement, at, sizeof(displacement));
        at += sizeof(displacement);
    }
    in->address = gpr(c, base + b) + (uint64_t)(int64_t)displacement;
    in->n_bytes = (unsigned)(at - p);
}

/* False if it is none of tiles: they have VEX of three bytes, 128 bits, in the map 0F 38. */
static bool decode(const ucontext_t *c, struct instruction *in)
{
    const uint8_t *p = (const uint8_t *)(uintptr_t)c->uc_mcontext.gregs[REG_RIP];

    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || p[2] & 0x84)
        return false;
    *in = (struct instruction){.prefix = p[2] & 3,
                               .opcode = p[3],
                               .mod = p[4] >> 6,
                               .reg = p[4] >> 3 & 7,
                               .rm = p[4] & 7,
                               .vvvv = ~(unsigned)p[2] >> 3 & 15,
                               .n_bytes = 5};
    if (in->mod != 3)
        read_memory(c, p, in);
    return true;
}

static void require(bool is_so)
{
    if (!is_so)
        abort();
}

static void configure(const uint8_t *from)
{
    require(from[0] == 1 && from[1] == 0); /* the palette, and no row to begin at */
    memset(tiles, 0, sizeof(tiles));
    for (unsigned i = 0; i < N_TILES; i++) {
        uint16_t row_bytes;

        memcpy(&row_bytes, from + 16 + 2 * i, sizeof(row_bytes));
        tiles[i].n_rows = from[48 + i];
        tiles[i].row_bytes = row_bytes;
        require(tiles[i].n_rows <= ROWS && row_bytes <= ROW_BYTES &&
                !tiles[i].n_rows == !row_bytes);
    }
    for (unsigned i = 2; i < 16; i++)
        require(from[i] == 0);
}

static void move(struct tile *t, const struct instruction *in, bool is_load)
{
    require(t->n_rows > 0);
    for (unsigned r = 0; r < t->n_rows; r++) {
        void *memory = (void *)(uintptr_t)(in->address + r * in->stride);

        if (is_load)
            memcpy(&t->row[r], memory, t->row_bytes);
        else
            memcpy(memory, &t->row[r], t->row_bytes);
    }
}

static void zero(struct tile *t)
{
    require(t->n_rows > 0);
    memset(t->row, 0, sizeof(t->row));
}

static void check_product(const struct tile *c, const struct tile *a, const struct tile *b)
{
    require(c->n_rows > 0 && c != a && c != b && a != b);
    require(c->n_rows == a->n_rows && c->row_bytes == b->row_bytes);
    require(a->row_bytes == 4 * b->n_rows && a->row_bytes % 4 == 0 && b->row_bytes % 4 == 0);
}

/* The columns of a tile at once, so that the compiler can take vectors. */
#define WITH_FMA __attribute__((target("avx2,fma")))
enum { COLUMNS = ROW_BYTES / 4 };

WITH_FMA static inline float flush(float v)
{
    return fabsf(v) < FLT_MIN ? copysignf(0.0f, v) : v;
}

WITH_FMA static inline float of_bf16(uint16_t h)
{
    const union {
        uint32_t bits;
        float v;
    } u = {.bits = (uint32_t)h << 16};

    return flush(u.v);
}

/* The even values of k and the odd ones have a sum each. */
WITH_FMA static void dot_bf16(struct tile *c, const struct tile *a, const struct tile *b)
{
    float w[ROWS][2][COLUMNS];

    check_product(c, a, b);
    for (unsigned k = 0; k < a->row_bytes / 4; k++)
        for (unsigned n = 0; n < 2 * COLUMNS; n++)
            w[k][n % 2][n / 2] = of_bf16(b->row[k].u16[n]);
    for (unsigned m = 0; m < c->n_rows; m++) {
        float sum[2][COLUMNS] = {{0.0f}};

        for (unsigned k = 0; k < a->row_bytes / 4; k++)
            for (unsigned i = 0; i < 2; i++) {
                const float x = of_bf16(a->row[m].u16[2 * k + i]);

                for (unsigned n = 0; n < COLUMNS; n++)
                    sum[i][n] = flush(fmaf(x, w[k][i][n], sum[i][n]));
            }
        for (unsigned n = 0; n < c->row_bytes / 4; n++)
            c->row[m].f32[n] = flush(flush(c->row[m].f32[n]) + flush(sum[0][n] + sum[1][n]));
    }
}

/* Signed bytes of a, unsigned ones of b. */
static void dot_bytes(struct tile *c, const struct tile *a, const struct tile *b)
{
    check_product(c, a, b);
    for (unsigned m = 0; m < c->n_rows; m++)
        for (unsigned k = 0; k < a->row_bytes; k++)
            for (unsigned n = 0; n < c->row_bytes / 4; n++)
                c->row[m].i32[n] += a->row[m].i8[k] * b->row[k / 4].u8[4 * n + k % 4];
}

/* False if it is none of those above. */
static bool compute(const struct instruction *in)
{
    enum { NONE, P66, PF3, PF2 };
    struct tile *t = &tiles[in->reg];

    if (in->opcode == 0x49 && in->prefix == NONE && in->mod != 3)
        configure((const uint8_t *)(uintptr_t)in->address);
    else if (in->opcode == 0x49 && in->prefix == NONE)
        memset(tiles, 0, sizeof(tiles));
    else if (in->opcode == 0x49 && in->prefix == PF2)
        zero(t);
    else if (in->opcode == 0x4b && in->mod != 3 && (in->prefix == PF2 || in->prefix == PF3))
        move(t, in, in->prefix == PF2);
    else if (in->opcode == 0x5c && in->prefix == PF3)
        dot_bf16(t, &tiles[in->rm], &tiles[in->vvvv]);
    else if (in->opcode == 0x5e && in->prefix == PF3)
        dot_bytes(t, &tiles[in->rm], &tiles[in->vvvv]);
    else
        return false;
    return true;
}

static void on_illegal(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;
    struct instruction in;

    (void)info;
    if (decode(c, &in) && compute(&in)) {
        c->uc_mcontext.gregs[REG_RIP] += in.n_bytes;
        return;
    }
    signal(signal_number, SIG_DFL); /* it comes again */
}

void amx_emulate(void)
{
    struct sigaction a = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};

    sigaction(SIGILL, &a, NULL);
}
#endif
