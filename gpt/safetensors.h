// safetensors.h - reads and writes the tensor file format of Hugging Face (safetensors 0.4-0.8).
// The reader trusts nothing: every number of the header is checked before it sizes or addresses
// anything. The writer streams: declare all tensors, then give their bytes in the same order.
// Neither maps memory nor knows models. One file only; no index of shards.
#pragma once

#include "gpt/hash64.h"
#include "gpt/util.h"

typedef enum SafeType {
    SAFE_F32,
    SAFE_BF16,
    SAFE_F16,  // these three can be read as floats; the others are known by size
    SAFE_BOOL,
    SAFE_U8,
    SAFE_I8,
    SAFE_F8_E4M3,
    SAFE_F8_E5M2,
    SAFE_F8_E8M0,
    SAFE_F8_E4M3FNUZ,
    SAFE_F8_E5M2FNUZ,
    SAFE_I16,
    SAFE_U16,
    SAFE_I32,
    SAFE_U32,
    SAFE_I64,
    SAFE_U64,
    SAFE_F64,
    SAFE_C64,
    SAFE_F4,
    SAFE_F6_E2M3,
    SAFE_F6_E3M2,
    N_SAFE_TYPES,
    SAFE_FLOAT = -1  // in a request: F32, BF16 or F16
} SafeType;

enum {
    SAFE_MAX_RANK = 8,
    SAFE_MAX_TENSORS = 1000000,
    SAFE_MAX_HEADER = 100000000  // bytes, the limit of the reference reader
};

const char *safetensors_type_name(SafeType type);
int safetensors_type_bits(SafeType type);

typedef struct SafeTensor {
    const char *name;
    SafeType type;
    int rank;  // 0: one element
    uint64_t shape[SAFE_MAX_RANK];
    uint64_t begin, end;  // bytes behind the header
} SafeTensor;

typedef struct SafeMeta {
    const char *key, *value;
} SafeMeta;

// An open file. Read the fields, leave changing them to the functions below.
typedef struct Safetensors {
    char *path;
    int fd;
    uint64_t data_at;    // where the data starts in the file
    SafeTensor *tensor;  // (n), in the order of their data
    size_t n, cap;
    uint32_t *by_name;  // (n), indices sorted by name
    SafeMeta *meta;     // (n_meta), in the order of the header
    size_t n_meta, meta_cap;
    char *text;  // holds all names, keys and values
} Safetensors;

// Opens and checks everything but the tensor data. On failure nothing stays open and nothing has to
// be freed. The file stays open until safetensors_close, so replacing it on disk changes nothing.
bool safetensors_open(Safetensors *f, const char *path, Error *err);
void safetensors_close(Safetensors *f);

// The tensor, or NULL.
const SafeTensor *safetensors_get(const Safetensors *f, const char *name);
// The tensor with exactly this type and shape; NULL and a sentence when the file has none such.
const SafeTensor *safetensors_find(const Safetensors *f, const char *name, SafeType type,
                                   const uint64_t *shape, int rank, Error *err);
// The value of a __metadata__ key, or NULL.
const char *safetensors_meta(const Safetensors *f, const char *key);

uint64_t safetensors_count(const SafeTensor *t);  // elements
// Elements first .. first+n of a F32, BF16 or F16 tensor as fp32 into out (n), row-major.
bool safetensors_read(const Safetensors *f, const SafeTensor *t, uint64_t first, size_t n,
                      float *out, Error *err);

// --- writing. Zero-initialise, open, add metadata, declare tensors, begin, write, close.
typedef struct SafeWriter {
    char *path;
    int fd;
    bool begun;
    Buf meta, tensors;         // inner text of both parts of the header
    Buf names;                 // each name with its NUL
    size_t n;                  // tensors declared
    uint64_t declared, given;  // bytes of tensor data
    Hash64 hash;               // of the file so far
    uint64_t bytes;            // length of the file so far
} SafeWriter;

// Creates or empties the file: never give it the place of a file that must survive a crash, but a
// name beside it to be renamed.
bool safewriter_open(SafeWriter *w, const char *path, Error *err);
void safewriter_meta(SafeWriter *w, const char *key, const char *value);
// Wider types first keeps every tensor aligned to its element.
void safewriter_declare(SafeWriter *w, const char *name, SafeType type, const uint64_t *shape,
                        int rank);
// Writes the header. Names that are not UTF-8 or occur twice are errors.
bool safewriter_begin(SafeWriter *w, Error *err);
// The next bytes of the data; tensors may be given in pieces.
bool safewriter_write(SafeWriter *w, const void *bytes, size_t n, Error *err);
// Flushes to the disk and closes; w->bytes and w->hash then describe the file. An error when the
// data is not as long as declared.
bool safewriter_close(SafeWriter *w, Error *err);
// Closes after a failure; does nothing after safewriter_close. The file is the caller's to remove.
void safewriter_abort(SafeWriter *w);
