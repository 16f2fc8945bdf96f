// tokenizer_parts.h - the inside of a Tokenizer, for the files tokenizer*.c and bpe_train.c only.
// To make one: tokenizer_new, tokenizer_put every token, tokenizer_finish with the merges.
#pragma once

#include "gpt/tokenizer.h"

// What a token is; more than one may hold.
enum {
    TOKEN_MODEL = 1,    // merging can produce it
    TOKEN_FOREIGN = 2,  // its text in the file is not in the byte alphabet: no text gives it
    TOKEN_ADDED = 4,    // looked for in the text before splitting
    TOKEN_SPECIAL = 8,  // added, and looked for only on demand
};

// left and right become out; the earlier in the list, the sooner.
typedef struct Merge {
    int left, right, out;
} Merge;

typedef struct PairSlot {
    int left, right;  // right -1: empty
    int rank;         // index of the merge
} PairSlot;

typedef struct BytesSlot {
    uint32_t tag;  // upper half of the hash
    int id;        // -1: empty
} BytesSlot;

struct Tokenizer {
    SplitKind split;
    bool ignore_merges;  // a piece that is a token as a whole is not merged
    int n_ids, eot;

    Buf text;        // all token bytes, one after another
    size_t *start;   // (n_ids) into text
    int *len;        // (n_ids) 0: no token has this id
    uint8_t *flags;  // (n_ids) TOKEN_*
    bool *is_whole;  // (n_ids) encoding the token's bytes as one piece gives just this token
    int longest;     // bytes of the longest TOKEN_MODEL token

    int byte_id[256];
    BytesSlot *by_bytes;  // TOKEN_MODEL tokens by their bytes; a power of two of slots
    size_t by_bytes_mask;
    PairSlot *pairs;  // merges by their two ids
    size_t pair_mask;
    Merge *merges;  // (n_merges) by rank
    int n_merges;

    int *added;  // (n_added) TOKEN_ADDED ids, longest first
    int n_added;
    bool has_plain_added;  // one of them is not special
    uint8_t starts[256];   // TOKEN_* flags of the added tokens that start with this byte
    uint64_t hash;
};

// --- Making one (tokenizer.c)

Tokenizer *tokenizer_new(SplitKind split, int n_ids);
// Sets the bytes of an id that has none yet; n >= 1. False: the id or the bytes are taken.
bool tokenizer_put(Tokenizer *tok, int id, const char *bytes, size_t n, int flags,
                   const char *where, Error *err);
// Takes the merges over (mem_free by tokenizer_free), builds the tables and checks that every byte
// has a token. Frees the tokenizer and returns NULL with a sentence when something is missing.
Tokenizer *tokenizer_finish(Tokenizer *tok, Merge *merges, int n_merges, const char *where,
                            Error *err);
// The TOKEN_MODEL token with these bytes, or -1.
int tokenizer_find(const Tokenizer *tok, const char *bytes, size_t n);
// Puts every single byte as a token, ids in GPT-2's order from 0.
void tokenizer_put_bytes(Tokenizer *tok);

// The byte alphabet: GPT-2's one printable character for each byte (space is U+0120).
// Appends the characters of bytes[0..n) to out.
void alphabet_write(const char *bytes, size_t n, Buf *out);
// Appends the bytes of the characters; false when one of them is not in the alphabet.
bool alphabet_read(const char *text, size_t n, Buf *out);

// --- Merging (tokenizer_merge.c)

// Memory for merging long pieces, kept between pieces. Start from {0}.
typedef struct MergeScratch {
    int *ids, *next, *prev, *rank;  // (cap)
    uint64_t *heap;                 // (2 * cap)
    size_t cap;
} MergeScratch;
void merge_scratch_free(MergeScratch *s);

// An empty table with room for n_merges pairs.
void tokenizer_pairs_alloc(Tokenizer *tok, int n_merges);
// Enters tok->merges[rank]; false when its pair is there already.
bool tokenizer_pair_add(Tokenizer *tok, int rank);
// Appends the ids of one piece of n <= 2 * SPLIT_LONGEST_RUN + 8 bytes.
void tokenizer_merge_piece(const Tokenizer *tok, const char *piece, size_t n, MergeScratch *s,
                           TokenIds *out);
