// reduce.c - see reduce.h.
#include "kernels/cpu/reduce.h"

#include "gpt/util.h"
#include "kernels/cpu/vec.h"

enum {
    RUN = 64,  // rows added up before their sum is added to the total: keeps rounding errors small
    COLUMNS = 4 * LANES,
};

static size_t row_at(const int *index, size_t i) {
    return index ? (size_t)index[i] : i;
}

static void rows_add_wide(float *dst, const float *src, size_t ld, const int *index, size_t n) {
    VecF total[4] = {{0}};
    for (size_t i0 = 0; i0 < n; i0 += RUN) {
        size_t i1 = min_size(i0 + RUN, n);
        VecF run[4] = {{0}};
        for (size_t i = i0; i < i1; i++) {
            const float *row = src + row_at(index, i) * ld;
            for (int j = 0; j < 4; j++)
                run[j] += vec_load(row + j * LANES);
        }
        for (int j = 0; j < 4; j++)
            total[j] += run[j];
    }
    for (int j = 0; j < 4; j++)
        vec_store(dst + j * LANES, vec_load(dst + j * LANES) + total[j]);
}

static void rows_add_rest(float *dst, const float *src, size_t ld, const int *index, size_t n,
                          size_t left) {
    VecF total = {0};
    for (size_t i0 = 0; i0 < n; i0 += RUN) {
        size_t i1 = min_size(i0 + RUN, n);
        VecF run = {0};
        for (size_t i = i0; i < i1; i++)
            run += vec_get(src + row_at(index, i) * ld, left);
        total += run;
    }
    vec_put(dst, vec_get(dst, left) + total, left);
}

void rows_add(float *dst, const float *src, size_t ld, const int *index, size_t n, size_t c0,
              size_t c1) {
    size_t c = c0;
    for (; c + COLUMNS <= c1; c += COLUMNS)
        rows_add_wide(dst + c, src + c, ld, index, n);
    for (; c < c1; c += LANES)
        rows_add_rest(dst + c, src + c, ld, index, n, c1 - c);
}

void columns_add(float *dst, const float *src, size_t ld, size_t n, size_t C) {
#pragma omp parallel for schedule(static) if (n * C > SERIAL_ELEMENTS)
    for (size_t c = 0; c < C; c += COLUMNS)
        rows_add(dst, src, ld, NULL, n, c, min_size(c + COLUMNS, C));
}

static double sum_squares_block(const float *x, size_t n) {
    VecD sum[4] = {{0}};
    enum { STEP = 4 * (LANES / 2) };
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        for (int j = 0; j < 4; j++) {
            VecD v = vec_load_double(x + i + j * (LANES / 2));
            sum[j] += v * v;
        }
    }
    VecD all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int l = 0; l < LANES / 2; l++)
        total += all[l];
    for (; i < n; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

double sum_squares(const float *x, size_t n) {
    enum { BLOCKS = 256, SMALLEST = 4096 };
    double part[BLOCKS];
    size_t blocks = min_size(ceil_div(n, SMALLEST), BLOCKS);
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t b = 0; b < blocks; b++) {
        size_t first = block_start(n, blocks, b);
        part[b] = sum_squares_block(x + first, block_start(n, blocks, b + 1) - first);
    }
    double total = 0;
    for (size_t b = 0; b < blocks; b++)
        total += part[b];
    return total;
}
