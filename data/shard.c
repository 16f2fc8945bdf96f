// shard.c - see shard.h. Format (little-endian), as llm.c and modded-nanogpt have it:
//
//   offset  size  meaning
//   0       4     magic: 20240520 for 2-byte ids, 20240801 for 4-byte ids
//   4       4     version: 1 for 2-byte ids, 7 for 4-byte ids
//   8       4     number of tokens, or -1: it is in the next field
//   12      8     number of tokens, only when offset 8 is -1 (an extension for 2^31 tokens and
//   more,
//                 which llm.c refuses; files of up to 2^31 - 1 tokens never use it)
//   20      1004  not used, 0
//   1024    ...   ids, unsigned
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "data/shard.h"

#include "gpt/rng.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are read without swapping bytes");
_Static_assert(sizeof(off_t) == 8, "offsets are 64-bit");

enum { MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7, CHUNK = 4096 };

// --- Reading

static bool header_check(Shard *s, const int32_t *header, Error *err) {
    if (header[0] == MAGIC_16 && header[1] == VERSION_16)
        s->id_bytes = 2;
    else if (header[0] == MAGIC_32 && header[1] == VERSION_32)
        s->id_bytes = 4;
    else {
        return error_set(err,
                         "%s: is not a token shard: magic %d version %d, expected %d version %d "
                         "(2-byte ids) or %d "
                         "version %d (4-byte ids)",
                         s->path, header[0], header[1], MAGIC_16, VERSION_16, MAGIC_32, VERSION_32);
    }
    int64_t promised = header[2];
    if (promised == -1) memcpy(&promised, header + 3, sizeof promised);
    int64_t body = s->file_bytes - SHARD_HEADER_BYTES;
    if (promised < 0 || promised > INT64_MAX / 4 || promised * s->id_bytes != body) {
        return error_set(
            err,
            "%s: the header promises %lld tokens of %d bytes, the file holds %lld bytes of them",
            s->path, (long long)promised, s->id_bytes, (long long)body);
    }
    s->n_tokens = promised;
    return true;
}

static bool fd_open(const Shard *s, int *fd, int64_t *bytes, Error *err) {
    *fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return error_set(err, "%s: cannot open (%s)", s->path, strerror(errno));
    struct stat st;
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *bytes = st.st_size;
        return true;
    }
    close(*fd);
    *fd = -1;
    return error_set(err, "%s: is not a file", s->path);
}

// Reads exactly n bytes.
static bool read_all(const Shard *s, void *out, size_t n, int64_t offset, Error *err) {
    char *p = out;
    while (n > 0) {
        ssize_t got = pread(s->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return error_set(err, "%s: reading at byte %lld failed (%s)", s->path,
                             (long long)offset, strerror(errno));
        }
        if (got == 0) {
            return error_set(err, "%s: ends at byte %lld, %zu more were expected", s->path,
                             (long long)offset, n);
        }
        p += got;
        n -= (size_t)got;
        offset += got;
    }
    return true;
}

bool shard_open(Shard *s, const char *path, Error *err) {
    int32_t header[SHARD_HEADER_BYTES / 4];
    *s = (Shard){.path = str_copy(path), .fd = -1};
    bool ok = fd_open(s, &s->fd, &s->file_bytes, err);
    if (ok && s->file_bytes < SHARD_HEADER_BYTES) {
        ok = error_set(err, "%s: is not a token shard: %lld bytes, the header alone has %d", path,
                       (long long)s->file_bytes, SHARD_HEADER_BYTES);
    }
    ok = ok && read_all(s, header, sizeof header, 0, err) && header_check(s, header, err);
    if (ok)
        s->header_hash = rng_fnv(RNG_FNV_START, header, sizeof header);
    else
        shard_close(s);
    return ok;
}

void shard_release(Shard *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

bool shard_reopen(Shard *s, Error *err) {
    int64_t bytes;
    if (s->fd >= 0) return true;
    if (!fd_open(s, &s->fd, &bytes, err)) return false;
    if (bytes == s->file_bytes) return true;
    shard_release(s);
    return error_set(err, "%s: has %lld bytes now, it had %lld when it was opened", s->path,
                     (long long)bytes, (long long)s->file_bytes);
}

void shard_close(Shard *s) {
    shard_release(s);
    mem_free(s->path);
    s->path = NULL;
}

bool shard_read(const Shard *s, int64_t first, int64_t n, int n_vocab, int *ids, Error *err) {
    assert(first >= 0 && n >= 0 && first <= s->n_tokens - n && s->fd >= 0);
    // 2-byte ids arrive in the upper half of the output and spread from its front: id i is written
    // to bytes 4i..4i+3, below 2n + 2i + 2, where the next is read.
    size_t bytes = (size_t)n * (size_t)s->id_bytes;
    char *raw = (char *)ids + (size_t)n * sizeof *ids - bytes;
    int64_t offset = SHARD_HEADER_BYTES + first * s->id_bytes;
    if (!read_all(s, raw, bytes, offset, err)) return false;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = 0;
        memcpy(&id, raw + i * s->id_bytes, (size_t)s->id_bytes);
        if (id >= (uint32_t)n_vocab) {
            return error_set(err, "%s: token %lld has the id %u, the vocabulary has %d ids",
                             s->path, (long long)(first + i), (unsigned)id, n_vocab);
        }
        ids[i] = (int)id;
    }
    return true;
}

// --- Writing

// Only what writing has made: the user may have named a device.
static void remove_file(const char *path) {
    if (file_exists(path)) remove(path);
}

static bool writer_fail(ShardWriter *w, Error *err) {
    error_set(err, "%s: writing failed after %lld tokens (%s)", w->path, (long long)w->n_tokens,
              strerror(errno));
    shard_writer_abort(w);
    return false;
}

bool shard_writer_open(ShardWriter *w, const char *path, int id_bytes, Error *err) {
    assert(id_bytes == 2 || id_bytes == 4);
    static const char blank[SHARD_HEADER_BYTES];
    *w = (ShardWriter){.file = fopen(path, "wb"), .path = str_copy(path), .id_bytes = id_bytes};
    if (!w->file) {
        error_set(err, "%s: cannot create (%s)", path, strerror(errno));
        shard_writer_abort(w);
        return false;
    }
    return fwrite(blank, 1, sizeof blank, w->file) == sizeof blank || writer_fail(w, err);
}

bool shard_writer_add(ShardWriter *w, const int *ids, size_t n, Error *err) {
    unsigned char raw[4 * CHUNK];
    size_t width = (size_t)w->id_bytes;
    for (size_t from = 0; from < n; from += CHUNK) {
        size_t m = min_size(n - from, CHUNK);
        for (size_t i = 0; i < m; i++) {
            uint32_t id = (uint32_t)ids[from + i];
            assert(ids[from + i] >= 0 && (width == 4 || id <= UINT16_MAX));
            memcpy(raw + i * width, &id, width);
        }
        if (fwrite(raw, width, m, w->file) != m) return writer_fail(w, err);
        w->n_tokens += (int64_t)m;
    }
    return true;
}

bool shard_writer_close(ShardWriter *w, Error *err) {
    int32_t header[SHARD_HEADER_BYTES / 4] = {0};
    header[0] = w->id_bytes == 2 ? MAGIC_16 : MAGIC_32;
    header[1] = w->id_bytes == 2 ? VERSION_16 : VERSION_32;
    header[2] = w->n_tokens <= SHARD_MAX_TOKENS ? (int32_t)w->n_tokens : -1;
    if (header[2] == -1) memcpy(header + 3, &w->n_tokens, sizeof w->n_tokens);
    // The body is on the disk before the header says that it is.
    bool ok = fflush(w->file) == 0 && fsync(fileno(w->file)) == 0 &&
              fseeko(w->file, 0, SEEK_SET) == 0 &&
              fwrite(header, 1, sizeof header, w->file) == sizeof header && fflush(w->file) == 0 &&
              fsync(fileno(w->file)) == 0;
    if (!ok) return writer_fail(w, err);
    FILE *file = w->file;
    w->file = NULL;
    ok = fclose(file) == 0;
    if (!ok) {
        error_set(err, "%s: closing failed (%s)", w->path, strerror(errno));
        remove_file(w->path);
    }
    shard_writer_abort(w);
    return ok;
}

void shard_writer_abort(ShardWriter *w) {
    if (w->file) {
        fclose(w->file);
        remove_file(w->path);
    }
    mem_free(w->path);
    *w = (ShardWriter){0};
}
