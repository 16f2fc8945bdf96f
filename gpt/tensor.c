// tensor.c - see tensor.h.
#include "gpt/tensor.h"

#include "gpt/rng.h"

#include <assert.h>
#include <string.h>

static int rows_logical(const TensorSpec *s) {
    return s->dim[0];
}
static int cols_logical(const TensorSpec *s) {
    return s->dim[1] ? s->dim[1] : 1;
}
static int groups_of(const TensorSpec *s) {
    return s->groups ? s->groups : 1;
}

int spec_rows(const TensorSpec *s) {
    return s->stored[0] ? s->stored[0] : rows_logical(s);
}
int spec_cols(const TensorSpec *s) {
    return s->stored[1] ? s->stored[1] : cols_logical(s);
}

size_t spec_logical(const TensorSpec *s) {
    return (size_t)rows_logical(s) * (size_t)cols_logical(s);
}
size_t spec_stored(const TensorSpec *s) {
    return (size_t)spec_rows(s) * (size_t)spec_cols(s);
}

const char *elem_name(ElemType type) {
    return type == TYPE_BF16 ? "bf16" : "fp32";
}

ElemType elem_stored(ElemType type, size_t elem_size) {
    if (type != TYPE_FX) return type;
    return elem_size == 2 ? TYPE_BF16 : TYPE_F32;
}

size_t elem_bytes(ElemType type, size_t elem_size) {
    switch (type) {
    case TYPE_FX:
        return elem_size;
    case TYPE_BF16:
        return 2;
    case TYPE_F32:
    case TYPE_I32:
        return 4;
    }
    return 0;
}

void tensor_table_add(TensorTable *t, const char *prefix, int layer, const TensorSpec *rows,
                      int n) {
    assert(t->elem_size > 0);
    if (t->n + n > t->cap) {
        int cap = max_int(2 * t->cap, t->n + n);
        t->tensor = mem_grow(t->tensor, (size_t)t->n, (size_t)cap, sizeof(Tensor));
        t->cap = cap;
    }
    for (int i = 0; i < n; i++) {
        Tensor *x = &t->tensor[t->n++];
        *x = (Tensor){.spec = rows[i], .layer = layer};
        int length = snprintf(x->name, sizeof x->name, "%s%s", prefix, rows[i].name);
        assert(length < TENSOR_NAME_MAX);
        (void)length;
        if (!rows[i].join) {
            t->elements = round_up(t->elements, TENSOR_ALIGN);
            t->bytes = round_up(t->bytes, 256);
        }
        x->offset = t->elements;
        x->bytes_at = t->bytes;
        size_t stored = spec_stored(&rows[i]);
        t->elements += stored;
        t->bytes += stored * elem_bytes(rows[i].type, t->elem_size);
    }
}

void tensor_table_free(TensorTable *t) {
    mem_free(t->tensor);
    *t = (TensorTable){0};
}

int tensor_find(const TensorTable *t, const char *name) {
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->tensor[i].name, name) == 0) return i;
    }
    return -1;
}

size_t tensor_count(const TensorTable *t) {
    size_t sum = 0;
    for (int i = 0; i < t->n; i++)
        sum += spec_logical(&t->tensor[i].spec);
    return sum;
}

void tensor_init(float *logical, const Tensor *t, uint64_t seed) {
    size_t n = spec_logical(&t->spec);
    uint64_t key = rng_key(seed, t->name);
    switch (t->spec.init) {
    case INIT_ZERO:
        for (size_t i = 0; i < n; i++)
            logical[i] = 0;
        return;
    case INIT_ONE:
        for (size_t i = 0; i < n; i++)
            logical[i] = 1;
        return;
    case INIT_NORMAL:
#pragma omp parallel for
        for (size_t i = 0; i < n; i++)
            logical[i] = (float)(rng_normal(key, i) * (double)t->spec.std);
        return;
    }
}

// Row of the padded matrix that holds the logical row.
static size_t stored_row(const TensorSpec *s, int row) {
    int groups = groups_of(s), in = rows_logical(s) / groups, out = spec_rows(s) / groups;
    return (size_t)(row / in) * (size_t)out + (size_t)(row % in);
}

void tensor_to_stored(float *stored, const float *logical, const TensorSpec *s) {
    size_t nc = (size_t)cols_logical(s), sc = (size_t)spec_cols(s);
    memset(stored, 0, spec_stored(s) * sizeof(float));
    for (int r = 0; r < rows_logical(s); r++) {
        memcpy(stored + stored_row(s, r) * sc, logical + (size_t)r * nc, nc * sizeof(float));
    }
}

void tensor_to_logical(float *logical, const float *stored, const TensorSpec *s) {
    size_t nc = (size_t)cols_logical(s), sc = (size_t)spec_cols(s);
    for (int r = 0; r < rows_logical(s); r++) {
        memcpy(logical + (size_t)r * nc, stored + stored_row(s, r) * sc, nc * sizeof(float));
    }
}
