// hash64.c - see hash64.h.
#include "gpt/hash64.h"

#include "gpt/rng.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the hash and the file formats are little-endian; this machine is not"
#endif

// Odd, with about half of the bits set: digits of the fractional parts of sqrt(2) and sqrt(3).
#define MIX_IN  0x6A09E667F3BCC909u
#define MIX_OUT 0xBB67AE8584CAA73Bu

static uint64_t rotate_left(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

static uint64_t lane_step(uint64_t lane, const unsigned char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return rotate_left(lane + word * MIX_IN, 31) * MIX_OUT;
}

// Lanes live in locals: one dependent chain each, four in flight.
static const unsigned char *blocks_add(uint64_t lane[4], const unsigned char *p, size_t n_blocks) {
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (size_t i = 0; i < n_blocks; i++, p += HASH64_BLOCK) {
        a = lane_step(a, p);
        b = lane_step(b, p + 8);
        c = lane_step(c, p + 16);
        d = lane_step(d, p + 24);
    }
    lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
    return p;
}

void hash64_start(Hash64 *h) {
    *h = (Hash64){.lane = {MIX_IN + MIX_OUT, MIX_IN, MIX_OUT, MIX_OUT - MIX_IN}};
}

void hash64_add(Hash64 *h, const void *bytes, size_t n) {
    if (!n) return;
    const unsigned char *p = bytes;
    size_t held = (size_t)(h->bytes % HASH64_BLOCK);
    h->bytes += n;
    if (held) {
        size_t take = HASH64_BLOCK - held < n ? HASH64_BLOCK - held : n;
        memcpy(h->rest + held, p, take);
        p += take;
        n -= take;
        if (held + take < HASH64_BLOCK) return;
        blocks_add(h->lane, h->rest, 1);
    }
    p = blocks_add(h->lane, p, n / HASH64_BLOCK);
    memcpy(h->rest, p, n % HASH64_BLOCK);
}

uint64_t hash64_value(const Hash64 *h) {
    uint64_t v = rng_mix(h->bytes ^ MIX_IN);
    for (int i = 0; i < 4; i++)
        v = rng_mix(rotate_left(v, 17) ^ h->lane[i]);
    return rng_mix(v ^ rng_fnv(RNG_FNV_START, h->rest, (size_t)(h->bytes % HASH64_BLOCK)));
}

uint64_t hash64_of(const void *bytes, size_t n) {
    Hash64 h;
    hash64_start(&h);
    hash64_add(&h, bytes, n);
    return hash64_value(&h);
}
