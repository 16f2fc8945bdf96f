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

// Writes the file that the input stands for.
static bool write_file(const char *path, const uint8_t *data, size_t size) {
    enum { FRONT = 20 };
    static const char blank[SHARD_HEADER_BYTES - FRONT];
    bool compact = size < SHARD_HEADER_BYTES;
    if (compact && size < FRONT + 2) return false;
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    if (compact) {
        fwrite(data + 2, 1, FRONT, f);
        // One input in eight has the header itself cut short.
        if (data[1] % 8) fwrite(blank, 1, sizeof blank, f);
        data += FRONT + 2;
        size -= FRONT + 2;
    }
    fwrite(data, 1, size, f);
    return fclose(f) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/fuzz_shard_%ld.bin", (long)getpid());
    if (!write_file(path, data, size)) return 0;
    int seq_len = 1 + data[0] % 16, n_vocab = data[1] < 128 ? 65536 : data[1];
    read_some(path, n_vocab);
    load_some(path, seq_len, n_vocab);
    remove(path);
    return 0;
}
