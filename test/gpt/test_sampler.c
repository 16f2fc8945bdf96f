// test_sampler.c - stages, ties, and logits that are not numbers.
#include "gpt/rng.h"
#include "gpt/sampler.h"
#include "test/test.h"

#include <math.h>
#include <string.h>

static const SampleOptions plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static int draw(const SampleOptions *o, const float *logits, int V, double u) {
    Sampler s;
    Error err = {0};
    if (!sampler_init(&s, o, V, &err)) return -2;
    int id = sampler_next(&s, logits, NULL, 0, u, &err);
    sampler_free(&s);
    return id;
}

static void frequencies_follow_the_softmax(TestCtx *t) {
    const float logits[4] = {0, 1, 2, -1};
    double count[4] = {0}, sum = 0, p[4];
    for (int i = 0; i < 4; i++)
        sum += p[i] = exp((double)logits[i]);
    for (int k = 0; k < 20000; k++)
        count[draw(&plain, logits, 4, rng_uniform(5, (uint64_t)k))]++;
    for (int i = 0; i < 4; i++)
        CHECK(t, fabs(count[i] / 20000 - p[i] / sum) <= 0.015);
}

static void temperature_zero_takes_the_lowest_of_tied_ids(TestCtx *t) {
    const float logits[5] = {1, 7, 3, 7, 7};
    SampleOptions o = plain;
    o.temperature = 0;
    CHECK(t, draw(&o, logits, 5, 0.99) == 1);
    o = plain;
    o.top_k = 1;
    CHECK(t, draw(&o, logits, 5, 0.99) == 1);
}

static void top_p_keeps_the_smallest_prefix(TestCtx *t) {
    const float logits[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    SampleOptions o = plain;
    o.top_p = 0.7;
    bool seen[4] = {0};
    for (int k = 0; k < 1000; k++)
        seen[draw(&o, logits, 4, k / 1000.0)] = true;
    CHECK(t, seen[0] && seen[1] && !seen[2] && !seen[3]);
    o.top_p = 1e-9;
    CHECK(t, draw(&o, logits, 4, 0.999) == 0);
}

static void min_p_is_relative_to_the_largest(TestCtx *t) {
    const float logits[3] = {logf(0.6f), logf(0.3f), logf(0.1f)};
    SampleOptions o = plain;
    o.min_p = 0.4;
    bool seen[3] = {0};
    for (int k = 0; k < 1000; k++)
        seen[draw(&o, logits, 3, k / 1000.0)] = true;
    CHECK(t, seen[0] && seen[1] && !seen[2]);
    o.min_p = 1;
    CHECK(t, draw(&o, logits, 3, 0.999) == 0);
}

static void repetition_penalty_counts_an_id_once(TestCtx *t) {
    const float logits[3] = {2, -2, 1};
    const int history[4] = {0, 0, 0, 1};
    SampleOptions o = plain;
    o.repetition_penalty = 2;
    Sampler s;
    Error err = {0};
    CHECK(t, sampler_init(&s, &o, 3, &err));
    sampler_next(&s, logits, history, 4, 0, &err);
    CHECK(t, s.logits[0] == 1 && s.logits[1] == -4 && s.logits[2] == 1);
    s.o.repeat_window = 1;
    sampler_next(&s, logits, history, 4, 0, &err);
    CHECK(t, s.logits[0] == 2 && s.logits[1] == -4 && s.logits[2] == 1);
    sampler_free(&s);
}

static void logits_that_are_not_numbers_are_never_chosen(TestCtx *t) {
    const double temperatures[] = {0, 1e-6, 1, 1e6}, top_ps[] = {1e-9, 1}, min_ps[] = {0, 1};
    const int64_t top_ks[] = {0, 1, 10};
    const float cases[][5] = {{NAN, NAN, NAN, NAN, NAN},
                              {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
                              {NAN, -INFINITY, INFINITY, 3, NAN},
                              {1, 2, NAN, 4, 5},
                              {INFINITY, 1, 2, 3, 4}};
    for (int c = 0; c < 5; c++) {
        for (int i = 0; i < 4 * 2 * 2 * 3; i++) {
            SampleOptions o = {.temperature = temperatures[i % 4],
                               .top_p = top_ps[i / 4 % 2],
                               .min_p = min_ps[i / 8 % 2],
                               .top_k = top_ks[i / 16],
                               .repetition_penalty = 1};
            int id = draw(&o, cases[c], 5, 0.7);
            if (c < 2)
                CHECK(t, id == -1);
            else
                CHECK(t, id >= 0 && isfinite(cases[c][id]));
        }
    }
    const float one[1] = {-3};
    CHECK(t, draw(&plain, one, 1, 0.5) == 0);
}

static void options_out_of_range_are_refused(TestCtx *t) {
    const SampleOptions bad[] = {
        {.temperature = -1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1.5, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = NAN, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .repetition_penalty = 0},
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Sampler s;
        Error err = {0};
        CHECK(t, !sampler_init(&s, &bad[i], 4, &err) && err.text[0]);
    }
}

TEST_MAIN({"frequencies_follow_the_softmax", frequencies_follow_the_softmax},
          {"temperature_zero_takes_the_lowest_of_tied_ids",
           temperature_zero_takes_the_lowest_of_tied_ids},
          {"top_p_keeps_the_smallest_prefix", top_p_keeps_the_smallest_prefix},
          {"min_p_is_relative_to_the_largest", min_p_is_relative_to_the_largest},
          {"repetition_penalty_counts_an_id_once", repetition_penalty_counts_an_id_once},
          {"logits_that_are_not_numbers_are_never_chosen",
           logits_that_are_not_numbers_are_never_chosen},
          {"options_out_of_range_are_refused", options_out_of_range_are_refused})
