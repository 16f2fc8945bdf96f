// test_report.c - the share of the peak that a run tells: its FLOP rate over the measured peak, and
// nothing at all where that peak is unknown or plainly wrong.
#include <math.h>

#include "test/tiny_run.h"

static double peak;

static void measure(Peaks *out) {
    *out = (Peaks){.fma_flops = peak, .bf16_flops = 2 * peak, .read_bytes = 1};
}

// The last step's mfu, NAN when it is not told, and its rate.
static double mfu_of(TestCtx *t, double flops, const char *more, double *rate) {
    static Ops ops;
    ops = *tiny_ops();
    ops.measure_peaks = measure;
    peak = flops;
    TinyRun *r = tiny_open();
    Config c;
    tiny_run_config(r, &c, NULL, "train.steps=2");
    tiny_set(&c, more);
    tiny_must_train(t, r, &c, &ops);
    double mfu = tiny_last_metric(r, "run", "mfu");
    *rate = tiny_last_metric(r, "run", "flops_per_s");
    tiny_close(r);
    return mfu;
}

static void the_share_is_the_rate_over_the_peak(TestCtx *t) {
    double rate, mfu = mfu_of(t, 1e15, NULL, &rate);
    CHECK_MSG(t, fabs(mfu * 1e15 - rate) <= 1e-3 * rate, "mfu %g, rate %g", mfu, rate);
    mfu = mfu_of(t, 1e15, "train.compute=bf16", &rate);
    CHECK_MSG(t, fabs(mfu * 2e15 - rate) <= 1e-3 * rate, "mfu %g, rate %g", mfu, rate);
}

static void a_share_above_one_is_not_told(TestCtx *t) {
    static const double peaks[] = {1, 0, -1};
    for (int i = 0; i < 3; i++) {
        double rate, mfu = mfu_of(t, peaks[i], NULL, &rate);
        CHECK_MSG(t, isnan(mfu) && rate > 1, "mfu %g, rate %g", mfu, rate);
    }
    double rate, mfu = mfu_of(t, (double)NAN, NULL, &rate);
    CHECK_MSG(t, isnan(mfu), "mfu %g", mfu);
}

TEST_MAIN({"the_share_is_the_rate_over_the_peak", the_share_is_the_rate_over_the_peak},
          {"a_share_above_one_is_not_told", a_share_above_one_is_not_told})
