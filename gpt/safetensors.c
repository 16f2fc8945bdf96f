// safetensors.c - opens, looks up and reads; the header's grammar lives in safetensors_header.c.
//
// offset   size   meaning
// 0        8      N, little-endian
// 8        N      JSON, UTF-8: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...,
//                 "__metadata__": {"key": "value", ...}}, padded with spaces
// 8 + N    rest   data, little-endian, row-major, without holes; offsets count from here
#define _POSIX_C_SOURCE 200809L
#include "gpt/safetensors.h"

#include "gpt/safetensors_header.h"
#include "gpt/tensor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "files over 4 GB need 64-bit offsets");

static const struct {
    const char *name;
    int bits;
} type_table[N_SAFE_TYPES] = {
    [SAFE_F32] = {"F32", 32},
    [SAFE_BF16] = {"BF16", 16},
    [SAFE_F16] = {"F16", 16},
    [SAFE_BOOL] = {"BOOL", 8},
    [SAFE_U8] = {"U8", 8},
    [SAFE_I8] = {"I8", 8},
    [SAFE_F8_E4M3] = {"F8_E4M3", 8},
    [SAFE_F8_E5M2] = {"F8_E5M2", 8},
    [SAFE_F8_E8M0] = {"F8_E8M0", 8},
    [SAFE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [SAFE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [SAFE_I16] = {"I16", 16},
    [SAFE_U16] = {"U16", 16},
    [SAFE_I32] = {"I32", 32},
    [SAFE_U32] = {"U32", 32},
    [SAFE_I64] = {"I64", 64},
    [SAFE_U64] = {"U64", 64},
    [SAFE_F64] = {"F64", 64},
    [SAFE_C64] = {"C64", 64},
    [SAFE_F4] = {"F4", 4},
    [SAFE_F6_E2M3] = {"F6_E2M3", 6},
    [SAFE_F6_E3M2] = {"F6_E3M2", 6},
};

const char *safetensors_type_name(SafeType type) {
    return type == SAFE_FLOAT ? "F32, BF16 or F16" : type_table[type].name;
}

int safetensors_type_bits(SafeType type) {
    assert(type != SAFE_FLOAT);
    return type_table[type].bits;
}

static bool read_at(const Safetensors *f, void *out, size_t n, uint64_t at, Error *err) {
    for (size_t done = 0; done < n;) {
        size_t piece = min_size(n - done, (size_t)1 << 30);
        ssize_t got = pread(f->fd, (char *)out + done, piece, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(err, "%s: reading failed (%s)", f->path, strerror(errno));
        if (got == 0) return error_set(err, "%s: the file became shorter while read", f->path);
        done += (size_t)got;
    }
    return true;
}

// The length of the header, from the first 8 bytes. Nothing is allocated before it is bounded.
static bool check_length(const Safetensors *f, uint64_t file_bytes, uint64_t *n, Error *err) {
    unsigned char length[8];
    if (file_bytes < 8) {
        return error_set(err, "%s: too small for safetensors (%" PRIu64 " bytes, at least 8)",
                         f->path, file_bytes);
    }
    if (!read_at(f, length, 8, 0, err)) return false;
    *n = 0;
    for (int i = 7; i >= 0; i--)
        *n = *n << 8 | length[i];
    if (*n > SAFE_MAX_HEADER) {
        return error_set(err,
                         "%s: header too large (%" PRIu64 " bytes, at most %d); is this a "
                         "safetensors file?",
                         f->path, *n, SAFE_MAX_HEADER);
    }
    if (*n > file_bytes - 8) {
        return error_set(err,
                         "%s: invalid header length: %" PRIu64
                         " bytes promised, the file holds %" PRIu64 " behind the length",
                         f->path, *n, file_bytes - 8);
    }
    return true;
}

static bool read_header(Safetensors *f, Error *err) {
    struct stat st;
    if (fstat(f->fd, &st)) return error_set(err, "%s: fstat failed (%s)", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return error_set(err, "%s: is not a regular file", f->path);
    uint64_t file_bytes = (uint64_t)st.st_size, n = 0;
    if (!check_length(f, file_bytes, &n, err)) return false;
    char *header = mem_alloc((size_t)n, 1);
    f->data_at = 8 + n;
    bool ok = read_at(f, header, (size_t)n, 8, err) &&
              safetensors_parse(f, header, (size_t)n, file_bytes - f->data_at, err);
    mem_free(header);
    return ok;
}

bool safetensors_open(Safetensors *f, const char *path, Error *err) {
    *f = (Safetensors){.path = str_copy(path)};
    // O_NONBLOCK: a pipe in place of the file must not block here.
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    else if (read_header(f, err))
        return true;
    safetensors_close(f);
    return false;
}

void safetensors_close(Safetensors *f) {
    if (f->fd >= 0 && f->path) close(f->fd);
    mem_free(f->path);
    mem_free(f->tensor);
    mem_free(f->by_name);
    mem_free(f->meta);
    mem_free(f->text);
    *f = (Safetensors){.fd = -1};
}

const SafeTensor *safetensors_get(const Safetensors *f, const char *name) {
    size_t low = 0, high = f->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const SafeTensor *t = &f->tensor[f->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *safetensors_meta(const Safetensors *f, const char *key) {
    for (size_t i = 0; i < f->n_meta; i++) {
        if (strcmp(f->meta[i].key, key) == 0) return f->meta[i].value;
    }
    return NULL;
}

static void shape_text(Buf *b, const uint64_t *shape, int rank) {
    buf_printf(b, "[");
    for (int d = 0; d < rank; d++)
        buf_printf(b, "%s%" PRIu64, d ? ", " : "", shape[d]);
    buf_printf(b, "]");
}

static bool type_fits(SafeType have, SafeType want) {
    return want == SAFE_FLOAT ? have <= SAFE_F16 : have == want;
}

const SafeTensor *safetensors_find(const Safetensors *f, const char *name, SafeType type,
                                   const uint64_t *shape, int rank, Error *err) {
    const SafeTensor *t = safetensors_get(f, name);
    if (!t) {
        error_set(err, "%s: holds no tensor '%s'", f->path, name);
        return NULL;
    }
    bool same = t->rank == rank && type_fits(t->type, type);
    for (int d = 0; same && d < rank; d++)
        same = t->shape[d] == shape[d];
    if (same) return t;
    Buf want = {0}, have = {0};
    shape_text(&want, shape, rank);
    shape_text(&have, t->shape, t->rank);
    error_set(err, "%s: tensor '%s' is %s %s, expected %s %s", f->path, name,
              safetensors_type_name(t->type), have.text, safetensors_type_name(type), want.text);
    buf_free(&want);
    buf_free(&have);
    return NULL;
}

uint64_t safetensors_count(const SafeTensor *t) {
    uint64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->shape[d];
    return n;
}

static float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 1023u;
    union {
        uint32_t u;
        float f;
    } v;
    if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
        v.f = (float)mantissa * 0x1p-24f;
        v.u |= sign;
        return v.f;
    }
    uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
    v.u = sign | wide << 23 | mantissa << 13;
    return v.f;
}

static bool read_halves(const Safetensors *f, uint64_t at, bool is_bf16, size_t n, float *out,
                        Error *err) {
    uint16_t piece[8192];
    for (size_t done = 0; done < n;) {
        size_t take = min_size(n - done, sizeof piece / sizeof piece[0]);
        if (!read_at(f, piece, take * sizeof piece[0], at + 2 * (uint64_t)done, err)) return false;
        for (size_t i = 0; i < take; i++)
            out[done + i] = is_bf16 ? bf16_to_f32(piece[i]) : f16_to_f32(piece[i]);
        done += take;
    }
    return true;
}

bool safetensors_read(const Safetensors *f, const SafeTensor *t, uint64_t first, size_t n,
                      float *out, Error *err) {
    if (!type_fits(t->type, SAFE_FLOAT)) {
        return error_set(err, "%s: tensor '%s' is %s, expected F32, BF16 or F16", f->path, t->name,
                         safetensors_type_name(t->type));
    }
    uint64_t count = safetensors_count(t);
    assert(first <= count && n <= count - first);
    (void)count;
    uint64_t at = f->data_at + t->begin + first * (uint64_t)(safetensors_type_bits(t->type) / 8);
    if (t->type == SAFE_F32) return read_at(f, out, n * sizeof(float), at, err);
    return read_halves(f, at, t->type == SAFE_BF16, n, out, err);
}
