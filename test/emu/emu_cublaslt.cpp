// emu_cublaslt.cpp - see emu_cublaslt.h. Sums of 32 products in fp32, their sums in double; the
// order is fixed. What the library itself does (splits, algorithms) cannot be seen here.
#include "test/emu/emu_cublaslt.h"

#include "test/emu/emu_internal.h"

struct EmuDesc {
    cublasComputeType_t compute;
    cublasOperation_t op[2];  // of A, B
    uint32_t epilogue;
    const void *bias;  // of D's type, one for each of its rows
};
struct EmuLayout {
    cudaDataType_t type;
    size_t rows, cols, ld;
    int batch;
    int64_t stride;
};
struct EmuPreference {
    uint32_t alignment[4];  // of A, B, C, D
    size_t workspace_bytes;
};

namespace {

template <typename T> cublasStatus_t destroy(T *p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

size_t bytes_of(cudaDataType_t type) {
    return type == CUDA_R_16BF ? 2 : 4;
}

float load(const char *p, cudaDataType_t type) {
    float x;
    if (type == CUDA_R_32F) {
        memcpy(&x, p, 4);
        return x;
    }
    unsigned short h;
    memcpy(&h, p, 2);
    return __uint_as_float((unsigned)h << 16);
}

float to_bf16(float x) {
    unsigned u = __float_as_uint(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return x;
    return __uint_as_float((u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u);
}

void store(char *p, cudaDataType_t type, float x) {
    unsigned u = __float_as_uint(type == CUDA_R_16BF ? to_bf16(x) : x);
    if (type == CUDA_R_32F)
        memcpy(p, &u, 4);
    else
        memcpy(p, reinterpret_cast<char *>(&u) + 2, 2);
}

// The matrix of batch i, or a fault when it is not device memory, not aligned or was never written.
const char *matrix(const void *base, const EmuLayout *l, int i, const char *name,
                   uint64_t alignment, bool is_read) {
    size_t e = bytes_of(l->type);
    const char *p = static_cast<const char *>(base) + i * l->stride * (int64_t)e;
    if (l->ld < l->rows)
        emu_fail("cublasLtMatmul: ld %zu of %s is below its %zu rows", l->ld, name, l->rows);
    size_t n = ((l->cols - 1) * l->ld + l->rows) * e;
    if (!emu_allocated(p, n)) {
        emu_fail("cublasLtMatmul: %s needs %zu bytes at %s", name, n, emu_describe(p));
    } else if ((uintptr_t)p % alignment) {
        emu_fail("cublasLtMatmul: %s at %s is not aligned to the %d bytes promised", name,
                 emu_describe(p), (int)alignment);
    }
    for (size_t c = 0; is_read && emu_checking && !emu.failed && c < l->cols; c++) {
        if (!emu_is_init(p + c * l->ld * e, l->rows * e)) {
            emu_fail("cublasLtMatmul: %s at %s was never written", name,
                     emu_describe(p + c * l->ld * e));
        }
    }
    return p;
}

// op(matrix) as (rows, cols) floats, columns contiguous.
std::vector<float> gather(const char *p, const EmuLayout *l, cublasOperation_t op, bool round) {
    size_t rows = op == CUBLAS_OP_T ? l->cols : l->rows,
           cols = op == CUBLAS_OP_T ? l->rows : l->cols;
    std::vector<float> x(rows * cols);
    for (size_t c = 0; c < cols; c++) {
        for (size_t r = 0; r < rows; r++) {
            size_t at = op == CUBLAS_OP_T ? r * l->ld + c : c * l->ld + r;
            float v = load(p + at * bytes_of(l->type), l->type);
            x[c * rows + r] = round ? to_bf16(v) : v;
        }
    }
    return x;
}

struct Product {
    size_t m, n, k;
    const float *a, *b;  // (m, k), (k, n), columns contiguous
};

// sum (m) = column j of the product.
void column(const Product &p, size_t j, double *sum, float *part) {
    std::fill(sum, sum + p.m, 0.0);
    for (size_t k0 = 0; k0 < p.k; k0 += 32) {
        std::fill(part, part + p.m, 0.0f);
        for (size_t k = k0; k < std::min(k0 + 32, p.k); k++) {
            float b = p.b[j * p.k + k];
            const float *a = p.a + k * p.m;
            for (size_t i = 0; i < p.m; i++)
                part[i] += a[i] * b;
        }
        for (size_t i = 0; i < p.m; i++)
            sum[i] += (double)part[i];
    }
}

}  // namespace

const char *cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    *h = reinterpret_cast<cublasLtHandle_t>(&emu);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c,
                                        cudaDataType_t) {
    *d = new EmuDesc{c, {CUBLAS_OP_N, CUBLAS_OP_N}, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, EmuDescAttribute a,
                                              const void *v, size_t) {
    if (a == CUBLASLT_MATMUL_DESC_EPILOGUE)
        memcpy(&d->epilogue, v, sizeof d->epilogue);
    else if (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        memcpy(&d->bias, v, sizeof d->bias);
    else
        memcpy(&d->op[a == CUBLASLT_MATMUL_DESC_TRANSB], v, sizeof d->op[0]);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    return destroy(d);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new EmuLayout{type, rows, cols, (size_t)ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, EmuLayoutAttribute a,
                                                const void *v, size_t) {
    if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        memcpy(&l->batch, v, sizeof l->batch);
    else
        memcpy(&l->stride, v, sizeof l->stride);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    return destroy(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new EmuPreference{{256, 256, 256, 256}, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    EmuPreferenceAttribute a, const void *v,
                                                    size_t) {
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&p->workspace_bytes, v, sizeof(size_t));
    else if (a >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
        memcpy(&p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, 4);
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return destroy(p);
}

// The algorithm remembers what it was promised.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found) {
    *found = 0;
    if (a->type != b->type || c->type != d->type || wanted < 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a->type == CUDA_R_32F && d->type == CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    // Faster products of fp32 operands only (table of types in the manual of cublasLtMatmul).
    if (desc->compute == CUBLAS_COMPUTE_32F_FAST_16BF && a->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // Whatever the library can do: callers must be ready for epilogues that it can't.
    if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && (!desc->bias || d->rows % 8))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0] = {};
    for (int i = 0; i < 4; i++)
        results[0].algo.data[i] = p->alignment[i];
    results[0].algo.data[4] = results[0].workspaceSize = p->workspace_bytes;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

namespace {

// What a product knows when it runs: descriptions may be gone by then.
struct Matmul {
    EmuDesc desc;
    EmuLayout a, b, c, d;
    const void *A, *B, *C;
    void *D;
    float alpha, beta;
    cublasLtMatmulAlgo_t algo;  // what the choice was promised
    void *workspace;
    size_t workspace_bytes;
};

void store_column(const Matmul &x, const double *sum, const char *pc, char *pd) {
    size_t e = bytes_of(x.d.type);
    bool biased = x.desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    const char *bias = biased ? static_cast<const char *>(x.desc.bias) : nullptr;
    for (size_t r = 0; r < x.d.rows; r++) {
        float y = x.alpha * (float)sum[r];
        if (x.beta != 0.0f) y += x.beta * load(pc + r * e, x.c.type);
        if (bias) y += load(bias + r * e, x.d.type);
        store(pd + r * e, x.d.type, y);
    }
    if (emu_checking) emu_mark_init(pd, x.d.rows * e);
}

void check_bias(const Matmul &x) {
    size_t n = x.d.rows * bytes_of(x.d.type);
    if (!emu_allocated(x.desc.bias, n)) {
        emu_fail("cublasLtMatmul: the bias needs %zu bytes at %s", n, emu_describe(x.desc.bias));
    } else if (emu_checking && !emu_is_init(x.desc.bias, n)) {
        emu_fail("cublasLtMatmul: the bias at %s was never written", emu_describe(x.desc.bias));
    }
}

void multiply(const Matmul &x, int batch) {
    const uint64_t *promised = x.algo.data;
    bool round = x.desc.compute == CUBLAS_COMPUTE_32F_FAST_16BF;
    const char *pa = matrix(x.A, &x.a, batch, "A", promised[0], true);
    const char *pb = matrix(x.B, &x.b, batch, "B", promised[1], true);
    const char *pc = matrix(x.C, &x.c, batch, "C", promised[2], x.beta != 0.0f);
    char *pd = const_cast<char *>(matrix(x.D, &x.d, batch, "D", promised[3], false));
    size_t k = x.desc.op[0] == CUBLAS_OP_T ? x.a.rows : x.a.cols;
    size_t kb = x.desc.op[1] == CUBLAS_OP_T ? x.b.cols : x.b.rows;
    if (k != kb) emu_fail("cublasLtMatmul: inner sizes %zu and %zu", k, kb);
    if (x.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) check_bias(x);
    if (emu.failed) return;
    std::vector<float> fa = gather(pa, &x.a, x.desc.op[0], round),
                       fb = gather(pb, &x.b, x.desc.op[1], round);
    std::vector<double> sum(x.d.rows);
    std::vector<float> part(x.d.rows);
    Product p = {x.d.rows, x.d.cols, k, fa.data(), fb.data()};
    size_t e = bytes_of(x.d.type);
    for (size_t j = 0; j < x.d.cols; j++) {
        column(p, j, sum.data(), part.data());
        store_column(x, sum.data(), pc + j * x.c.ld * e, pd + j * x.d.ld * e);
    }
}

void run_matmul(const Matmul &x) {
    if (x.workspace_bytes < x.algo.data[4] ||
        (x.workspace_bytes && !emu_allocated(x.workspace, x.workspace_bytes))) {
        emu_fail("cublasLtMatmul: %zu bytes of workspace at %s", x.workspace_bytes,
                 emu_describe(x.workspace));
    }
    for (int i = 0; i < x.d.batch && !emu.failed; i++)
        multiply(x, i);
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t) {
    float scale = load(static_cast<const char *>(alpha), CUDA_R_32F);
    float keep = load(static_cast<const char *>(beta), CUDA_R_32F);
    Matmul x = {*desc, *a, *b, *c, *d, A, B, C, D, scale, keep, *algo, workspace, workspace_bytes};
    emu_enqueue([=] { run_matmul(x); });
    return CUBLAS_STATUS_SUCCESS;
}
