// shard.h - files of token ids in llm.c's .bin format, read at any place and written in order.
// Counts and offsets are 64-bit everywhere. Nothing is mapped or cached: a read is one pread.
#pragma once

#include "gpt/util.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_HEADER_BYTES = 1024 };
// More tokens than this do not fit the count of llm.c's header; see shard.c.
#define SHARD_MAX_TOKENS INT64_C(2147483647)

typedef struct Shard {
    char *path;    // owned
    int fd;        // -1 while released
    int id_bytes;  // 2 or 4
    int64_t n_tokens, file_bytes;
    uint64_t header_hash;
} Shard;

// Opens a file and checks magic, version and count against its size. False leaves nothing open.
bool shard_open(Shard *s, const char *path, Error *err);
void shard_close(Shard *s);

// Gives the file descriptor back and takes it again, for programs with more shards than a process
// may have open files. False when the file is gone or has another size.
void shard_release(Shard *s);
bool shard_reopen(Shard *s, Error *err);

// Reads tokens first .. first + n - 1 into ids (n). False with a sentence when the file ends early,
// or when an id is n_vocab or more. Several threads may read one open shard.
bool shard_read(const Shard *s, int64_t first, int64_t n, int n_vocab, int *ids, Error *err);

typedef struct ShardWriter {
    FILE *file;
    char *path;  // owned
    int id_bytes;
    int64_t n_tokens;
} ShardWriter;

// Writes a file of 2-byte or 4-byte ids. The header comes last, so a file whose writing was cut off
// is not a shard. Every failure (disk full) closes and removes the file.
bool shard_writer_open(ShardWriter *w, const char *path, int id_bytes, Error *err);
bool shard_writer_add(ShardWriter *w, const int *ids, size_t n, Error *err);
bool shard_writer_close(ShardWriter *w, Error *err);
// Closes and removes the file; does nothing when none is open.
void shard_writer_abort(ShardWriter *w);

#ifdef __cplusplus
}
#endif
