// test_vexp.c - the vectorised functions against libm in double, over all magnitudes.
// Compiled for the plainest set; other sets run the same code through the ops that use it.
#include "kernels/cpu/vexp.h"

#include "test/test.h"

// Distance in units of the last place of a float of the size of the exact value.
static double ulps(float got, double exact) {
    double size = fmax(fabs(exact), 0x1p-126);
    int exponent;
    frexp(size, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - 24);
}

typedef struct Function {
    const char *name;
    VecF (*vector)(VecF);
    double (*exact)(double);
    double max_ulps;
    float low, high;     // accuracy is promised for arguments between
    float below, above;  // values outside
} Function;

static VecF exp_vec(VecF x) {
    return vec_exp(x);
}
static VecF tanh_vec(VecF x) {
    return vec_tanh(x);
}
static VecF log_vec(VecF x) {
    return vec_log(x);
}
static VecF sigmoid_vec(VecF x) {
    return vec_sigmoid(x);
}
static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static const Function functions[] = {
    {"exp", exp_vec, exp, 2, -86.98f, 88.72283f, 0, INFINITY},
    {"tanh", tanh_vec, tanh, 3, -INFINITY, INFINITY, -1, 1},
    {"sigmoid", sigmoid_vec, sigmoid, 3, -86.9f, INFINITY, 0, 1},
    {"log", log_vec, log, 2, 0x1p-149f, INFINITY, NAN, INFINITY},
};

static void check_one(TestCtx *t, const Function *f, float x, float y) {
    if (isnan(x)) {
        CHECK_MSG(t, isnan(y), "%s(NaN) = %g", f->name, (double)y);
    } else if (x >= f->low && x <= f->high && isfinite(x)) {
        double u = ulps(y, f->exact((double)x));
        CHECK_MSG(t, u <= f->max_ulps, "%s(%.9g) = %.9g is off by %.2f ulp", f->name, (double)x,
                  (double)y, u);
    } else if (f->exact == log && x == 0) {
        CHECK_MSG(t, y == -INFINITY, "log(0) = %g", (double)y);
    } else {
        // below about 1.7e-38 exp may be exact or already zero
        float limit = x < f->low || x == -INFINITY ? f->below : f->above;
        CHECK_MSG(t, isnan(limit) ? isnan(y) : fabsf(y - limit) < 2e-38f || y == limit,
                  "%s(%.9g) = %.9g, expected %g", f->name, (double)x, (double)y, (double)limit);
    }
}

static void functions_are_within_a_few_ulp_everywhere(TestCtx *t) {
    for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++) {
        const Function *f = &functions[k];
        for (uint64_t i = 0; i < 0x100000000u; i += 8191 * LANES) {
            VecF x;
            for (int l = 0; l < LANES; l++) {
                uint32_t bits = (uint32_t)(i + (uint64_t)l * 8191);
                float v;
                memcpy(&v, &bits, sizeof v);
                x[l] = v;
            }
            VecF y = f->vector(x);
            for (int l = 0; l < LANES; l++)
                check_one(t, f, x[l], y[l]);
        }
    }
}

// Where softmax and soft-cap work: all of [-20, 20] finely.
static void functions_are_within_a_few_ulp_near_zero(TestCtx *t) {
    for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++) {
        for (float x = -20; x < 20; x += 0.00037f) {
            float y = functions[k].vector(vec_set(x))[LANES - 1];
            check_one(t, &functions[k], x, y);
        }
    }
}

static void special_values_give_their_limits(TestCtx *t) {
    static const float specials[] = {0,       -0.0f,    INFINITY, -INFINITY, NAN,    1,
                                     -1,      88.7228f, 88.73f,   -87.5f,    -104,   1e-45f,
                                     -1e-45f, 3e38f,    -3e38f,   0x1p-126f, 0x1p24f};
    for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++) {
        for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
            VecF x = vec_set(0.5f);  // neighbours must not matter
            x[1] = specials[i];
            check_one(t, &functions[k], specials[i], functions[k].vector(x)[1]);
        }
    }
    CHECK(t, signbit(vec_tanh(vec_set(0) * -1.0f)[0]) && vec_exp(vec_set(0))[0] == 1);
}

static void helpers_handle_tails_and_nan(TestCtx *t) {
    const float p[LANES] = {1, 2, 3};
    VecF v = vec_load_n(p, 2);
    CHECK(t, v[0] == 1 && v[1] == 2 && v[2] == 0);
    float q[LANES] = {7, 7, 7};
    vec_store_n(q, v, 1);
    CHECK(t, q[0] == 1 && q[1] == 7);
    VecI first = vec_first(2);
    CHECK(t, first[0] == -1 && first[1] == -1 && first[2] == 0);
    CHECK(t,
          isnan(vec_max(vec_set(NAN), vec_set(1))[0]) && vec_max(vec_set(1), vec_set(NAN))[0] == 1);
    CHECK(t, vec_sum(vec_load(p)) == 6 && vec_largest(vec_load(p)) == 3);
}

TEST_MAIN({"functions_are_within_a_few_ulp_everywhere", functions_are_within_a_few_ulp_everywhere},
          {"functions_are_within_a_few_ulp_near_zero", functions_are_within_a_few_ulp_near_zero},
          {"special_values_give_their_limits", special_values_give_their_limits},
          {"helpers_handle_tails_and_nan", helpers_handle_tails_and_nan})
