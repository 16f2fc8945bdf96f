// emu_ptx.cpp - bodies of the PTX instructions in kernels/cuda/ptx.cuh, as the PTX ISA describes
// them.
#include "test/emu/emu_internal.h"

namespace {

bool aligned(const void *p, size_t n, const char *what, const char *file, int line) {
    if ((uintptr_t)p % n == 0) return true;
    emu_fail("misaligned %s of %zu bytes at %s, at %s:%d", what, n, emu_describe(p), file, line);
    return false;
}

float bf16_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

// Element e (0, 1) of register r.
float half_of(unsigned r, int e) {
    return bf16_float((unsigned short)(e ? r >> 16 : r));
}

void land(const EmuCopy &c) {
    if (emu_checking) emu_mark_pending(c.dst, 16, false);
    emu_check_access(c.dst, 16, EMU_WRITE, "cp.async", 0, nullptr);
    memcpy(c.dst, c.src, (size_t)c.bytes);
    memset(c.dst + c.bytes, 0, (size_t)(16 - c.bytes));
}

}  // namespace

void emu_vector_read(void *registers, const void *memory, size_t bytes, const char *file,
                     int line) {
    if (!aligned(memory, bytes, "vector load", file, line)) return;
    emu_check_access(memory, bytes, EMU_READ, file, line, nullptr);
    memcpy(registers, memory, bytes);
}

void emu_vector_write(void *memory, const void *registers, size_t bytes, const char *file,
                      int line) {
    if (!aligned(memory, bytes, "vector store", file, line)) return;
    emu_check_access(memory, bytes, EMU_WRITE, file, line, nullptr);
    memcpy(memory, registers, bytes);
}

// d (16, 8) += a (16, 16) b (16, 8). Lane l holds rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1} of
// each 8-wide piece of a and d; b the same with rows and columns exchanged. Products are exact and
// summed in double, then rounded once: a bound for what tensor cores do, not their bits.
void emu_mma_m16n8k16(float *d, const unsigned *a, const unsigned *b, const char *file, int line) {
    struct Given {
        unsigned a[4], b[2];
    } mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    const char *all = emu_exchange(&mine, sizeof mine, ~0u, "mma", file, line);
    int lane = emu_lane();
    for (int half = 0; half < 2; half++) {  // row lane/4 + 8*half
        float row[16], col[2][16];
        for (int k = 0; k < 16; k++) {
            Given g;
            memcpy(&g, all + (lane / 4 * 4 + k % 8 / 2) * EMU_SLOT, sizeof g);
            row[k] = half_of(g.a[half + k / 8 * 2], k % 2);
            for (int j = 0; j < 2; j++) {
                memcpy(&g, all + ((lane % 4 * 2 + j) * 4 + k % 8 / 2) * EMU_SLOT, sizeof g);
                col[j][k] = half_of(g.b[k / 8], k % 2);
            }
        }
        for (int j = 0; j < 2; j++) {
            double sum = (double)d[2 * half + j];
            for (int k = 0; k < 16; k++)
                sum += (double)row[k] * (double)col[j][k];
            d[2 * half + j] = (float)sum;
        }
    }
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 m + i points to row i of matrix m, 16 bytes.
// Register m of lane l gets row l/4, elements 2 (l%4) + {0, 1}; of the transpose with trans.
void emu_ldmatrix_x4(unsigned *r, const void *row, bool trans, const char *file, int line) {
    if (!aligned(row, 16, "ldmatrix row", file, line)) return;
    if (!emu_is_shared(row)) emu_fail("ldmatrix from %s, at %s:%d", emu_describe(row), file, line);
    const char *all = emu_exchange(&row, sizeof row, ~0u, "ldmatrix", file, line);
    int l = emu_lane();
    for (int m = 0; m < 4; m++) {
        unsigned short e[2];
        for (int j = 0; j < 2; j++) {
            int i = trans ? 2 * (l % 4) + j : l / 4, k = trans ? l / 4 : 2 * (l % 4) + j;
            const unsigned short *p;
            memcpy(&p, all + (8 * m + i) * EMU_SLOT, sizeof p);
            emu_check_access(p + k, 2, EMU_READ, file, line, nullptr);
            e[j] = p[k];
        }
        r[m] = e[0] | (unsigned)e[1] << 16;
    }
}

// 16 bytes from global to shared memory, src_bytes of them read and the rest zero. The data is not
// there, and what was there is gone, until the thread waits for the group.
void emu_cp_async(void *dst, const void *src, int src_bytes, const char *file, int line) {
    if (!aligned(dst, 16, "cp.async target", file, line)) return;
    if (src_bytes && !aligned(src, 16, "cp.async source", file, line)) return;
    if (src_bytes < 0 || src_bytes > 16)
        emu_fail("cp.async of %d bytes at %s:%d", src_bytes, file, line);
    if (!emu_is_shared(dst)) emu_fail("cp.async to %s, at %s:%d", emu_describe(dst), file, line);
    if (src_bytes && emu_is_shared(src)) {
        emu_fail("cp.async from %s, at %s:%d", emu_describe(src), file, line);
    }
    EmuThread *t = emu.current;
    if (src_bytes) emu_check_access(src, (size_t)src_bytes, EMU_READ, file, line, nullptr);
    emu_check_access(dst, 16, EMU_WRITE, file, line, nullptr);
    if (emu_checking) emu_mark_pending(dst, 16, true);
    memset(dst, 0xFF, 16);  // NaN as bf16 and as fp32
    t->copies.push_back(
        {static_cast<char *>(dst), static_cast<const char *>(src), src_bytes, t->groups});
}

void emu_cp_async_commit() {
    emu.current->groups++;
}

void emu_cp_async_wait(unsigned newest) {
    EmuThread *t = emu.current;
    size_t kept = 0;
    for (const EmuCopy &c : t->copies) {
        // Groups count up; copies that were never committed belong to the group to come.
        if (c.group < t->groups && t->groups - c.group > newest)
            land(c);
        else
            t->copies[kept++] = c;
    }
    t->copies.resize(kept);
}

// Lanes take turns, so plain arithmetic is atomic.
int emu_atomic_add(int *p, int x, const char *file, int line) {
    if (!aligned(p, 4, "atomic", file, line)) return 0;
    emu_check_access(p, 4, EMU_ATOMIC, file, line, nullptr);
    int old = *p;
    *p = old + x;
    return old;
}

void emu_red_add(float *p, const float *x, int n, const char *file, int line) {
    size_t bytes = (size_t)n * sizeof *p;
    if (!aligned(p, bytes, "atomic", file, line)) return;
    emu_check_access(p, bytes, EMU_ATOMIC, file, line, nullptr);
    for (int i = 0; i < n; i++)
        p[i] += x[i];
}
