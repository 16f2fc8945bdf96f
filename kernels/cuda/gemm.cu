// gemm.cu - matrix products through cuBLASLt: bf16 with fp32 sums on tensor cores, or fp32.
// Everything that does not depend on addresses is found once per shape and kept in a table of
// plans. Split sums are never kept in less than fp32 (the reduction scheme is restricted), and no
// algorithm that promises more alignment than the addresses have is taken.
#include "kernels/cuda/blas.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/families.h"

#include <string.h>

enum { N_PLANS = 2048, MAX_ALIGN = 256 };
static const size_t WORKSPACE_BYTES = (size_t)32 << 20;

#define BLAS_CHECK(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t s_ = (call);                                                                \
        if (s_ != CUBLAS_STATUS_SUCCESS) {                                                         \
            die("cuBLASLt: %s at %s:%d: %s", #call, __FILE__, __LINE__,                            \
                cublasLtGetStatusString(s_));                                                      \
        }                                                                                          \
    } while (0)

// Row-major products as column-major ones: C^T = op(B)^T op(A)^T, so B comes first.
struct PlanKey {
    GemmOp g;  // types are TYPE_F32 or TYPE_BF16; alpha and beta are not part of the plan
    unsigned align_a, align_b, align_c;
    bool biased;  // adds a vector of c's type, 256-byte aligned, to every row
};
struct Plan {
    PlanKey key;
    bool used;
    bool exists;  // false: the library has no algorithm for it
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};
struct Blas {
    cublasLtHandle_t handle;
    void *workspace;
    int n;
    Plan plan[N_PLANS];
};

Blas *blas_open() {
    Blas *b = static_cast<Blas *>(mem_alloc(1, sizeof(Blas)));
    BLAS_CHECK(cublasLtCreate(&b->handle));
    if (cudaMalloc(&b->workspace, WORKSPACE_BYTES) != cudaSuccess) {
        die("out of GPU memory: no room for the %zu bytes that matrix products work in",
            WORKSPACE_BYTES);
    }
    return b;
}

static void forget_plans(Blas *b) {
    for (int i = 0; i < N_PLANS; i++) {
        if (!b->plan[i].used) continue;
        BLAS_CHECK(cublasLtMatmulDescDestroy(b->plan[i].desc));
        BLAS_CHECK(cublasLtMatrixLayoutDestroy(b->plan[i].a));
        BLAS_CHECK(cublasLtMatrixLayoutDestroy(b->plan[i].b));
        BLAS_CHECK(cublasLtMatrixLayoutDestroy(b->plan[i].c));
        b->plan[i].used = false;
    }
    b->n = 0;
}

void blas_close(Blas *b) {
    forget_plans(b);
    CUDA_CHECK(cudaFree(b->workspace));
    BLAS_CHECK(cublasLtDestroy(b->handle));
    mem_free(b);
}

static cudaDataType_t data_type(ElemType t) {
    return t == TYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// A row-major (rows, cols) matrix is a column-major (cols, rows) one.
static cublasLtMatrixLayout_t layout(ElemType type, int rows, int cols, size_t ld, int batch,
                                     size_t stride) {
    cublasLtMatrixLayout_t l;
    int64_t offset = (int64_t)stride;
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&l, data_type(type), (uint64_t)cols, (uint64_t)rows,
                                          (int64_t)ld));
    BLAS_CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof batch));
    BLAS_CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &offset, sizeof offset));
    return l;
}

static bool choose(const Blas *blas, Plan *p) {
    const PlanKey *k = &p->key;
    cublasLtMatmulPreference_t pref;
    size_t bytes = WORKSPACE_BYTES;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&pref));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &bytes, sizeof bytes));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_b, sizeof(uint32_t)));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_a, sizeof(uint32_t)));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_c, sizeof(uint32_t)));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_c, sizeof(uint32_t)));
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(blas->handle, p->desc, p->b, p->a, p->c, p->c, pref, 1, &result,
                                   &found);
    p->algo = result.algo;
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(pref));
    return found > 0;
}

// The address goes with each call; when the algorithm is chosen it only shows the alignment.
static void set_bias(cublasLtMatmulDesc_t desc, const void *bias) {
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                              sizeof bias));
}

static void make_plan(const Blas *blas, Plan *p) {
    const GemmOp *g = &p->key.g;
    bool fast = g->a_type == TYPE_F32 && g->compute == TYPE_BF16;
    cublasOperation_t ta = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                      tb = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_CHECK(cublasLtMatmulDescCreate(
        &p->desc, fast ? CUBLAS_COMPUTE_32F_FAST_16BF : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_CHECK(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &tb, sizeof tb));
    BLAS_CHECK(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ta, sizeof ta));
    p->a =
        layout(g->a_type, g->ta ? g->K : g->M, g->ta ? g->M : g->K, g->lda, g->batch, g->stride_a);
    p->b =
        layout(g->b_type, g->tb ? g->N : g->K, g->tb ? g->K : g->N, g->ldb, g->batch, g->stride_b);
    p->c = layout(g->c_type, g->M, g->N, g->ldc, g->batch, g->stride_c);
    if (p->key.biased) {
        uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        BLAS_CHECK(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                  sizeof epilogue));
        set_bias(p->desc, blas->workspace);
    }
    p->exists = choose(blas, p);
    p->used = true;
}

static const Plan *find_plan(Blas *b, const PlanKey *key) {
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof *key; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)key + i, min_size(8, sizeof *key - i));
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    size_t i = hash % N_PLANS;
    while (b->plan[i].used && memcmp(&b->plan[i].key, key, sizeof *key) != 0)
        i = (i + 1) % N_PLANS;
    if (b->plan[i].used) return &b->plan[i];
    if (++b->n > N_PLANS / 2) {
        forget_plans(b);
        b->n = 1;
        i = hash % N_PLANS;
    }
    b->plan[i].key = *key;
    make_plan(b, &b->plan[i]);
    return &b->plan[i];
}

// Largest power of two that divides the address, the row stride and the batch stride.
static unsigned alignment(const void *p, size_t ld, size_t stride, int batch, ElemType type) {
    size_t size = type == TYPE_BF16 ? 2 : 4;
    uintptr_t all = (uintptr_t)p | ld * size | (batch > 1 ? stride * size : 0) | MAX_ALIGN;
    return (unsigned)(all & ~(all - 1));
}

// Types are TYPE_F32 or TYPE_BF16; those of a and b are equal. bias (N) of c's type, aligned to
// MAX_ALIGN bytes, or NULL. False when the library can't add the bias; nothing is done then.
static bool product(void *c, const void *a, const void *b, const void *bias, const GemmOp *g) {
    PlanKey key;
    memset(&key, 0, sizeof key);  // padding too: keys are compared as bytes
    key.g.M = g->M, key.g.N = g->N, key.g.K = g->K, key.g.batch = g->batch;
    key.g.ta = g->ta, key.g.tb = g->tb;
    key.g.lda = g->lda, key.g.ldb = g->ldb, key.g.ldc = g->ldc;
    key.g.stride_a = g->stride_a, key.g.stride_b = g->stride_b, key.g.stride_c = g->stride_c;
    key.g.a_type = g->a_type, key.g.b_type = g->b_type, key.g.c_type = g->c_type;
    key.g.compute = g->compute;
    key.align_a = alignment(a, g->lda, g->stride_a, g->batch, g->a_type);
    key.align_b = alignment(b, g->ldb, g->stride_b, g->batch, g->b_type);
    key.align_c = alignment(c, g->ldc, g->stride_c, g->batch, g->c_type);
    key.biased = bias != nullptr;
    Blas *blas = cuda_device()->blas;
    const Plan *p = find_plan(blas, &key);
    if (!p->exists && bias) return false;
    if (!p->exists)
        die("cuBLASLt has no algorithm for a product of %d x %d x %d", g->M, g->N, g->K);
    if (bias) set_bias(p->desc, bias);
    BLAS_CHECK(cublasLtMatmul(blas->handle, p->desc, &g->alpha, b, p->b, a, p->a, &g->beta, c, p->c,
                              c, p->c, &p->algo, blas->workspace, WORKSPACE_BYTES, cuda_stream()));
    return true;
}

// Elements between the first and the last of all matrices of an operand.
static size_t extent(int rows, int cols, size_t ld, int batch, size_t stride) {
    return (size_t)(batch - 1) * stride + (size_t)(rows - 1) * ld + (size_t)cols;
}

// A bf16 operand beside an fp32 one goes to fp32 through scratch.
template <typename T>
static void gemm_cuda(void *c, const void *a, const void *b, const GemmOp *op) {
    GemmOp g = *op;
    ElemType fx = elem_stored(TYPE_FX, sizeof(T));
    if (g.a_type == TYPE_FX) g.a_type = fx;
    if (g.b_type == TYPE_FX) g.b_type = fx;
    if (g.c_type == TYPE_FX) g.c_type = fx;
    if (g.a_type != g.b_type) {
        bool is_a = g.a_type == TYPE_BF16;
        size_t n = is_a ? extent(g.ta ? g.K : g.M, g.ta ? g.M : g.K, g.lda, g.batch, g.stride_a)
                        : extent(g.tb ? g.N : g.K, g.tb ? g.K : g.N, g.ldb, g.batch, g.stride_b);
        float *wide = static_cast<float *>(cuda_scratch(n * sizeof(float)));
        convert(wide, static_cast<const bf16 *>(is_a ? a : b), n);
        if (is_a)
            a = wide;
        else
            b = wide;
        g.a_type = g.b_type = TYPE_F32;
    }
    product(c, a, b, nullptr, &g);
}

// The library adds a vector of the output's type and width: the bias is brought to that in scratch,
// which is OC elements of work instead of a pass over the output.
static void to_type(float *out, const float *bias, size_t n) {
    CUDA_CHECK(
        cudaMemcpyAsync(out, bias, n * sizeof(float), cudaMemcpyDeviceToDevice, cuda_stream()));
}
static void to_type(bf16 *out, const float *bias, size_t n) {
    convert(out, bias, n);
}
template <typename T> static const T *widen_bias(const float *bias, int n_bias, int OC) {
    size_t n = (size_t)n_bias, rest = (size_t)OC - n;
    T *out = static_cast<T *>(cuda_scratch((size_t)OC * sizeof(T)));
    to_type(out, bias, n);
    if (rest) CUDA_CHECK(cudaMemsetAsync(out + n, 0, rest * sizeof(T), cuda_stream()));
    return out;
}

template <typename T>
static void matmul_cuda(floatX *out, size_t ld_out, const floatX *inp, size_t ld_inp,
                        const Weight *w, const float *bias, int n_bias, size_t N) {
    GemmOp g = {};
    g.M = (int)N, g.N = w->OC, g.K = w->IC, g.batch = 1, g.tb = true;
    g.lda = ld_inp, g.ldb = (size_t)w->IC, g.ldc = ld_out, g.alpha = 1.0f;
    g.a_type = g.b_type = g.c_type = elem_stored(TYPE_FX, sizeof(T)), g.compute = TYPE_F32;
    bool biased = bias && n_bias > 0;
    if (biased && product(out, inp, w->data, widen_bias<T>(bias, n_bias, w->OC), &g)) return;
    product(out, inp, w->data, nullptr, &g);
    if (biased) bias_add(reinterpret_cast<T *>(out), ld_out, bias, N, n_bias);
}

template <typename T>
static void matmul_dx_cuda(floatX *dinp, size_t ld_dinp, const floatX *dout, size_t ld_dout,
                           const Weight *w, size_t N, bool accumulate) {
    GemmOp g = {};
    g.M = (int)N, g.N = w->IC, g.K = w->OC, g.batch = 1;
    g.lda = ld_dout, g.ldb = (size_t)w->IC, g.ldc = ld_dinp;
    g.alpha = 1.0f, g.beta = accumulate ? 1.0f : 0.0f;
    g.a_type = g.b_type = g.c_type = TYPE_FX, g.compute = TYPE_F32;
    gemm_cuda<T>(dinp, dout, w->data, &g);
}

template <typename T>
static void matmul_dw_cuda(float *dw, const floatX *dout, size_t ld_dout, const floatX *inp,
                           size_t ld_inp, const Weight *w, size_t N) {
    GemmOp g = {};
    g.M = w->OC, g.N = w->IC, g.K = (int)N, g.batch = 1, g.ta = true;
    g.lda = ld_dout, g.ldb = ld_inp, g.ldc = (size_t)w->IC, g.alpha = 1.0f, g.beta = 1.0f;
    g.a_type = g.b_type = TYPE_FX, g.c_type = TYPE_F32, g.compute = TYPE_F32;
    gemm_cuda<T>(dw, dout, inp, &g);
}

// Products read the weight where it lies.
static size_t weight_bytes_cuda(int, int, ElemType) {
    return 0;
}
static void weight_prepare_cuda(Weight *) {}

template <typename T> void gemm_ops(Ops *o) {
    o->weight_bytes = weight_bytes_cuda;
    o->weight_prepare = weight_prepare_cuda;
    o->matmul = matmul_cuda<T>;
    o->matmul_dx = matmul_dx_cuda<T>;
    o->matmul_dw = matmul_dw_cuda<T>;
    o->gemm = gemm_cuda<T>;
}
template void gemm_ops<float>(Ops *);
template void gemm_ops<bf16>(Ops *);
