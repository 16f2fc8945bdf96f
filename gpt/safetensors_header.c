// safetensors_header.c - see safetensors_header.h.
// The checks follow the reference reader's order: UTF-8, JSON of the exact structure, offsets that
// leave no hole and no overlap, sizes that equal shape times type without overflow, exact length.
// Stricter than it: a key given twice is an error, NUL in a name too.
#include "gpt/safetensors_header.h"

#include "gpt/jsonscan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct Parser {
    Safetensors *f;
    JsonScan scan;
    size_t text_used;  // of f->text
    Error *err;        // holds the sentence when scan.why is empty
} Parser;

// Decodes the next string to the free end of the text; keeps it there when `keep`.
static const char *parse_text(Parser *p, bool keep) {
    char *out = p->f->text + p->text_used;
    size_t length;
    if (!json_string(&p->scan, out, &length)) return NULL;
    if (keep) p->text_used += length + 1;
    return out;
}

static bool parse_meta(Parser *p) {
    Safetensors *f = p->f;
    JsonScan *s = &p->scan;
    if (!json_expect(s, '{', "expected '{' after __metadata__")) return false;
    if (json_take(s, '}')) return true;
    do {
        const char *key = parse_text(p, true), *value = NULL;
        if (key && json_expect(s, ':', "expected ':'")) value = parse_text(p, true);
        if (!value) return false;
        if (f->n_meta == f->meta_cap) {
            size_t cap = 2 * f->meta_cap + 8;
            f->meta = mem_grow(f->meta, f->n_meta, cap, sizeof *f->meta);
            f->meta_cap = cap;
        }
        f->meta[f->n_meta++] = (SafeMeta){key, value};
    } while (json_take(s, ','));
    return json_expect(s, '}', "expected ',' or '}' in __metadata__");
}

static bool parse_shape(JsonScan *s, SafeTensor *t) {
    if (!json_expect(s, '[', "expected '[' before a shape")) return false;
    if (json_take(s, ']')) return true;
    do {
        if (t->rank == SAFE_MAX_RANK) return json_fail(s, "a shape has more than 8 dimensions");
        if (!json_u64(s, &t->shape[t->rank++])) return false;
    } while (json_take(s, ','));
    return json_expect(s, ']', "expected ',' or ']' in a shape");
}

static bool parse_offsets(JsonScan *s, SafeTensor *t) {
    return json_expect(s, '[', "expected '[' before data_offsets") && json_u64(s, &t->begin) &&
           json_expect(s, ',', "data_offsets must hold two integers") && json_u64(s, &t->end) &&
           json_expect(s, ']', "data_offsets must hold two integers");
}

static bool parse_type(Parser *p, SafeTensor *t) {
    const char *name = parse_text(p, false);
    if (!name) return false;
    for (int i = 0; i < N_SAFE_TYPES; i++) {
        if (strcmp(name, safetensors_type_name(i)) != 0) continue;
        t->type = i;
        return true;
    }
    return error_set(p->err, "%s: tensor '%.80s' has the unknown dtype '%.20s'", p->f->path,
                     t->name, name);
}

// One {"dtype":..,"shape":..,"data_offsets":..}; other fields are skipped.
static bool parse_entry(Parser *p, SafeTensor *t) {
    static const char *const field[] = {"dtype", "shape", "data_offsets"};
    JsonScan *s = &p->scan;
    bool seen[3] = {false};
    if (!json_expect(s, '{', "expected '{' before a tensor")) return false;
    if (!json_take(s, '}')) {
        do {
            const char *key = parse_text(p, false);
            if (!key || !json_expect(s, ':', "expected ':'")) return false;
            int k = 0;
            while (k < 3 && strcmp(key, field[k]) != 0)
                k++;
            if (k < 3 && seen[k]) {
                return error_set(p->err, "%s: duplicate key '%s' in tensor '%.80s'", p->f->path,
                                 field[k], t->name);
            }
            if (k < 3) seen[k] = true;
            bool ok = k == 0   ? parse_type(p, t)
                      : k == 1 ? parse_shape(s, t)
                      : k == 2 ? parse_offsets(s, t)
                               : json_skip(s, 2);
            if (!ok) return false;
        } while (json_take(s, ','));
        if (!json_expect(s, '}', "expected ',' or '}' in a tensor")) return false;
    }
    for (int k = 0; k < 3; k++) {
        if (seen[k]) continue;
        return error_set(p->err, "%s: tensor '%.80s' lacks the field '%s'", p->f->path, t->name,
                         field[k]);
    }
    return true;
}

static bool parse_members(Parser *p) {
    Safetensors *f = p->f;
    bool meta_seen = false;
    if (!json_expect(&p->scan, '{', "expected '{'")) return false;
    if (json_take(&p->scan, '}')) return true;
    do {
        const char *key = parse_text(p, true);
        if (!key || !json_expect(&p->scan, ':', "expected ':'")) return false;
        if (strcmp(key, "__metadata__") == 0) {
            if (meta_seen) return error_set(p->err, "%s: duplicate key '__metadata__'", f->path);
            meta_seen = true;
            if (!parse_meta(p)) return false;
            continue;
        }
        if (f->n == SAFE_MAX_TENSORS) return json_fail(&p->scan, "more than 1000000 tensors");
        if (f->n == f->cap) {
            size_t cap = 2 * f->cap + 16;
            f->tensor = mem_grow(f->tensor, f->n, cap, sizeof *f->tensor);
            f->cap = cap;
        }
        SafeTensor *t = &f->tensor[f->n++];
        *t = (SafeTensor){.name = key};
        if (!parse_entry(p, t)) return false;
    } while (json_take(&p->scan, ','));
    return json_expect(&p->scan, '}', "expected ',' or '}' after a tensor");
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The first of n texts that occurs twice, or NULL. Sorts them.
static const char *find_twice(const char **text, size_t n) {
    if (n) qsort(text, n, sizeof *text, compare_text);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(text[i - 1], text[i]) == 0) return text[i];
    }
    return NULL;
}

static bool check_names(const Safetensors *f, Error *err) {
    size_t n = f->n > f->n_meta ? f->n : f->n_meta;
    const char **text = mem_alloc(n, sizeof *text);
    for (size_t i = 0; i < f->n; i++)
        text[i] = f->tensor[i].name;
    const char *twice = find_twice(text, f->n);
    if (!twice) {
        for (size_t i = 0; i < f->n_meta; i++)
            text[i] = f->meta[i].key;
        twice = find_twice(text, f->n_meta);
    }
    mem_free(text);
    return !twice || error_set(err, "%s: duplicate key '%.80s' in the header", f->path, twice);
}

static int compare_offsets(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

// Each tensor starts where the one before ended.
static bool check_offsets(const Safetensors *f, Error *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        const SafeTensor *t = &f->tensor[i];
        if (t->begin != at) {
            return error_set(err,
                             "%s: the data of tensor '%.80s' starts at byte %" PRIu64
                             ", expected %" PRIu64 " (%s)",
                             f->path, t->name, t->begin, at,
                             t->begin < at ? "tensors overlap" : "a hole between tensors");
        }
        if (t->end < t->begin) {
            return error_set(err, "%s: tensor '%.80s' ends at byte %" PRIu64 " before its start",
                             f->path, t->name, t->end);
        }
        at = t->end;
    }
    return true;
}

static bool check_size(const Safetensors *f, const SafeTensor *t, Error *err) {
    uint64_t width = (uint64_t)safetensors_type_bits(t->type);
    uint64_t count = 1;  // elements, then bits
    for (int d = 0; d <= t->rank; d++) {
        // In the order of the reference, width last: what overflows before a dimension of 0 counts.
        uint64_t factor = d < t->rank ? t->shape[d] : width;
        if (factor && count > UINT64_MAX / factor) {
            return error_set(err, "%s: the shape of tensor '%.80s' overflows 64 bits", f->path,
                             t->name);
        }
        count *= factor;
    }
    if (count % 8) {
        return error_set(err, "%s: tensor '%.80s' of %s does not end on a whole byte", f->path,
                         t->name, safetensors_type_name(t->type));
    }
    if (count / 8 != t->end - t->begin) {
        return error_set(err,
                         "%s: the shape of tensor '%.80s' needs %" PRIu64
                         " bytes, its data_offsets span %" PRIu64,
                         f->path, t->name, count / 8, t->end - t->begin);
    }
    return true;
}

static bool check_layout(Safetensors *f, uint64_t data_bytes, Error *err) {
    if (f->n) qsort(f->tensor, f->n, sizeof *f->tensor, compare_offsets);
    if (!check_offsets(f, err)) return false;
    for (size_t i = 0; i < f->n; i++) {
        if (!check_size(f, &f->tensor[i], err)) return false;
    }
    uint64_t end = f->n ? f->tensor[f->n - 1].end : 0;
    if (end == data_bytes) return true;
    return error_set(err,
                     "%s: the header promises %" PRIu64 " bytes of data, the file holds %" PRIu64
                     " (incomplete or with bytes too many)",
                     f->path, end, data_bytes);
}

typedef struct NameIndex {
    const char *name;
    uint32_t index;
} NameIndex;

static void index_names(Safetensors *f) {
    NameIndex *sorted = mem_alloc(f->n, sizeof *sorted);
    for (size_t i = 0; i < f->n; i++)
        sorted[i] = (NameIndex){f->tensor[i].name, (uint32_t)i};
    if (f->n) qsort(sorted, f->n, sizeof *sorted, compare_text);
    f->by_name = mem_alloc(f->n, sizeof *f->by_name);
    for (size_t i = 0; i < f->n; i++)
        f->by_name[i] = sorted[i].index;
    mem_free(sorted);
}

bool safetensors_parse(Safetensors *f, const char *header, size_t n, uint64_t data_bytes,
                       Error *err) {
    if (!json_utf8_valid(header, n))
        return error_set(err, "%s: the header is not valid UTF-8", f->path);
    f->text = mem_alloc(n + 1, 1);
    Error said = {{0}};
    Parser p = {.f = f, .scan = {.text = header, .n = n}, .err = &said};
    bool ok = parse_members(&p) && json_end(&p.scan);
    if (!ok && said.text[0]) {
        *err = said;
        return false;
    }
    if (!ok) {
        return error_set(err, "%s: the header is invalid JSON for safetensors: %s at byte %zu",
                         f->path, p.scan.why, 8 + p.scan.at);
    }
    if (!check_names(f, err) || !check_layout(f, data_bytes, err)) return false;
    index_names(f);
    return true;
}
