// ptx.cuh - single instructions as thin functions: vector accesses, conversions, shuffles,
// cp.async, ldmatrix, mma. Each has a device body and an emulator body (test/emu/emu_ptx.cpp). For
// compute capability 8.0 and newer; layouts are those of the PTX ISA.
#pragma once

#include "kernels/cuda/gpu.h"

#ifdef GPU_EMU
    #define PTX_HERE , const char *file = __builtin_FILE(), int line = __builtin_LINE()
    #define PTX_PASS , file, line
#else
    #define PTX_HERE
    #define PTX_PASS
#endif

// --- Conversions, round to nearest even.
__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(bf16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}

// Two floats to bf16, lo in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float lo, float hi) {
#ifdef GPU_EMU
    return bf16_from_f32(lo) | (unsigned)bf16_from_f32(hi) << 16;
#else
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    bf16 r;
    r.bits = (unsigned short)pack_bf16(x, 0.0f);
    return r;
}

// --- Memory, in one instruction of 2, 4, 8 or 16 bytes; the address must be a multiple of that.
template <int BYTES> struct RawOf;
template <> struct RawOf<2> { unsigned short w; };
template <> struct RawOf<4> { unsigned w; };
template <> struct RawOf<8> { unsigned w[2]; };
template <> struct RawOf<16> { unsigned w[4]; };

template <int BYTES> __device__ __forceinline__ RawOf<BYTES> load_raw(const void *p PTX_HERE) {
    RawOf<BYTES> r;
#ifdef GPU_EMU
    emu_vector_read(&r, p, BYTES PTX_PASS);
#else
    if constexpr (BYTES == 16) {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        r.w[0] = v.x, r.w[1] = v.y, r.w[2] = v.z, r.w[3] = v.w;
    } else if constexpr (BYTES == 8) {
        uint2 v = *reinterpret_cast<const uint2 *>(p);
        r.w[0] = v.x, r.w[1] = v.y;
    } else {
        r = *reinterpret_cast<const RawOf<BYTES> *>(p);
    }
#endif
    return r;
}

template <int BYTES> __device__ __forceinline__ void store_raw(void *p, RawOf<BYTES> r PTX_HERE) {
#ifdef GPU_EMU
    emu_vector_write(p, &r, BYTES PTX_PASS);
#else
    if constexpr (BYTES == 16) {
        *reinterpret_cast<uint4 *>(p) = make_uint4(r.w[0], r.w[1], r.w[2], r.w[3]);
    } else if constexpr (BYTES == 8) {
        *reinterpret_cast<uint2 *>(p) = make_uint2(r.w[0], r.w[1]);
    } else {
        *reinterpret_cast<RawOf<BYTES> *>(p) = r;
    }
#endif
}

// W elements as floats: in pieces of 16 bytes, or of all W when that is less.
template <int W> __device__ __forceinline__ void load_vec(float *x, const float *p PTX_HERE) {
    constexpr int STEP = W < 4 ? W : 4;
#pragma unroll
    for (int i = 0; i < W; i += STEP) {
        RawOf<4 *STEP> r = load_raw<4 * STEP>(p + i PTX_PASS);
        memcpy(x + i, &r, sizeof r);
    }
}
template <int W> __device__ __forceinline__ void load_vec(float *x, const bf16 *p PTX_HERE) {
    constexpr int STEP = W < 8 ? W : 8;
#pragma unroll
    for (int i = 0; i < W; i += STEP) {
        RawOf<2 *STEP> r = load_raw<2 * STEP>(p + i PTX_PASS);
        if constexpr (STEP == 1) {
            x[i] = __uint_as_float((unsigned)r.w << 16);
        } else {
            unsigned w[STEP / 2];
            memcpy(w, &r, sizeof r);
#pragma unroll
            for (int j = 0; j < STEP / 2; j++) {
                x[i + 2 * j] = __uint_as_float(w[j] << 16);
                x[i + 2 * j + 1] = __uint_as_float(w[j] & 0xFFFF0000u);
            }
        }
    }
}
template <int W> __device__ __forceinline__ void store_vec(float *p, const float *x PTX_HERE) {
    constexpr int STEP = W < 4 ? W : 4;
#pragma unroll
    for (int i = 0; i < W; i += STEP) {
        RawOf<4 * STEP> r;
        memcpy(&r, x + i, sizeof r);
        store_raw<4 * STEP>(p + i, r PTX_PASS);
    }
}
template <int W> __device__ __forceinline__ void store_vec(bf16 *p, const float *x PTX_HERE) {
    constexpr int STEP = W < 8 ? W : 8;
#pragma unroll
    for (int i = 0; i < W; i += STEP) {
        RawOf<2 * STEP> r;
        if constexpr (STEP == 1) {
            r.w = from_float<bf16>(x[i]).bits;
        } else {
            unsigned w[STEP / 2];
#pragma unroll
            for (int j = 0; j < STEP / 2; j++)
                w[j] = pack_bf16(x[i + 2 * j], x[i + 2 * j + 1]);
            memcpy(&r, w, sizeof r);
        }
        store_raw<2 * STEP>(p + i, r PTX_PASS);
    }
}

// --- Warp. All 32 lanes take part.
template <typename T> __device__ __forceinline__ T shuffle(T x, int from PTX_HERE) {
    return __shfl_sync(WARP_ALL, x, from, WARP PTX_PASS);
}
// From the lane whose number differs in these bits.
template <typename T> __device__ __forceinline__ T shuffle_xor(T x, int bits PTX_HERE) {
    return __shfl_xor_sync(WARP_ALL, x, bits, WARP PTX_PASS);
}
// From the lane n above; the last n lanes keep theirs.
template <typename T> __device__ __forceinline__ T shuffle_down(T x, int n PTX_HERE) {
    return __shfl_down_sync(WARP_ALL, x, n, WARP PTX_PASS);
}
__device__ __forceinline__ unsigned warp_ballot(bool p PTX_HERE) {
    return __ballot_sync(WARP_ALL, p PTX_PASS);
}

// 2^x, relative error about 2^-22; -inf gives 0.
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef GPU_EMU
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 1/x, relative error about 2^-23; infinity gives 0.
__device__ __forceinline__ float rcp_approx(float x) {
#ifdef GPU_EMU
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// --- Asynchronous copies of 16 bytes from global to shared memory. The first src_bytes (0 to 16)
// are read, the rest is filled with zeros; src is not touched when nothing is read.
// A copy is there when its thread has waited for its group, for others after a barrier behind that.
__device__ __forceinline__ void cp_async_16(void *dst, const void *src, int src_bytes PTX_HERE) {
#ifdef GPU_EMU
    emu_cp_async(dst, src, src_bytes PTX_PASS);
#else
    unsigned to = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(src), "r"(src_bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void cp_async_commit() {
#ifdef GPU_EMU
    emu_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most NEWEST groups are under way.
template <int NEWEST> __device__ __forceinline__ void cp_async_wait() {
#ifdef GPU_EMU
    emu_cp_async_wait(NEWEST);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
#endif
}

// --- Matrices. Lane 8 m + i points to row i (16 bytes, in shared memory) of the 8 x 8 matrix m;
// register m gets elements (lane/4, 2 (lane%4) + {0, 1}) of it, or of its transpose.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void *row PTX_HERE) {
#ifdef GPU_EMU
    emu_ldmatrix_x4(r, row, false PTX_PASS);
#else
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void *row PTX_HERE) {
#ifdef GPU_EMU
    emu_ldmatrix_x4(r, row, true PTX_PASS);
#else
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}

// d (16, 8) += a (16, 16) b (16, 8), bf16 with fp32 sums. Lane l has of d rows l/4, l/4 + 8 and
// columns 2 (l%4) + {0, 1} (d[0], d[1] the first row); of a the same in the order of ldmatrix for
// rows 0-7, 8-15 of columns 0-7, then of columns 8-15; of b rows 2 (l%4) + {0, 1} (+ 8 in b1),
// column l/4.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1 PTX_HERE) {
#ifdef GPU_EMU
    unsigned b[2] = {b0, b1};
    emu_mma_m16n8k16(d, a, b PTX_PASS);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// p[0] += x, p[1] += y in device memory, atomically and in no fixed order; p is 8-byte aligned.
__device__ __forceinline__ void red_add_2(float *p, float x, float y PTX_HERE) {
#ifdef GPU_EMU
    float both[2] = {x, y};
    emu_red_add(p, both, 2 PTX_PASS);
#elif __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y)
                 : "memory");
#else
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;\n\t"
                 "red.relaxed.gpu.global.add.f32 [%0 + 4], %2;" ::"l"(p),
                 "f"(x), "f"(y)
                 : "memory");
#endif
}
