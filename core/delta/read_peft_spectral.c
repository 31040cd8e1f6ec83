/* core/delta/read_peft_spectral.c - methods of PEFT whose change of a weight is given by
 * frequencies or by kernels of a convolution.
 *
 *   FOURIERFT  W' = W + s Re(ifft2(S)), S zero but for the file's n values   (Gao et al. 2024)
 *   WAVEFT     the same with one level of a Haar transform in place of it
 *   C3A        W' = W + C / n_in, C of circulant blocks                     (Chen et al. 2025)
 *
 * Where the values of S stand is drawn by torch.randperm from a seed. */
#include <complex.h>
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

/* ---- torch's draws -------------------------------------------------------------------- */

/* MT19937 (Matsumoto and Nishimura 1998), which torch's CPU generator is. */
enum { MT_N = 624, MT_M = 397 };
struct mt {
    uint32_t state[MT_N];
    unsigned at;
};

static void mt_seed(struct mt *g, uint32_t seed)
{
    g->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ g->state[i - 1] >> 30) + i;
    g->at = MT_N;
}

static uint32_t mt_next(struct mt *g)
{
    uint32_t y;

    for (unsigned i = 0; g->at == MT_N && i < MT_N; i++) {
        const uint32_t x = (g->state[i] & 0x80000000u) | (g->state[(i + 1) % MT_N] & 0x7fffffffu);

        g->state[i] = g->state[(i + MT_M) % MT_N] ^ x >> 1 ^ (x & 1 ? 0x9908b0dfu : 0);
    }
    g->at %= MT_N;
    y = g->state[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* The first n of torch.randperm(n_all, seed), n_all < 2^32 / 20: Fisher and Yates from the
 * front. */
static int draw(struct delta_builder *b, uint32_t seed, size_t n_all, size_t n, uint32_t *out)
{
    uint32_t *all = n_all < UINT32_MAX / 20 ? core_calloc(n_all, sizeof(*all)) : NULL;
    struct mt g;

    if (!all)
        return core_err_nomem(b->err, "adapter");
    mt_seed(&g, seed);
    for (size_t i = 0; i < n_all; i++)
        all[i] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) {
        const size_t z = i + 1 < n_all ? i + mt_next(&g) % (n_all - i) : i;

        out[i] = all[z];
        all[z] = all[i];
    }
    core_free(all);
    return 0;
}

/* ---- FourierFT --------------------------------------------------------------------------- */

/* out[k] = sum of x[j stride] e^(2 pi i j k / n): split by n's smallest factor. tmp [n]. */
static void inverse_fft(size_t n, const double complex *x, size_t stride, double complex *out,
                        double complex *tmp)
{
    const double turn = 2.0 * 3.14159265358979323846 / (double)n;
    size_t p = 2, m;

    if (n == 1) {
        out[0] = x[0];
        return;
    }
    while (n % p != 0)
        p += p == 2 ? 1 : p * p > n ? n - p : 2;
    m = n / p;
    for (size_t r = 0; r < p; r++)
        inverse_fft(m, x + r * stride, stride * p, tmp + r * m, out + r * m);
    for (size_t k = 0; k < n; k++) {
        double complex sum = 0.0;

        for (size_t r = 0; r < p; r++)
            sum += tmp[r * m + k % m] * cexp(I * (turn * (double)(r * k % n)));
        out[k] = sum;
    }
}

struct spectrum {
    double seed, scale;
    bool has_wavelet;
};

/* w += scale Re(ifft2(S)); at: flat places of the n values c in S [n_out, n_in]. */
static int add_fourier(struct delta_builder *b, const struct delta__place *p, const uint32_t *at,
                       const float *c, size_t n, double scale, float *w)
{
    const size_t n_out = p->n_out, n_in = p->n_in, longest = n_out > n_in ? n_out : n_in;
    double complex *S = core_calloc(n_out * n_in, sizeof(*S));
    double complex *line = core_calloc(2 * longest, sizeof(*line));

    if (!S || !line) {
        core_free(S);
        core_free(line);
        return core_err_nomem(b->err, p->t->name);
    }
    scale /= (double)n_out * (double)n_in;
    for (size_t i = 0; i < n; i++)
        S[at[i]] = (double)c[i];
    for (size_t o = 0; o < n_out; o++) {
        inverse_fft(n_in, S + o * n_in, 1, line, line + longest);
        memcpy(S + o * n_in, line, n_in * sizeof(*S));
    }
    for (size_t i = 0; i < n_in; i++) {
        inverse_fft(n_out, S + i, n_in, line, line + longest);
        for (size_t o = 0; o < n_out; o++)
            w[o * n_in + i] += (float)(scale * creal(line[o]));
    }
    core_free(S);
    core_free(line);
    return 0;
}

/* The same for the Haar transform of S, which stands in the middle of an even matrix: its
 * quarters are means, differences down, across and both. */
static void add_haar(const struct delta__place *p, const uint32_t *at, const float *c, size_t n,
                     double scale, float *w)
{
    const size_t n_out = p->n_out, n_in = p->n_in;
    const size_t rows = n_out + n_out % 2, cols = n_in + n_in % 2;
    const size_t row0 = (rows - n_out) / 2, col0 = (cols - n_in) / 2;

    for (size_t i = 0; i < n; i++) {
        const size_t r = at[i] / n_in + row0, q = at[i] % n_in + col0;
        const bool is_low = r >= rows / 2, is_right = q >= cols / 2;

        for (unsigned k = 0; k < 4; k++) {
            const size_t o = 2 * (r % (rows / 2)) + k / 2 - row0;
            const size_t j = 2 * (q % (cols / 2)) + k % 2 - col0;
            const double sign = ((is_right && k / 2) != (is_low && k % 2)) ? -0.5 : 0.5;

            if (o < n_out && j < n_in)
                w[o * n_in + j] += (float)(scale * sign * (double)c[i]);
        }
    }
}

static int change_spectrum(struct delta_builder *b, const struct delta__module *m, const void *arg,
                           float *w)
{
    const struct spectrum *s = arg;
    const size_t n = m->p.t->n_dims == 1 ? m->p.t->dim[0] : 0;
    const float *c;
    uint32_t *at;
    int rc;

    if (n == 0 || n > m->p.n_in * m->p.n_out)
        return delta__misfit(b, m->p.t, "[values], at most as many as the weight has");
    rc = delta__floats(b, m->p.t, &c);
    at = rc == 0 ? delta__scratch(b, n, sizeof(*at)) : NULL;
    if (!at)
        return rc < 0 ? rc : CORE_E_NOMEM;
    rc = draw(b, (uint32_t)s->seed, m->p.n_in * m->p.n_out, n, at);
    if (rc < 0)
        return rc;
    if (!s->has_wavelet)
        return add_fourier(b, &m->p, at, c, n, s->scale, w);
    add_haar(&m->p, at, c, n, s->scale, w);
    return 0;
}

static int read_spectrum(struct delta_builder *b, const json_t *config, double scale,
                         struct spectrum *s)
{
    int rc = delta__json_number(b, config, "random_loc_seed", 777, &s->seed);

    if (rc == 0)
        rc = delta__json_number(b, config, "scaling", scale, &s->scale);
    if (rc == 0 && !(s->seed >= 0.0 && s->seed < 4294967296.0))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "random_loc_seed",
                                "random_loc_seed: expected 0 to 4294967295");
    return rc;
}

int delta__peft_fourierft(struct delta_builder *b, const json_t *config)
{
    struct spectrum s = {0};
    const int rc = read_spectrum(b, config, 150, &s);

    return rc < 0 ? rc : delta__each_weight(b, ".fourierft_spectrum", change_spectrum, &s);
}

int delta__peft_waveft(struct delta_builder *b, const json_t *config)
{
    struct spectrum s = {.has_wavelet = true};
    const char *family;
    bool is_used;
    int rc = read_spectrum(b, config, 25, &s);

    if (rc == 0)
        rc = delta__json_str(b, config, "wavelet_family", "db1", &family);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_idwt", true, &is_used);
    if (rc == 0 && (strcmp(family, "db1") != 0 || !is_used))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "wavelet_family",
                                "wavelet_family '%.60s', or none, is not computed: db1 is", family);
    return rc < 0 ? rc : delta__each_weight(b, ".waveft_spectrum", change_spectrum, &s);
}

/* ---- C3A --------------------------------------------------------------------------------- */

static int change_c3a(struct delta_builder *b, const struct delta__module *m, const void *arg,
                      float *w)
{
    const struct tensor *t = m->p.t;
    const size_t n_in = m->p.n_in, n = t->n_dims == 3 ? t->dim[2] : 0;
    const float *c;
    int rc;

    (void)arg;
    if (n == 0 || n > n_in || t->dim[0] * n != m->p.n_out || t->dim[1] * n != n_in)
        return delta__misfit(b, t, "[outputs / n, inputs / n, n]");
    rc = delta__floats(b, t, &c);
    for (size_t o = 0; rc == 0 && o < m->p.n_out; o++)
        for (size_t i = 0; i < n_in; i++)
            w[o * n_in + i] +=
                c[(o / n * t->dim[1] + i / n) * n + (i + n - o % n) % n] / (float)n_in;
    return rc;
}

int delta__peft_c3a(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_weight(b, ".c3a_kernel", change_c3a, NULL);
}
