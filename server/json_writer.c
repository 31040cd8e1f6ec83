/* server/json_writer.c - see json_writer.h. */
#include "server/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"

static void before_value(struct json_writer *w)
{
    if (w->needs_comma)
        core_buf_add(w->out, ",", 1);
    w->needs_comma = true;
}

static void open_with(struct json_writer *w, const char *bracket)
{
    before_value(w);
    core_buf_add(w->out, bracket, 1);
    w->needs_comma = false;
}

static void close_with(struct json_writer *w, const char *bracket)
{
    core_buf_add(w->out, bracket, 1);
    w->needs_comma = true;
}

void jw_object(struct json_writer *w)
{
    open_with(w, "{");
}

void jw_object_end(struct json_writer *w)
{
    close_with(w, "}");
}

void jw_array(struct json_writer *w)
{
    open_with(w, "[");
}

void jw_array_end(struct json_writer *w)
{
    close_with(w, "]");
}

void jw_key(struct json_writer *w, const char *name)
{
    jw_cstr(w, name);
    core_buf_add(w->out, ":", 1);
    w->needs_comma = false;
}

void jw_str(struct json_writer *w, const char *s, size_t n)
{
    size_t done = 0;

    before_value(w);
    core_buf_add(w->out, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        const char *short_form = c == '"'    ? "\\\""
                                 : c == '\\' ? "\\\\"
                                 : c == '\n' ? "\\n"
                                 : c == '\r' ? "\\r"
                                 : c == '\t' ? "\\t"
                                             : NULL;

        if (!short_form && c >= 0x20 && c != 0x7f)
            continue;
        core_buf_add(w->out, s + done, i - done);
        done = i + 1;
        if (short_form)
            core_buf_add(w->out, short_form, 2);
        else
            core_buf_printf(w->out, "\\u%04x", c);
    }
    core_buf_add(w->out, s + done, n - done);
    core_buf_add(w->out, "\"", 1);
}

void jw_cstr(struct json_writer *w, const char *s)
{
    jw_str(w, s, strlen(s));
}

void jw_bool(struct json_writer *w, bool v)
{
    before_value(w);
    core_buf_str(w->out, v ? "true" : "false");
}

void jw_null(struct json_writer *w)
{
    before_value(w);
    core_buf_add(w->out, "null", 4);
}

void jw_uint(struct json_writer *w, uint64_t v)
{
    before_value(w);
    core_buf_printf(w->out, "%llu", (unsigned long long)v);
}

void jw_int(struct json_writer *w, int64_t v)
{
    before_value(w);
    core_buf_printf(w->out, "%lld", (long long)v);
}

/* 10^e for 0 <= e <= 54; exact up to 10^22, then rounded once or twice. */
static double power_of_ten(int e)
{
    static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    double p = 1;

    for (; e > 22; e -= 22)
        p *= 1e22;
    return p * exact[e];
}

/* Of v = f * 2^n with 1 <= f < 2. A float is never a subnormal double. */
static int exponent_of(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

/* v = m * 10^(e - 8) with 10^8 <= m < 10^9. The product below is off by at most a
 * few units of 2^-53, that is 10^-6 of the ninth digit, while neighbouring floats
 * are at least six ninth digits apart: the digits always lead back to v. */
static uint32_t nine_digits(double v, int *e)
{
    double scaled;
    uint64_t m;

    *e = (int)floor(exponent_of(v) * 0.30102999566398120); /* log10(2); at most one too small */
    for (;; ++*e) {
        const int shift = 8 - *e;

        scaled = shift >= 0 ? v * power_of_ten(shift) : v / power_of_ten(-shift);
        m = (uint64_t)(scaled + 0.5);
        if (m < 1000000000)
            return (uint32_t)m;
    }
}

static void two_digits(uint32_t m, char *out)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";

    memcpy(out, pairs + (size_t)2 * m, 2);
}

enum { N_DIGITS = 9 };

/* The digits of m; returns how many there are without zeros at the end, one at least. */
static size_t write_digits(uint32_t m, char *digit)
{
    const uint32_t high = m / 10000, low = m % 10000;
    size_t n = N_DIGITS;

    digit[0] = (char)('0' + high / 10000);
    two_digits(high / 100 % 100, digit + 1);
    two_digits(high % 100, digit + 3);
    two_digits(low / 100, digit + 5);
    two_digits(low % 100, digit + 7);
    while (n > 1 && digit[n - 1] == '0')
        n--;
    return n;
}

/* d.ddde-07 */
static size_t with_exponent(const char *digit, size_t n_digits, int e, char *out)
{
    const size_t n_behind = n_digits > 1 ? n_digits - 1 : 1;

    out[0] = digit[0];
    out[1] = '.';
    memcpy(out + 2, digit + 1, n_behind);
    out[2 + n_behind] = 'e';
    out[3 + n_behind] = e < 0 ? '-' : '+';
    two_digits((uint32_t)(e < 0 ? -e : e), out + 4 + n_behind);
    return 6 + n_behind;
}

size_t jw__format_float(float v, char *out)
{
    enum { E_MIN = -5, E_MAX = N_DIGITS - 1 }; /* otherwise with an exponent */
    static const char zeros[] = {'0', '.', '0', '0', '0', '0'};
    char digit[N_DIGITS];
    size_t n = 0, n_digits, n_front;
    int e;

    if (signbit(v)) {
        out[n++] = '-';
        v = -v;
    }
    if (v == 0) {
        memcpy(out + n, zeros, 3);
        return n + 3;
    }
    n_digits = write_digits(nine_digits((double)v, &e), digit);
    if (e < E_MIN || e > E_MAX)
        return n + with_exponent(digit, n_digits, e, out + n);
    if (e < 0) {
        memcpy(out + n, zeros, sizeof(zeros));
        n += (size_t)(1 - e); /* 0. and the zeros */
        memcpy(out + n, digit, N_DIGITS);
        return n + n_digits;
    }
    n_front = (size_t)e + 1;
    memcpy(out + n, digit, N_DIGITS); /* those that are not counted are zeros */
    n += n_front;
    out[n++] = '.';
    if (n_digits <= n_front) {
        out[n++] = '0';
        return n;
    }
    memcpy(out + n, digit + n_front, n_digits - n_front);
    return n + n_digits - n_front;
}

void jw_float(struct json_writer *w, float v)
{
    char text[JW_FLOAT_MAX];

    if (!isfinite(v)) {
        w->has_nan = true;
        jw_null(w);
        return;
    }
    before_value(w);
    core_buf_add(w->out, text, jw__format_float(v, text));
}

void jw_floats(struct json_writer *w, const float *v, size_t n)
{
    enum { AT_ONCE = 32 };
    char text[AT_ONCE * (1 + JW_FLOAT_MAX)];
    size_t i = 0;

    jw_array(w);
    while (i < n) {
        size_t at = 0;

        for (size_t k = 0; k < AT_ONCE && i < n && isfinite(v[i]); k++, i++) {
            if (w->needs_comma)
                text[at++] = ',';
            w->needs_comma = true;
            at += jw__format_float(v[i], text + at);
        }
        core_buf_add(w->out, text, at);
        if (i < n && !isfinite(v[i]))
            jw_float(w, v[i++]);
    }
    jw_array_end(w);
}

void jw_double(struct json_writer *w, double v)
{
    if (!isfinite(v)) {
        w->has_nan = true;
        jw_null(w);
        return;
    }
    before_value(w);
    core_buf_printf(w->out, "%.15g", v);
}

void jw_raw(struct json_writer *w, const char *json, size_t n)
{
    before_value(w);
    core_buf_add(w->out, json, n);
}
