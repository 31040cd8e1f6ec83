/* core/base/numpy_random.c - PCG64 as numpy seeds it, and what Generator draws from its words. */
#include "core/base/numpy_random.h"

#include <assert.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

/* ---- SeedSequence ------------------------------------------------------------------------ */

enum { POOL = 4, STATE = 8 }; /* words of 32 bits */

static uint32_t hash(uint32_t value, uint32_t *constant, uint32_t factor)
{
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    const uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;

    return z ^ z >> 16;
}

static void seed_words(uint64_t seed, uint32_t out[STATE])
{
    const uint32_t entropy[POOL] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t pool[POOL], constant = 0x43b0d7e5u;

    for (unsigned i = 0; i < POOL; i++)
        pool[i] = hash(entropy[i], &constant, 0x931e8875u);
    for (unsigned from = 0; from < POOL; from++)
        for (unsigned to = 0; to < POOL; to++)
            if (from != to)
                pool[to] = mix(pool[to], hash(pool[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (unsigned i = 0; i < STATE; i++)
        out[i] = hash(pool[i % POOL], &constant, 0x58f38dedu);
}

/* ---- PCG64 ------------------------------------------------------------------------------- */

/* a += b of 128 bits. */
static void add(uint64_t a[2], const uint64_t b[2])
{
    a[0] += b[0];
    a[1] += b[1] + (a[0] < b[0]);
}

/* The upper half of x y. */
static uint64_t multiply_high(uint64_t x, uint64_t y)
{
    const uint64_t x0 = (uint32_t)x, x1 = x >> 32, y0 = (uint32_t)y, y1 = y >> 32;
    const uint64_t low = x0 * y0, a = x1 * y0 + (low >> 32), b = x0 * y1 + (uint32_t)a;

    return x1 * y1 + (a >> 32) + (b >> 32);
}

static void advance(struct core_numpy_random *g)
{
    static const uint64_t factor[2] = {4865540595714422341u, 2549297995355413924u};
    const uint64_t low = g->state[0], high = g->state[1];

    g->state[0] = low * factor[0];
    g->state[1] = multiply_high(low, factor[0]) + low * factor[1] + high * factor[0];
    add(g->state, g->step);
}

void core_numpy_seed(struct core_numpy_random *g, uint64_t seed)
{
    uint32_t w[STATE];
    uint64_t word[STATE / 2];

    seed_words(seed, w);
    for (unsigned i = 0; i < STATE / 2; i++)
        word[i] = w[2 * i] | (uint64_t)w[2 * i + 1] << 32;
    *g = (struct core_numpy_random){.step = {word[3] << 1 | 1, word[2] << 1 | word[3] >> 63}};
    advance(g);
    add(g->state, (const uint64_t[]){word[1], word[0]});
    advance(g);
}

uint64_t core_numpy_word(struct core_numpy_random *g)
{
    uint64_t x;
    unsigned turn;

    advance(g);
    x = g->state[0] ^ g->state[1];
    turn = (unsigned)(g->state[1] >> 58);
    return x >> turn | x << (-turn & 63);
}

/* ---- Generator --------------------------------------------------------------------------- */

static uint32_t next_half(struct core_numpy_random *g)
{
    uint64_t word;

    if (g->has_half) {
        g->has_half = false;
        return g->half;
    }
    word = core_numpy_word(g);
    g->half = (uint32_t)(word >> 32);
    g->has_half = true;
    return (uint32_t)word;
}

uint32_t core_numpy_to(struct core_numpy_random *g, uint32_t most)
{
    const uint32_t n = most + 1;
    uint64_t product;
    uint32_t least;

    if (most == 0)
        return 0;
    if (n == 0)
        return next_half(g);
    product = (uint64_t)next_half(g) * n;
    if ((uint32_t)product < n)
        for (least = -n % n; (uint32_t)product < least;)
            product = (uint64_t)next_half(g) * n;
    return (uint32_t)(product >> 32);
}

static void swap(uint32_t *x, size_t i, uint32_t k)
{
    const uint32_t kept = x[i];

    x[i] = x[k];
    x[k] = kept;
}

/* choice() changes the last values of x [n], down to number `first`, each with one up to itself. */
static void shuffle_from(struct core_numpy_random *g, uint32_t *x, size_t n, size_t first)
{
    for (size_t i = n; i-- > first;)
        swap(x, i, core_numpy_to(g, (uint32_t)i));
}

/* shuffle() does the same with other numbers: the lowest bits of halves, until they are one. */
void core_numpy_shuffle(struct core_numpy_random *g, uint32_t *x, size_t n)
{
    assert(n <= UINT32_MAX);
    for (size_t i = n; i-- > 1;) {
        uint32_t mask = (uint32_t)i, k;

        for (unsigned shift = 1; shift < 32; shift *= 2)
            mask |= mask >> shift;
        do
            k = next_half(g) & mask;
        while (k > i);
        swap(x, i, k);
    }
}

/* The end of a shuffle of all numbers. */
static int choose_many(struct core_numpy_random *g, uint32_t n, uint32_t *out, uint32_t k)
{
    uint32_t *all = core_calloc(n, sizeof(*all));

    if (!all)
        return CORE_E_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        all[i] = i;
    shuffle_from(g, all, n, n - k > 1 ? n - k : 1);
    memcpy(out, all + (n - k), k * sizeof(*out));
    core_free(all);
    return 0;
}

/* Floyd's way: one number below each bound, or the bound itself if that number was taken. */
static int choose_few(struct core_numpy_random *g, uint32_t n, uint32_t *out, uint32_t k)
{
    unsigned char *is_taken = core_calloc(n, 1);

    if (!is_taken)
        return CORE_E_NOMEM;
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t most = n - k + i, x = core_numpy_to(g, most);

        out[i] = is_taken[x] ? most : x;
        is_taken[out[i]] = 1;
    }
    core_free(is_taken);
    shuffle_from(g, out, k, 1);
    return 0;
}

int core_numpy_choice(struct core_numpy_random *g, uint32_t n, uint32_t *out, uint32_t k)
{
    assert(k <= n);
    /* as numpy decides */
    return n > 10000 && k > n / 50 ? choose_many(g, n, out, k) : choose_few(g, n, out, k);
}
