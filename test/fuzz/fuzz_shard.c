// fuzz_shard.c - arbitrary bytes as a token shard, given to the reader and to the loader.
// The bytes before the header's end stand in the input as five numbers, so that short inputs get
// far.
#define _POSIX_C_SOURCE 200809L
#include "data/dataloader.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_some(const char *path, int n_vocab) {
    Error err;
    Shard s;
    if (!shard_open(&s, path, &err)) return;
    int ids[64];
    int64_t n = s.n_tokens < 64 ? s.n_tokens : 64;
    if (s.n_tokens * s.id_bytes > (1 << 24)) abort();  // the file is small
    shard_read(&s, 0, n, n_vocab, ids, &err);
    shard_read(&s, s.n_tokens - n, n, n_vocab, ids, &err);
    shard_close(&s);
}

static void load_some(const char *path, int seq_len, int n_vocab) {
    Error err;
    DataLoaderOptions o = {path, seq_len, n_vocab, 1, true};
    DataLoader *l = dataloader_open(&o, &err);
    if (!l) return;
    int inputs[4 * 16], targets[4 * 16];
    dataloader_prefetch(l, 7, 4);
    dataloader_read(l, 7, 4, inputs, targets, &err);
    dataloader_close(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { HEAD = 20 };
    if (size < HEAD + 2) return 0;
    char path[64];
    snprintf(path, sizeof path, "/tmp/fuzz_shard_%ld.bin", (long)getpid());
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    static const char blank[SHARD_HEADER_BYTES - HEAD];
    // One input in eight has the header itself cut short.
    bool whole = data[1] % 8 != 0;
    fwrite(data + 2, 1, HEAD, f);
    if (whole) fwrite(blank, 1, sizeof blank, f);
    fwrite(data + 2 + HEAD, 1, size - 2 - HEAD, f);
    fclose(f);
    int seq_len = 1 + data[0] % 16, n_vocab = data[1] < 128 ? 65536 : data[1];
    read_some(path, n_vocab);
    load_some(path, seq_len, n_vocab);
    remove(path);
    return 0;
}
