// heads.c - heads put together from two parts and taken apart again; bias added in place.
#include <string.h>

#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"

void concat_heads_cpu(floatX *out, const floatX *a, const floatX *b, const ConcatArgs *c) {
    size_t W1 = (size_t)c->W1, W2 = (size_t)c->W2;
#pragma omp parallel for schedule(static) if (c->N * c->ld_out > SERIAL_ELEMENTS)
    for (size_t n = 0; n < c->N; n++) {
        for (size_t h = 0; h < (size_t)c->NH; h++) {
            float *y = (float *)out + n * c->ld_out + h * (W1 + W2);
            if (a) memcpy(y, (const float *)a + n * c->ld_a + h * c->a_head, W1 * sizeof(float));
            memcpy(y + W1, (const float *)b + n * c->ld_b + h * c->b_head, W2 * sizeof(float));
        }
    }
}

static void add_to(float *restrict sum, const float *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

void split_heads_cpu(floatX *da, floatX *db, const floatX *dout, const ConcatArgs *c) {
    size_t W1 = (size_t)c->W1, W2 = (size_t)c->W2;
#pragma omp parallel for schedule(static) if (c->N * c->ld_out > SERIAL_ELEMENTS)
    for (size_t n = 0; n < c->N; n++) {
        for (size_t h = 0; h < (size_t)c->NH; h++) {
            const float *d = (const float *)dout + n * c->ld_out + h * (W1 + W2);
            float *to = (float *)db + n * c->ld_b + h * c->b_head;
            memcpy((float *)da + n * c->ld_a + h * c->a_head, d, W1 * sizeof(float));
            bool shared = c->b_head == 0 && h > 0;
            if (shared)
                add_to(to, d + W1, W2);
            else
                memcpy(to, d + W1, W2 * sizeof(float));
        }
    }
}

void bias_add_cpu(floatX *out, size_t ld_out, const float *bias, size_t N, int W) {
#pragma omp parallel for schedule(static) if (N * (size_t)W > SERIAL_ELEMENTS)
    for (size_t n = 0; n < N; n++)
        add_to((float *)out + n * ld_out, bias, (size_t)W);
}
