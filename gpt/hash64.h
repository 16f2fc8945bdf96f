// hash64.h - a 64-bit hash of file contents, fed in pieces; finds damage, does not resist
// attackers. Four lanes of 8 little-endian bytes, each multiplied and rotated, so that it runs at
// memory speed; the result depends on the bytes alone, not on how they were cut into pieces. Every
// single-bit change alters the hash, because each step is a bijection of its lane.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HASH64_BLOCK = 32 };

typedef struct Hash64 {
    uint64_t lane[4];
    uint64_t bytes;                    // fed so far
    unsigned char rest[HASH64_BLOCK];  // the first bytes % HASH64_BLOCK wait for a whole block
} Hash64;

void hash64_start(Hash64 *h);
void hash64_add(Hash64 *h, const void *bytes, size_t n);
// The hash of everything fed so far; feeding may go on.
uint64_t hash64_value(const Hash64 *h);
// The hash of one piece.
uint64_t hash64_of(const void *bytes, size_t n);
