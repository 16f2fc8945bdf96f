// tensor.h - what tensors exist: a tensor exists by having a row in a spec table.
// One row serves memory, initial values, checkpoint names, parameter counts, optimizer groups and
// logs. Nothing here owns data; a TensorTable is a list of names, sizes and offsets.
#pragma once

#include "gpt/util.h"

#ifdef __cplusplus
extern "C" {
#endif

// What an element is. floatX is the op table's own choice: fp32 on the CPU, bf16 or fp32 on CUDA.
typedef enum ElemType { TYPE_FX, TYPE_F32, TYPE_BF16, TYPE_I32 } ElemType;

// Which optimizer group a parameter belongs to; config maps each kind to optimizer, lr, betas,
// decay.
typedef enum TensorKind { KIND_EMBED, KIND_HEAD, KIND_MATRIX, KIND_VECTOR, N_KINDS } TensorKind;

typedef enum InitKind { INIT_ZERO, INIT_ONE, INIT_NORMAL } InitKind;

// A row. Zero means "the usual": stored = dim, groups = blocks = 1.
typedef struct TensorSpec {
    const char *name;
    int dim[2];     // logical rows, columns (dim[1] = 0: a vector); counts, init, checkpoint
    int stored[2];  // padded rows, columns; the padding is zero and stays zero
    int groups;     // row groups padded each by itself: dim[0]/groups -> stored[0]/groups rows
    int blocks;     // row blocks that Muon treats as matrices of their own
    int heads;      // row blocks of one head each: Muon's units under muon_unit = head; 0: none
    bool raw;       // read by gemm and kernels, never by matmul: needs no prepared copy
    ElemType type;
    TensorKind kind;
    InitKind init;
    float std;  // of INIT_NORMAL
    bool join;  // lies directly behind the row before, so that one product reads both
} TensorSpec;

size_t spec_logical(const TensorSpec *s);  // elements without padding
size_t spec_stored(const TensorSpec *s);   // elements with padding
int spec_rows(const TensorSpec *s);        // stored rows
int spec_cols(const TensorSpec *s);        // stored columns, 1 for a vector

enum { TENSOR_NAME_MAX = 48 };

typedef struct Tensor {
    char name[TENSOR_NAME_MAX];  // "h.3.attn.wq"
    TensorSpec spec;
    int layer;        // -1: belongs to no layer
    size_t offset;    // in elements, in the arenas of gradients and optimizer state
    size_t bytes_at;  // in bytes, in the parameter arena
} Tensor;

typedef struct TensorTable {
    Tensor *tensor;
    int n, cap;
    size_t elem_size;  // bytes of one floatX
    size_t elements;   // size of a gradient-like arena, in elements
    size_t bytes;      // size of the parameter arena
} TensorTable;

// Every tensor starts on a multiple of this many elements (256 bytes of bf16) unless it joins.
enum { TENSOR_ALIGN = 128 };

// Appends n rows named prefix + row name. Rows of one layer are added in one go, so that a layer is
// one contiguous run of every arena. The table owns its rows; free with tensor_table_free.
void tensor_table_add(TensorTable *t, const char *prefix, int layer, const TensorSpec *rows, int n);
void tensor_table_free(TensorTable *t);
// Index of the tensor, or -1.
int tensor_find(const TensorTable *t, const char *name);
// Parameters without padding.
size_t tensor_count(const TensorTable *t);

size_t elem_bytes(ElemType type, size_t elem_size);
const char *elem_name(ElemType type);  // "bf16", else "fp32"
// What TYPE_FX is there: TYPE_F32 or TYPE_BF16; other types are themselves.
ElemType elem_stored(ElemType type, size_t elem_size);

// Initial values, logical order (dim[0], dim[1]); element i depends on (seed, name, i) alone.
void tensor_init(float *logical, const Tensor *t, uint64_t seed);
// Between the logical matrix and the padded one; to_stored writes zeros into the padding.
void tensor_to_stored(float *stored, const float *logical, const TensorSpec *s);
void tensor_to_logical(float *logical, const float *stored, const TensorSpec *s);

// bf16 with round to nearest even; NaN stays NaN.
static inline uint16_t bf16_from_f32(float x) {
    union {
        float f;
        uint32_t u;
    } v = {x};
    if ((v.u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((v.u >> 16) | 0x40u);
    return (uint16_t)((v.u + 0x7FFFu + ((v.u >> 16) & 1u)) >> 16);
}
static inline float bf16_to_f32(uint16_t x) {
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)x << 16};
    return v.f;
}

#ifdef __cplusplus
}
#endif
