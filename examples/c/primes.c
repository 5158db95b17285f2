/* SPDX-License-Identifier: Apache-2.0
 *
 * primes.c - count the primes below a number: a job written in C is any program.
 *
 *     stint enqueue primes 1000
 *
 * stint.yaml hands the payload over as the first argument.  What is printed becomes the result;
 * exit code 65 (EX_DATAERR) says that the payload is wrong and trying again is useless.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#define LIMIT_MAX 100000000L

/* Sieve of Eratosthenes.  -1: no memory. */
static long count_primes(long limit)
{
    char *composite = calloc((size_t)limit + 1, 1);
    long count = 0;

    if (!composite)
        return -1;
    for (long n = 2; n < limit; n++) {
        if (composite[n])
            continue;
        count++;
        for (long m = n <= limit / n ? n * n : limit; m < limit; m += n)
            composite[m] = 1;
    }
    free(composite);
    return count;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    long limit, count;

    errno = 0;
    limit = argc == 2 ? strtol(argv[1], &end, 10) : -1;
    if (!end || *end || errno || limit < 0 || limit > LIMIT_MAX) {
        fprintf(stderr, "the payload must be a number from 0 to %ld\n", LIMIT_MAX);
        return EX_DATAERR;
    }
    count = count_primes(limit);
    if (count < 0) {
        fprintf(stderr, "no memory for a sieve of %ld\n", limit);
        return EX_TEMPFAIL;
    }
    printf("{\"below\": %ld, \"primes\": %ld}\n", limit, count);
    return 0;
}
