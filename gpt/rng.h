// rng.h - counter-based random numbers: a value is a pure function of (key, index).
// Initial weights, the order of the data and sampling use nothing else, so they are the same on
// every device, thread count and rank count, and nothing has to be saved to resume.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

// The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64 bits.
static inline uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// 64-bit FNV-1a of bytes; start from RNG_FNV_START to hash, or from an earlier result to go on.
#define RNG_FNV_START 0xCBF29CE484222325u
static inline uint64_t rng_fnv(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

// The key of a named stream.
static inline uint64_t rng_key(uint64_t seed, const char *name) {
    uint64_t h = RNG_FNV_START;
    for (; *name; name++)
        h = rng_fnv(h, name, 1);
    return rng_mix(seed ^ rng_mix(h));
}

static inline uint64_t rng_u64(uint64_t key, uint64_t index) {
    return rng_mix(key + (index + 1) * 0x9E3779B97F4A7C15u);
}

// Uniform in [0, 1), 53 bits.
static inline double rng_uniform(uint64_t key, uint64_t index) {
    return (double)(rng_u64(key, index) >> 11) * 0x1p-53;
}

// Standard normal: Box-Muller on the two 32-bit halves of one draw, each moved to the middle of its
// cell so that the logarithm is finite.
static inline double rng_normal(uint64_t key, uint64_t index) {
    uint64_t x = rng_u64(key, index);
    double u1 = ((double)(x >> 32) + 0.5) * 0x1p-32;
    double u2 = ((double)(x & 0xFFFFFFFFu) + 0.5) * 0x1p-32;
    return sqrt(-2.0 * log(u1)) * cos(6.283185307179586476925 * u2);
}
