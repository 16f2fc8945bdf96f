// test_hash64.c - gpt/hash64: fixed values, independence of the cutting, sensitivity to one bit.
#include "test/test.h"

#include "gpt/hash64.h"

#include <string.h>

static void fill(unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 37 + (i >> 8));
}

// Files on users' disks carry these values: the function may never change.
static void the_values_are_fixed(TestCtx *t) {
    unsigned char p[1000];
    fill(p, sizeof p);
    CHECK_MSG(t, hash64_of("", 0) == 0x8e60662ef0a41b2bu, "found %016llx",
              (unsigned long long)hash64_of("", 0));
    CHECK_MSG(t, hash64_of("a", 1) == 0x5aaaf5623fe8b2eeu, "found %016llx",
              (unsigned long long)hash64_of("a", 1));
    CHECK_MSG(t, hash64_of(p, sizeof p) == 0x2b382ca959fc490bu, "found %016llx",
              (unsigned long long)hash64_of(p, sizeof p));
}

static void pieces_give_the_hash_of_the_whole(TestCtx *t) {
    unsigned char p[300];
    fill(p, sizeof p);
    for (size_t n = 0; n <= sizeof p; n += 7) {
        for (size_t step = 1; step < 70; step += 3) {
            Hash64 h;
            hash64_start(&h);
            for (size_t at = 0; at < n; at += step)
                hash64_add(&h, p + at, n - at < step ? n - at : step);
            CHECK_MSG(t, hash64_value(&h) == hash64_of(p, n), "%zu bytes in steps of %zu", n, step);
        }
    }
}

static void every_bit_and_every_pair_of_top_bits_counts(TestCtx *t) {
    unsigned char p[96];
    fill(p, sizeof p);
    uint64_t whole = hash64_of(p, sizeof p);
    for (size_t bit = 0; bit < 8 * sizeof p; bit++) {
        p[bit / 8] ^= (unsigned char)(1u << bit % 8);
        CHECK_MSG(t, hash64_of(p, sizeof p) != whole, "bit %zu", bit);
        p[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    // A plain multiply-xor chain over words is blind to two flipped top bits.
    for (size_t word = 1; word < sizeof p / 8; word++) {
        p[7] ^= 0x80;
        p[8 * word + 7] ^= 0x80;
        CHECK_MSG(t, hash64_of(p, sizeof p) != whole, "top bits of words 0 and %zu", word);
        p[7] ^= 0x80;
        p[8 * word + 7] ^= 0x80;
    }
    CHECK(t, hash64_of(p, sizeof p) == whole);
}

static void length_counts_even_for_zeros(TestCtx *t) {
    unsigned char zeros[130];
    uint64_t seen[131];
    memset(zeros, 0, sizeof zeros);
    for (size_t n = 0; n <= sizeof zeros; n++) {
        seen[n] = hash64_of(zeros, n);
        for (size_t m = 0; m < n; m++)
            CHECK_MSG(t, seen[m] != seen[n], "%zu and %zu zeros", m, n);
    }
}

TEST_MAIN({"the_values_are_fixed", the_values_are_fixed},
          {"pieces_give_the_hash_of_the_whole", pieces_give_the_hash_of_the_whole},
          {"every_bit_and_every_pair_of_top_bits_counts",
           every_bit_and_every_pair_of_top_bits_counts},
          {"length_counts_even_for_zeros", length_counts_even_for_zeros})
