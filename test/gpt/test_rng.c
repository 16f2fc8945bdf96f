// test_rng.c - gpt/rng: known answers, so that seeds mean the same for ever, and statistics.
#include "gpt/rng.h"
#include "test/test.h"

#include <stdlib.h>
#include <string.h>

static void streams_are_splitmix64(TestCtx *t) {
    // The reference generator of Steele, Lea and Flood, seed 0.
    static const uint64_t want[] = {0xE220A8397B1DCDAFu, 0x6E789E6AA1B965F4u, 0x06C45D188009454Fu,
                                    0xF88BB8A8724C81ECu};
    for (uint64_t i = 0; i < 4; i++)
        CHECK(t, rng_u64(0, i) == want[i]);
}

static void hashes_are_fnv_1a(TestCtx *t) {
    CHECK(t, rng_fnv(RNG_FNV_START, "", 0) == 0xCBF29CE484222325u);
    CHECK(t, rng_fnv(RNG_FNV_START, "a", 1) == 0xAF63DC4C8601EC8Cu);
    CHECK(t, rng_fnv(RNG_FNV_START, "foobar", 6) == 0x85944171F73967E8u);
    CHECK(t, rng_fnv(rng_fnv(RNG_FNV_START, "foo", 3), "bar", 3) == 0x85944171F73967E8u);
}

static void keys_and_draws_have_known_values(TestCtx *t) {
    static const struct {
        uint64_t seed;
        const char *name;
        uint64_t key, first, far;  // far: draw 2^40
    } known[] = {
        {0u, "", 0x8932C885A3FE960Eu, 0x7261E9031E12A9D7u, 0x8F1083BCC9C985D4u},
        {1u, "wte", 0xB46AC681FCBEB37Au, 0x9F36C478972E045Cu, 0xC6F67CF3BFF44C6Cu},
        {7u, "h.3.attn.wq#proj0", 0x1ECDFCD706EBAE39u, 0x326EBD9AAB1FB9FCu, 0x43B432EE82046641u},
        {9007199254740992u, "sample", 0x889377E877BD272Fu, 0x9846BF6A80EF1CA7u,
         0xEE80C7F4306CD7CDu},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint64_t key = rng_key(known[i].seed, known[i].name);
        CHECK_MSG(t,
                  key == known[i].key && rng_u64(key, 0) == known[i].first &&
                      rng_u64(key, UINT64_C(1) << 40) == known[i].far,
                  "'%s'", known[i].name);
    }
    uint64_t key = rng_key(1, "wte");
    CHECK(t, rng_uniform(key, 0) == 0.6219294351969253);
    CHECK(t, fabs(rng_normal(key, 0) - -0.821091152647997) <= 1e-12);
    CHECK(t, rng_uniform(key, 1) == 0.08736399613585422);
    CHECK(t, fabs(rng_normal(key, 1) - -0.018930210237040102) <= 1e-12);
    CHECK(t, rng_uniform(key, 12345) == 0.8591023470407484);
    CHECK(t, fabs(rng_normal(key, 12345) - -0.530995991134719) <= 1e-12);
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

// The largest distance between the sorted sample's distribution and the uniform one (Kolmogorov).
static double distance(double *u, size_t n) {
    double most = 0;
    qsort(u, n, sizeof *u, by_value);
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(u[i] - (double)i / (double)n));
        most = fmax(most, fabs(u[i] - (double)(i + 1) / (double)n));
    }
    return most;
}

enum { N = 1 << 17 };

static double normal_cdf(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}

// sqrt(n) * distance is above 2 once in 1500 samples; seeds are fixed, so these pass for ever.
static void draws_follow_their_distributions(TestCtx *t) {
    double *u = mem_alloc(N, sizeof *u);
    for (uint64_t key = 0; key < 4; key++) {
        for (size_t i = 0; i < N; i++)
            u[i] = rng_uniform(key, i);
        CHECK_MSG(t, distance(u, N) * sqrt(N) < 2, "uniform, key %d", (int)key);
        CHECK(t, u[0] >= 0 && u[N - 1] < 1);
        for (size_t i = 0; i < N; i++)
            u[i] = normal_cdf(rng_normal(key, i));
        CHECK_MSG(t, distance(u, N) * sqrt(N) < 2, "normal, key %d", (int)key);
    }
    mem_free(u);
}

// Neighbours in the index, in the key and in the name: a correlation of n samples has the standard
// deviation 1/sqrt(n).
static void neighbours_are_not_correlated(TestCtx *t) {
    double index = 0, key = 0, name = 0, seed = 0, square = 0;
    uint64_t a = rng_key(1, "h.0.attn.wq"), b = rng_key(1, "h.1.attn.wq"),
             c = rng_key(2, "h.0.attn.wq");
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(a, i);
        index += x * rng_normal(a, i + 1);
        key += x * rng_normal(a + 1, i);
        name += x * rng_normal(b, i);
        seed += x * rng_normal(c, i);
        square += x * x;
    }
    double bound = 4 / sqrt(N);
    CHECK_MSG(t, fabs(index / square) < bound, "index %g", index / square);
    CHECK_MSG(t, fabs(key / square) < bound, "key %g", key / square);
    CHECK_MSG(t, fabs(name / square) < bound, "name %g", name / square);
    CHECK_MSG(t, fabs(seed / square) < bound, "seed %g", seed / square);
}

static void every_bit_is_set_half_the_time(TestCtx *t) {
    int set[64] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint64_t x = rng_u64(rng_key(1, "bits"), i);
        for (int b = 0; b < 64; b++)
            set[b] += (int)(x >> b & 1);
    }
    for (int b = 0; b < 64; b++)
        CHECK_MSG(t, fabs(set[b] - N / 2.0) < 4 * sqrt(N) / 2, "bit %d: %d", b, set[b]);
}

TEST_MAIN({"streams_are_splitmix64", streams_are_splitmix64},
          {"hashes_are_fnv_1a", hashes_are_fnv_1a},
          {"keys_and_draws_have_known_values", keys_and_draws_have_known_values},
          {"draws_follow_their_distributions", draws_follow_their_distributions},
          {"neighbours_are_not_correlated", neighbours_are_not_correlated},
          {"every_bit_is_set_half_the_time", every_bit_is_set_half_the_time})
