// test_schedule.c - gpt/schedule: end points, shapes, and runs of every awkward length.
#include "gpt/schedule.h"
#include "test/test.h"

#include <math.h>

static const char *const kind_name[] = {"constant", "cosine", "linear", "wsd"};
enum { N_KIND = 4 };

static Config config(int kind, int64_t steps, int64_t warmup, double final) {
    Config c;
    config_default(&c);
    c.schedule.kind = kind;
    c.train.steps = steps;
    c.schedule.warmup_steps = warmup;
    c.schedule.final_lr = final;
    return c;
}

static void expect(TestCtx *t, const Config *c, int64_t step, double want) {
    double f = schedule_factor(c, step);
    CHECK_MSG(t, fabs(f - want) <= 1e-12,
              "%s, %lld steps, warmup %lld: step %lld has %.15g, not "
              "%.15g",
              kind_name[c->schedule.kind], (long long)c->train.steps,
              (long long)c->schedule.warmup_steps, (long long)step, f, want);
}

static void warmup_rises_linearly_to_the_peak(TestCtx *t) {
    for (int kind = 0; kind < N_KIND; kind++) {
        Config c = config(kind, 1000, 8, 0.1);
        expect(t, &c, 0, 0.125);
        expect(t, &c, 3, 0.5);
        expect(t, &c, 7, 1);
        expect(t, &c, 8, 1);
    }
}

// The end of a run is behind its last step, so that the last step still learns.
static void shapes_pass_through_known_points(TestCtx *t) {
    Config c = config(SCHEDULE_LINEAR, 108, 8, 0.2);
    expect(t, &c, 8, 1);
    expect(t, &c, 58, 0.6);
    expect(t, &c, 107, 0.2 + 0.8 / 100);
    expect(t, &c, 108, 0.2);
    c = config(SCHEDULE_COSINE, 108, 8, 0.2);
    expect(t, &c, 8, 1);
    expect(t, &c, 58, 0.6);
    expect(t, &c, 33, 0.2 + 0.4 * (1 + sqrt(0.5)));
    expect(t, &c, 108, 0.2);
    c = config(SCHEDULE_WSD, 100, 8, 0.2);
    c.schedule.decay_fraction = 0.25;
    expect(t, &c, 8, 1);
    expect(t, &c, 75, 1);
    expect(t, &c, 76, 1 - 0.8 / 25);
    expect(t, &c, 99, 0.2 + 0.8 / 25);
    expect(t, &c, 100, 0.2);
    c = config(SCHEDULE_CONSTANT, 100, 8, 0);
    expect(t, &c, 50, 1);
    expect(t, &c, 99, 1);
}

static void check_run(TestCtx *t, const Config *c) {
    int64_t steps = c->train.steps, warmup = c->schedule.warmup_steps;
    double last = 0;
    for (int64_t step = 0; step < steps + 5; step++) {
        double f = schedule_factor(c, step);
        bool inside = step < steps;
        CHECK_MSG(t, f <= 1 && (inside ? f > 0 : f >= 0),
                  "%s, %lld steps, warmup %lld: step %lld "
                  "has factor %g",
                  kind_name[c->schedule.kind], (long long)steps, (long long)warmup, (long long)step,
                  f);
        bool rises = step < warmup;
        if (step > 0) CHECK(t, rises ? f > last : step == warmup || f <= last);
        last = f;
    }
    bool falls = c->schedule.kind != SCHEDULE_CONSTANT;
    if (steps >= warmup) expect(t, c, steps, falls ? c->schedule.final_lr : 1);
    expect(t, c, steps + 1000000, falls ? c->schedule.final_lr : 1);
}

static void every_length_is_finite_and_rises_and_falls(TestCtx *t) {
    static const int64_t lengths[] = {1, 2, 3, 7, 100}, warmups[] = {0, 1, 2, 3, 7, 50, 100, 101};
    for (int kind = 0; kind < N_KIND; kind++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            for (size_t k = 0; k < sizeof warmups / sizeof warmups[0]; k++) {
                if (warmups[k] > lengths[i]) continue;
                for (int final = 0; final < 2; final++) {
                    Config c = config(kind, lengths[i], warmups[k], 0.1 * final);
                    check_run(t, &c);
                }
            }
        }
    }
}

static void a_run_of_one_step_trains_at_the_peak(TestCtx *t) {
    for (int kind = 0; kind < N_KIND; kind++) {
        for (int64_t warmup = 0; warmup < 2; warmup++) {
            Config c = config(kind, 1, warmup, 0);
            expect(t, &c, 0, 1);
        }
    }
}

static void wsd_decays_over_its_share_of_any_run(TestCtx *t) {
    Config c = config(SCHEDULE_WSD, 10, 0, 0);
    c.schedule.decay_fraction = 1;
    expect(t, &c, 0, 1);
    expect(t, &c, 5, 0.5);
    c.schedule.decay_fraction = 1e-9;  // nothing decays before the end
    expect(t, &c, 9, 1);
    c = config(SCHEDULE_WSD, 10, 6, 0);
    c.schedule.decay_fraction = 1;  // the warm-up comes first
    expect(t, &c, 5, 1);
    expect(t, &c, 8, 0.5);
}

static void warmup_beyond_the_end_stays_a_warmup(TestCtx *t) {
    Config c = config(SCHEDULE_COSINE, 10, 20, 0);
    expect(t, &c, 9, 0.5);
    expect(t, &c, 19, 1);
    expect(t, &c, 20, 0);
}

static void hardly_any_rate_is_lost_on_very_long_runs(TestCtx *t) {
    Config c = config(SCHEDULE_LINEAR, INT64_C(1) << 50, 0, 0);
    double f = schedule_factor(&c, (INT64_C(1) << 50) - 1);
    CHECK(t, f > 0 && f < 1e-14);
    expect(t, &c, INT64_C(1) << 49, 0.5);
}

TEST_MAIN({"warmup_rises_linearly_to_the_peak", warmup_rises_linearly_to_the_peak},
          {"shapes_pass_through_known_points", shapes_pass_through_known_points},
          {"every_length_is_finite_and_rises_and_falls",
           every_length_is_finite_and_rises_and_falls},
          {"a_run_of_one_step_trains_at_the_peak", a_run_of_one_step_trains_at_the_peak},
          {"wsd_decays_over_its_share_of_any_run", wsd_decays_over_its_share_of_any_run},
          {"warmup_beyond_the_end_stays_a_warmup", warmup_beyond_the_end_stays_a_warmup},
          {"hardly_any_rate_is_lost_on_very_long_runs", hardly_any_rate_is_lost_on_very_long_runs})
