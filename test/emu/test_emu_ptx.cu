// test_emu_ptx.cu - what the instructions of ptx.cuh and the reductions compute, in every thread
// order. The same cases run on a GPU, where they test the device bodies.
#include "kernels/cuda/reduce.cuh"

#include <stdlib.h>

extern "C" {
#include "test/test.h"
}

// Runs `body` in all thread orders; a GPU has its own.
template <typename F> static void in_all_orders(F body) {
    static const char *const orders[] = {"forward", "reverse", "shuffle:1"};
    for (const char *order : orders) {
        setenv("GPU_EMU_ORDER", order, 1);
        body();
    }
    unsetenv("GPU_EMU_ORDER");
}

template <typename T> struct Device {
    T *p;
    size_t n;
    explicit Device(size_t n_) : n(n_) {
        CUDA_CHECK(cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof(T)));
        CUDA_CHECK(cudaMemsetAsync(p, 0, n * sizeof(T), nullptr));
    }
    ~Device() { CUDA_CHECK(cudaFree(p)); }
    void set(const T *from) {
        CUDA_CHECK(cudaMemcpyAsync(p, from, n * sizeof(T), cudaMemcpyHostToDevice, nullptr));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
    }
    void get(T *to) const {
        CUDA_CHECK(cudaMemcpyAsync(to, p, n * sizeof(T), cudaMemcpyDeviceToHost, nullptr));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
    }
};

enum { BLOCK = 96 };

__global__ void reduce_kernel(float *out) {
    SHARED(float, scratch);
    int i = threadIdx.x, n = blockDim.x;
    out[i] = block_sum((float)(i + 1), scratch);
    out[n + i] = block_max((float)(i * 7 % n), scratch);
    out[2 * n + i] = warp_sum<4>((float)i);
    out[3 * n + i] = (float)warp_ballot(i % 32 == 3);
    out[4 * n + i] = shuffle((float)i, 5);
    out[5 * n + i] = shuffle_down((float)i, 4);
    out[6 * n + i] = exp2_approx((float)(i - 48));
}
static void reductions_and_shuffles_are_right(TestCtx *t) {
    Device<float> out(7 * BLOCK);
    in_all_orders([&] {
        float h[7 * BLOCK];
        LAUNCH(reduce_kernel, 1, BLOCK, 32 * sizeof(float), nullptr)(out.p);
        out.get(h);
        for (int i = 0; i < BLOCK; i++) {
            int warp = i / 32 * 32;
            CHECK(t, h[i] == BLOCK * (BLOCK + 1) / 2);
            CHECK(t, h[BLOCK + i] == BLOCK - 1);
            CHECK(t, h[2 * BLOCK + i] == 4 * (i / 4 * 4) + 6);
            CHECK(t, h[3 * BLOCK + i] == 8);
            CHECK(t, h[4 * BLOCK + i] == warp + 5);
            CHECK(t, h[5 * BLOCK + i] == (i % 32 < 28 ? i + 4 : i));
            CHECK(t, fabsf(h[6 * BLOCK + i] / ldexpf(1.0f, i - 48) - 1.0f) <= 1e-6f);
        }
    });
}

template <int W> __global__ void convert_kernel(bf16 *out, float *back, const float *inp) {
    float x[W];
    load_vec<W>(x, inp + W * threadIdx.x);
    store_vec<W>(out + W * threadIdx.x, x);
    load_vec<W>(x, out + W * threadIdx.x);
    store_vec<W>(back + W * threadIdx.x, x);
}
static void conversions_round_to_nearest_even(TestCtx *t) {
    enum { N = 32 * 8 };
    Device<float> inp(N), back(N);
    Device<bf16> out(N);
    float h[N], r[N];
    bf16 b[N];
    test_noise(h, N, 1, 100.0f);
    h[0] = 1.0f + 0x1p-8f, h[1] = 1.0f + 3 * 0x1p-8f, h[2] = 3.4e38f, h[3] = INFINITY, h[4] = -0.0f;
    h[5] = 1e-40f, h[6] = 1.0f + 0x1p-8f + 0x1p-20f;
    inp.set(h);
    auto check = [&] {
        out.get(b);
        back.get(r);
        for (int i = 0; i < N; i++) {
            CHECK(t, b[i].bits == bf16_from_f32(h[i]));
            float want = bf16_to_f32(b[i].bits);
            CHECK(t, memcmp(&r[i], &want, sizeof want) == 0);
        }
    };
    LAUNCH(convert_kernel<1>, 1, N, 0, nullptr)(out.p, back.p, inp.p), check();
    LAUNCH(convert_kernel<2>, 1, N / 2, 0, nullptr)(out.p, back.p, inp.p), check();
    LAUNCH(convert_kernel<4>, 1, N / 4, 0, nullptr)(out.p, back.p, inp.p), check();
    LAUNCH(convert_kernel<8>, 1, N / 8, 0, nullptr)(out.p, back.p, inp.p), check();
}

enum { ROW = 24 };  // elements between rows in shared memory: 48 bytes, a multiple of 16

// out (16, 8) = a (16, 16) b: b (16, 8) read through the transpose, or (8, 16) read straight.
__global__ void mma_kernel(float *out, const bf16 *a, const bf16 *b, int transposed) {
    SHARED(bf16, sa);
    bf16 *sb = sa + 16 * ROW;
    int l = threadIdx.x, n_b = transposed ? 16 : 8, width = transposed ? 8 : 16;
    cp_async_16(sa + l / 2 * ROW + l % 2 * 8, a + l / 2 * 16 + l % 2 * 8, 16);
    int row = l * 8 / width, col = l * 8 % width;
    bool real = row < n_b;
    if (row >= 16) row -= 16, col += 8;
    cp_async_16(sb + row * ROW + col, b + (real ? l * 8 : 0), real ? 16 : 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    unsigned fa[4], fb[4];
    ldmatrix_x4(fa, sa + l % 16 * ROW + l / 16 * 8);
    if (transposed)
        ldmatrix_x4_trans(fb, sb + l % 16 * ROW);
    else
        ldmatrix_x4(fb, sb + l % 8 * ROW + l / 8 % 2 * 8);
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    mma_m16n8k16(d, fa, fb[0], fb[1]);
    for (int i = 0; i < 4; i++)
        out[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = d[i];
}
static void mma_of_loaded_matrices_is_the_product(TestCtx *t) {
    Device<bf16> a(256), b(128);
    Device<float> out(128);
    float x[256], y[128], h[128];
    bf16 ha[256], hb[128];
    test_noise(x, 256, 1, 1.0f);
    test_noise(y, 128, 2, 1.0f);
    for (int i = 0; i < 256; i++)
        x[i] = bf16_to_f32(ha[i].bits = bf16_from_f32(x[i]));
    for (int i = 0; i < 128; i++)
        y[i] = bf16_to_f32(hb[i].bits = bf16_from_f32(y[i]));
    a.set(ha);
    b.set(hb);
    in_all_orders([&] {
        for (int transposed = 0; transposed < 2; transposed++) {
            LAUNCH(mma_kernel, 1, 32, 32 * ROW * sizeof(bf16), nullptr)
            (out.p, a.p, b.p, transposed);
            out.get(h);
            for (int i = 0; i < 16; i++) {
                for (int j = 0; j < 8; j++) {
                    double sum = 1;
                    for (int k = 0; k < 16; k++) {
                        sum +=
                            (double)x[16 * i + k] * (double)y[transposed ? 8 * k + j : 16 * j + k];
                    }
                    CHECK_MSG(t, fabs(h[8 * i + j] - sum) <= 1e-5, "(%d,%d) %d: %g, expected %g", i,
                              j, transposed, (double)h[8 * i + j], sum);
                }
            }
        }
    });
}

__global__ void zero_fill_kernel(float *out, const float *inp) {
    SHARED(float, s);
    int i = threadIdx.x;
    cp_async_16(s + 4 * i, inp + (i % 2 ? 0 : 4 * i), i % 2 ? 0 : 16);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int j = i; j < 4 * 32; j += 32)
        out[j] = s[j];
}
static void async_copies_fill_with_zeros(TestCtx *t) {
    Device<float> inp(128), out(128);
    float h[128], r[128];
    test_noise(h, 128, 3, 1.0f);
    inp.set(h);
    in_all_orders([&] {
        LAUNCH(zero_fill_kernel, 1, 32, 512, nullptr)(out.p, inp.p);
        out.get(r);
        for (int i = 0; i < 128; i++)
            CHECK(t, r[i] == (i / 4 % 2 ? 0.0f : h[i]));
    });
}

TEST_MAIN({"reductions_and_shuffles_are_right", reductions_and_shuffles_are_right},
          {"conversions_round_to_nearest_even", conversions_round_to_nearest_even},
          {"mma_of_loaded_matrices_is_the_product", mma_of_loaded_matrices_is_the_product},
          {"async_copies_fill_with_zeros", async_copies_fill_with_zeros})
