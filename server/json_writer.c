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

/* 10^e for -38 <= e <= 54; exact up to 10^22, then rounded once. */
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

/* v = m * 10^(e - 8) with 10^8 <= m < 10^9. The product below is off by at most a
 * few units of 2^-53, that is 10^-6 of the ninth digit, while neighbouring floats
 * are at least six ninth digits apart: the digits always lead back to v. */
static uint32_t nine_digits(double v, int *e)
{
    int exp2;
    double scaled;
    uint64_t m;

    (void)frexp(v, &exp2);
    *e = (int)floor((exp2 - 1) * 0.30102999566398120); /* log10(2); at most one too small */
    for (;; ++*e) {
        const int shift = 8 - *e;

        scaled = shift >= 0 ? v * power_of_ten(shift) : v / power_of_ten(-shift);
        m = (uint64_t)(scaled + 0.5);
        if (m < 1000000000)
            return (uint32_t)m;
    }
}

size_t jw__format_float(float v, char *out)
{
    char digit[9];
    int e, n_digits = 9;
    size_t n = 0;
    uint32_t m;

    if (signbit(v)) {
        out[n++] = '-';
        v = -v;
    }
    if (v == 0) {
        out[n++] = '0';
        out[n++] = '.';
        out[n++] = '0';
        return n;
    }
    m = nine_digits((double)v, &e);
    for (int i = 8; i >= 0; i--, m /= 10)
        digit[i] = (char)('0' + m % 10);
    while (n_digits > 1 && digit[n_digits - 1] == '0')
        n_digits--;
    if (e < -5 || e > 8) { /* d.ddde-07 */
        out[n++] = digit[0];
        out[n++] = '.';
        out[n++] = n_digits > 1 ? digit[1] : '0';
        for (int i = 2; i < n_digits; i++)
            out[n++] = digit[i];
        out[n++] = 'e';
        out[n++] = e < 0 ? '-' : '+';
        e = e < 0 ? -e : e;
        out[n++] = (char)('0' + e / 10);
        out[n++] = (char)('0' + e % 10);
        return n;
    }
    if (e < 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (int i = -1; i > e; i--)
            out[n++] = '0';
    }
    for (int i = 0; i < n_digits || i <= e; i++) {
        out[n++] = i < n_digits ? digit[i] : '0';
        if (i == e) {
            out[n++] = '.';
            if (n_digits <= e + 1)
                out[n++] = '0';
        }
    }
    return n;
}

void jw_float(struct json_writer *w, float v)
{
    char text[24];

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
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_float(w, v[i]);
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
