/* SPDX-License-Identifier: Apache-2.0
 *
 * number.c - doubles as text, the same in every locale.
 *
 * The host program may have set a locale with a decimal comma; every conversion here is done
 * in the C locale of the calling thread.
 *
 * Thread: any.
 */
#include "job/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 17

/* d = 0.DIGITS * 10^point, DIGITS without zeros at its ends. */
struct decimal {
    char digits[DIGITS_MAX + 1];
    int n;
    int point;
};

/* "d.ddde[+-]xx" (what %e gives) taken apart. */
static void decimal_read(struct decimal *dec, const char *text)
{
    const char *e = strchr(text, 'e');

    dec->n = 0;
    for (const char *p = text; p < e; p++)
        if (*p != '.' && dec->n < DIGITS_MAX)
            dec->digits[dec->n++] = *p;
    while (dec->n > 1 && dec->digits[dec->n - 1] == '0')
        dec->n--;
    dec->digits[dec->n] = '\0';
    dec->point = atoi(e + 1) + 1;
}

/* The next larger decimal of the same number of digits. */
static void decimal_increment(struct decimal *dec)
{
    int i = dec->n - 1;

    while (i >= 0 && dec->digits[i] == '9')
        i--;
    if (i < 0) {
        strcpy(dec->digits, "1");
        dec->n = 1;
        dec->point++;
        return;
    }
    dec->digits[i]++;
    dec->n = i + 1;
    dec->digits[dec->n] = '\0';
}

static bool decimal_is(const struct decimal *dec, double d)
{
    char text[64];

    snprintf(text, sizeof(text), "0.%se%d", dec->digits, dec->point);
    return strtod(text, NULL) == d;
}

/* Does some decimal of this many digits read back as d?  The nearest one is asked first.  The
 * gap below a power of two is half the gap above, so there the nearest decimal may lie too far
 * below while its upper neighbour is still good. */
static bool decimal_fit(struct decimal *dec, double d, int digits)
{
    char text[64];
    int exponent;

    snprintf(text, sizeof(text), "%.*e", digits - 1, d);
    decimal_read(dec, text);
    if (decimal_is(dec, d))
        return true;
    if (frexp(d, &exponent) != 0.5)
        return false;
    while (dec->n < digits)
        dec->digits[dec->n++] = '0';
    decimal_increment(dec);
    return decimal_is(dec, d);
}

/* A normal double holds every decimal of 15 digits, so if a shorter one names it, its 15 digits
 * end in zeros.  Near the smallest doubles that is not so: there every length is tried. */
static void decimal_shortest(struct decimal *dec, double d)
{
    int digits = d < 1e-300 ? 1 : 15;

    while (digits < DIGITS_MAX && !decimal_fit(dec, d, digits))
        digits++;
    if (digits == DIGITS_MAX)
        (void)decimal_fit(dec, d, DIGITS_MAX);
}

static char *put_zeros(char *p, int n)
{
    while (n-- > 0)
        *p++ = '0';
    return p;
}

static char *put_digits(char *p, const char *digits, int n)
{
    memcpy(p, digits, (size_t)n);
    return p + n;
}

static void write_plain(char *p, const struct decimal *dec)
{
    int whole = dec->point < dec->n ? dec->point : dec->n;

    if (dec->point <= 0) {
        *p++ = '0';
        *p++ = '.';
        p = put_zeros(p, -dec->point);
        p = put_digits(p, dec->digits, dec->n);
    } else {
        p = put_digits(p, dec->digits, whole);
        p = put_zeros(p, dec->point - whole);
        *p++ = '.';
        if (whole < dec->n)
            p = put_digits(p, dec->digits + whole, dec->n - whole);
        else
            *p++ = '0';
    }
    *p = '\0';
}

static void write_exponent(char *p, size_t room, const struct decimal *dec)
{
    char *end = p + room;

    *p++ = dec->digits[0];
    if (dec->n > 1) {
        *p++ = '.';
        p = put_digits(p, dec->digits + 1, dec->n - 1);
    }
    snprintf(p, (size_t)(end - p), "e%c%02d", dec->point > 0 ? '+' : '-', abs(dec->point - 1));
}

char *st_number_repr(double d, char out[ST_NUMBER_TEXT])
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t old = c ? uselocale(c) : (locale_t)0;
    struct decimal dec = {"0", 1, 1};
    char *p = out;

    if (signbit(d)) {
        *p++ = '-';
        d = -d;
    }
    if (d != 0)
        decimal_shortest(&dec, d);
    if (dec.point > -4 && dec.point <= 16)
        write_plain(p, &dec);
    else
        write_exponent(p, ST_NUMBER_TEXT - 1, &dec);
    if (c) {
        uselocale(old);
        freelocale(c);
    }
    return out;
}

bool st_number_parse(struct st_slice text, double *out)
{
    char small[128];
    char *copy = text.len < sizeof(small) ? small : malloc(text.len + 1);
    locale_t c;

    if (!copy)
        return false;
    memcpy(copy, text.p, text.len);
    copy[text.len] = '\0';
    c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *out = c ? strtod_l(copy, NULL, c) : strtod(copy, NULL);
    if (c)
        freelocale(c);
    if (copy != small)
        free(copy);
    return true;
}
