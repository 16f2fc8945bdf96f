// safetensors_write.c - the writing half of safetensors.h.
#define _POSIX_C_SOURCE 200809L
#include "gpt/safetensors.h"

#include "gpt/jsonscan.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool safewriter_open(SafeWriter *w, const char *path, Error *err) {
    *w = (SafeWriter){.path = str_copy(path)};
    hash64_start(&w->hash);
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd >= 0) return true;
    error_set(err, "%s: cannot create (%s)", path, strerror(errno));
    safewriter_abort(w);
    return false;
}

static void add_json_string(Buf *b, const char *s) {
    buf_add(b, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < 0x20)
            buf_printf(b, "\\u%04x", c);
        else
            buf_add(b, s, 1);
    }
    buf_add(b, "\"", 1);
}

void safewriter_meta(SafeWriter *w, const char *key, const char *value) {
    assert(!w->begun);
    if (w->meta.n) buf_add(&w->meta, ",", 1);
    add_json_string(&w->meta, key);
    buf_add(&w->meta, ":", 1);
    add_json_string(&w->meta, value);
}

void safewriter_declare(SafeWriter *w, const char *name, SafeType type, const uint64_t *shape,
                        int rank) {
    assert(!w->begun && rank >= 0 && rank <= SAFE_MAX_RANK);
    if (w->n++) buf_add(&w->tensors, ",", 1);
    add_json_string(&w->tensors, name);
    buf_printf(&w->tensors, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type_name(type));
    uint64_t bits = (uint64_t)safetensors_type_bits(type);
    for (int d = 0; d < rank; d++) {
        buf_printf(&w->tensors, "%s%" PRIu64, d ? "," : "", shape[d]);
        bits *= shape[d];
    }
    assert(bits % 8 == 0);
    uint64_t end = w->declared + bits / 8;
    buf_printf(&w->tensors, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", w->declared, end);
    w->declared = end;
    buf_add(&w->names, name, strlen(name) + 1);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool check_names(const SafeWriter *w, Error *err) {
    const char **name = mem_alloc(w->n, sizeof *name), *at = w->names.text, *bad = NULL;
    for (size_t i = 0; i < w->n; i++, at += strlen(at) + 1)
        name[i] = at;
    if (w->n) qsort(name, w->n, sizeof *name, compare_text);
    for (size_t i = 0; i < w->n && !bad; i++) {
        bool twice = i && strcmp(name[i - 1], name[i]) == 0;
        if (twice || strcmp(name[i], "__metadata__") == 0) bad = name[i];
    }
    mem_free(name);
    return !bad ||
           error_set(err, "%s: two tensors named '%.80s', or the name is reserved", w->path, bad);
}

static bool put(SafeWriter *w, const void *bytes, size_t n, Error *err) {
    hash64_add(&w->hash, bytes, n);
    for (size_t done = 0; done < n;) {
        size_t piece = min_size(n - done, (size_t)1 << 30);
        ssize_t got = write(w->fd, (const char *)bytes + done, piece);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return error_set(err, "%s: writing failed at byte %" PRIu64 " (%s)", w->path,
                             w->bytes + done, strerror(errno));
        done += (size_t)got;
    }
    w->bytes += n;
    return true;
}

bool safewriter_begin(SafeWriter *w, Error *err) {
    assert(!w->begun);
    w->begun = true;
    Buf header = {0};
    buf_add(&header, "{", 1);
    if (w->meta.n) buf_printf(&header, "\"__metadata__\":{%s}", w->meta.text);
    if (w->meta.n && w->n) buf_add(&header, ",", 1);
    if (w->n) buf_add(&header, w->tensors.text, w->tensors.n);
    buf_add(&header, "}", 1);
    while (header.n % 8)
        buf_add(&header, " ", 1);
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header.n >> (8 * i));
    bool ok = check_names(w, err);
    if (ok && !json_utf8_valid(header.text, header.n))
        ok = error_set(err, "%s: a name or a metadata text is not valid UTF-8", w->path);
    if (ok && header.n > SAFE_MAX_HEADER)
        ok = error_set(err, "%s: the header would have %zu bytes, at most %d are allowed", w->path,
                       header.n, SAFE_MAX_HEADER);
    ok = ok && put(w, length, 8, err) && put(w, header.text, header.n, err);
    buf_free(&header);
    return ok;
}

bool safewriter_write(SafeWriter *w, const void *bytes, size_t n, Error *err) {
    assert(w->begun && n <= w->declared - w->given);
    w->given += n;
    return put(w, bytes, n, err);
}

bool safewriter_close(SafeWriter *w, Error *err) {
    bool ok = w->begun && w->given == w->declared;
    if (!ok)
        error_set(err, "%s: %" PRIu64 " bytes of tensor data given, %" PRIu64 " declared", w->path,
                  w->given, w->declared);
    if (ok && fsync(w->fd))
        ok = error_set(err, "%s: flushing to the disk failed (%s)", w->path, strerror(errno));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) && ok) ok = error_set(err, "%s: closing failed (%s)", w->path, strerror(errno));
    safewriter_abort(w);
    return ok;
}

void safewriter_abort(SafeWriter *w) {
    if (w->path && w->fd >= 0) close(w->fd);
    mem_free(w->path);
    buf_free(&w->meta);
    buf_free(&w->tensors);
    buf_free(&w->names);
    w->path = NULL;
    w->fd = -1;
}
