// memory.c - device memory of the CPU, which is the host's: cleared, 64-byte aligned.
// Pages that nobody writes to stay unbacked, so that only what is used becomes resident.
#include "kernels/cpu/ops_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "gpt/util.h"
#include "kernels/cpu/reduce.h"

enum { ALIGN = 64, COPY_BYTES = 1 << 20 };

// The start of the block from calloc lies in the word before the aligned memory: unlike clearing
// by hand, calloc leaves fresh pages untouched.
void *alloc_cpu(size_t bytes) {
    size_t extra = ALIGN + sizeof(void *);
    char *block = bytes <= SIZE_MAX - extra ? calloc(1, bytes + extra) : NULL;
    if (!block) die("out of memory: %zu bytes asked for", bytes);
    uintptr_t start = (uintptr_t)block + sizeof(void *);
    char *p = block + sizeof(void *) + (ALIGN - start % ALIGN) % ALIGN;
    memcpy(p - sizeof(void *), &block, sizeof(void *));
    return p;
}

void free_cpu(void *p) {
    if (!p) return;
    void *block;
    memcpy(&block, (char *)p - sizeof(void *), sizeof(void *));
    free(block);
}

void zero_cpu(void *p, size_t bytes) {
#pragma omp parallel for schedule(static) if (bytes > COPY_BYTES)
    for (size_t i = 0; i < bytes; i += COPY_BYTES)
        memset((char *)p + i, 0, min_size(COPY_BYTES, bytes - i));
}

void copy_cpu(void *dst, const void *src, size_t bytes) {
#pragma omp parallel for schedule(static) if (bytes > COPY_BYTES)
    for (size_t i = 0; i < bytes; i += COPY_BYTES)
        memcpy((char *)dst + i, (const char *)src + i, min_size(COPY_BYTES, bytes - i));
}

void upload_cpu(floatX *dst, const float *src, size_t n) {
    copy_cpu(dst, src, n * sizeof(float));
}

void download_cpu(float *dst, const floatX *src, size_t n) {
    copy_cpu(dst, src, n * sizeof(float));
}

void sync_cpu(void) {}
