// cache.c - new rows into the KV cache, in fp32 or rounded to bf16 (nearest even).
#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"

static void copy_f32(float *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = src[i];
}

static void copy_bf16(uint16_t *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

void cache_append_cpu(void *dst, size_t dst_batch, ElemType type, const floatX *src, size_t ld_src,
                      int width, const int *pos, const int *n_new, int B, int T) {
    size_t w = (size_t)width, rows = (size_t)B * (size_t)T;
#pragma omp parallel for schedule(static) if (rows * w > SERIAL_ELEMENTS)
    for (size_t row = 0; row < rows; row++) {
        size_t b = row / (size_t)T, t = row % (size_t)T;
        if ((int)t >= n_new[b]) continue;
        size_t at = b * dst_batch + ((size_t)pos[b] + t) * w;
        const float *x = (const float *)src + row * ld_src;
        if (type == TYPE_BF16)
            copy_bf16((uint16_t *)dst + at, x, w);
        else
            copy_f32((float *)dst + at, x, w);
    }
}

// n tokens of one latent row: ld apart in src, next to each other in dst.
static void latent_run(void *dst, size_t at, ElemType type, const float *src, size_t ld, size_t n) {
    if (type == TYPE_BF16) {
        uint16_t *y = (uint16_t *)dst + at;
        for (size_t i = 0; i < n; i++)
            y[i] = bf16_from_f32(src[i * ld]);
    } else {
        float *y = (float *)dst + at;
        for (size_t i = 0; i < n; i++)
            y[i] = src[i * ld];
    }
}

typedef struct Latent {
    void *dst;
    ElemType type;
    size_t batch, ld_src, groups, r, ld_group;
} Latent;

// n tokens, whose values start at src, to positions p..p+n-1 of sequence b, all in one block.
static void latent_block(const Latent *a, size_t b, const float *src, size_t p, size_t n) {
    size_t rows = a->groups * a->r;
    size_t at = b * a->batch + p / LATENT_BLOCK * rows * LATENT_BLOCK + p % LATENT_BLOCK;
    for (size_t g = 0; g < a->groups; g++) {
        for (size_t j = 0; j < a->r; j++)
            latent_run(a->dst, at + (g * a->r + j) * LATENT_BLOCK, a->type,
                       src + g * a->ld_group + j, a->ld_src, n);
    }
}

void cache_append_latent_cpu(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                             size_t ld_src, int groups, int r, int ld_group, const int *pos,
                             const int *n_new, int B, int T) {
    Latent a = {dst, type, dst_batch, ld_src, (size_t)groups, (size_t)r, (size_t)ld_group};
    int blocks = T / LATENT_BLOCK + 2;  // the most that T tokens from anywhere can touch
#pragma omp parallel for schedule(static)                                                          \
    collapse(2) if ((size_t)B * (size_t)T * a.groups * a.r > SERIAL_ELEMENTS)
    for (int b = 0; b < B; b++) {
        for (int k = 0; k < blocks; k++) {
            int block = (pos[b] / LATENT_BLOCK + k) * LATENT_BLOCK;
            int t = max_int(block - pos[b], 0);
            int end = min_int(block + LATENT_BLOCK - pos[b], n_new[b]);
            if (t >= end) continue;
            const float *x = (const float *)src + ((size_t)b * (size_t)T + (size_t)t) * ld_src;
            latent_block(&a, (size_t)b, x, (size_t)(pos[b] + t), (size_t)(end - t));
        }
    }
}
