// test_logger.c - gpt/logger: every line is JSON, also with NaN and full disks; the progress line
// fits its terminal.
#define _POSIX_C_SOURCE 200809L
#include "test/test.h"

#include "gpt/logger.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

static const StepLog sample = {.step = 20,
                               .loss = 3.14159265358979,
                               .grad_norm = 0.5,
                               .lr = 3e-4,
                               .tokens = 9007199254740993,
                               .tokens_per_s = 12345,
                               .flops_per_s = 1.5e12,
                               .mfu = 0.451,
                               .elapsed_s = 12.5,
                               .eta_s = 3720,
                               .skipped_steps = 2};

typedef struct Fixture {
    char *dir, *path, *said_path;
    FILE *out;
    Logger log;
} Fixture;

static Fixture *fixture(TestCtx *t, int columns, int64_t every) {
    Fixture *f = mem_alloc(1, sizeof *f);
    Error err;
    f->dir = test_temp_dir();
    f->path = path_join(f->dir, "metrics.jsonl");
    f->said_path = path_join(f->dir, "said");
    f->out = fopen(f->said_path, "w+");
    if (!f->out) die("cannot write to %s", f->dir);
    LoggerArgs args = {
        .path = f->path, .out = f->out, .columns = columns, .total_steps = 100, .every = every};
    CHECK_MSG(t, logger_open(&f->log, &args, &err), "%s", err.text);
    return f;
}

static char *text_of(TestCtx *t, const char *path) {
    char *text = NULL;
    size_t n;
    Error err;
    CHECK_MSG(t, file_read(path, 1000000, &text, &n, &err), "%s", err.text);
    return text;
}

// Closes; the caller gets what went to people.
static char *fixture_done(TestCtx *t, Fixture *f) {
    logger_close(&f->log);
    fclose(f->out);
    char *said = text_of(t, f->said_path);
    test_remove_dir(f->dir);
    mem_free(f->dir);
    mem_free(f->path);
    mem_free(f->said_path);
    mem_free(f);
    return said;
}

static void expect_metrics(TestCtx *t, const Fixture *f, const char *want) {
    char *text = text_of(t, f->path);
    CHECK_MSG(t, text && strcmp(text, want) == 0, "found '%s'", text);
    mem_free(text);
}

static void a_step_is_one_line_with_all_numbers(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 10);
    StepLog s = sample;
    logger_step(&f->log, &s);
    s.mfu = -1;
    s.skipped = true;
    s.step = 21;
    logger_step(&f->log, &s);
    // Present after each call, without closing.
    expect_metrics(t, f,
                   "{\"step\":20,\"loss\":3.14159265,\"grad_norm\":0.5,\"lr\":0.0003,"
                   "\"tokens\":9007199254740993,\"tokens_per_s\":12345,\"flops_per_s\":1.5e+12,"
                   "\"elapsed_s\":12.5,\"skipped\":false,\"skipped_steps\":2,\"mfu\":0.451}\n"
                   "{\"step\":21,\"loss\":3.14159265,\"grad_norm\":0.5,\"lr\":0.0003,"
                   "\"tokens\":9007199254740993,\"tokens_per_s\":12345,\"flops_per_s\":1.5e+12,"
                   "\"elapsed_s\":12.5,\"skipped\":true,\"skipped_steps\":2}\n");
    char *said = fixture_done(t, f);
    CHECK_MSG(t,
              strcmp(said,
                     "step 20/100 | loss 3.1416 | norm 0.5 | lr 0.0003 | 12.3k tok/s | 45.1% MFU | "
                     "1h02m left\n"
                     "step 21/100 | loss 3.1416 SKIPPED | norm 0.5 | lr 0.0003 | 12.3k tok/s | "
                     "1.50 TFLOP/s | 1h02m left\n") == 0,
              "found '%s'", said);
    mem_free(said);
}

static void numbers_that_are_not_finite_stay_json(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 10);
    StepLog s = sample;
    s.loss = (double)NAN;
    s.grad_norm = (double)INFINITY;
    s.lr = -(double)INFINITY;
    s.mfu = (double)NAN;
    s.eta_s = (double)NAN;
    logger_step(&f->log, &s);
    char *text = text_of(t, f->path);
    cJSON *json = cJSON_Parse(text);
    static const char *const key[] = {"loss", "grad_norm", "lr", "mfu"};
    static const char *const is[] = {"nan", "inf", "-inf", "nan"};
    for (int i = 0; i < 4; i++) {
        char flag[32];
        snprintf(flag, sizeof flag, "%s_is", key[i]);
        const char *v = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, flag));
        CHECK_MSG(t, cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json, key[i])), "%s", key[i]);
        CHECK_MSG(t, v && strcmp(v, is[i]) == 0, "%s", flag);
    }
    cJSON_Delete(json);
    mem_free(text);
    char *said = fixture_done(t, f);
    CHECK_MSG(t, strstr(said, "loss nan") && strstr(said, "? left"), "%s", said);
    mem_free(said);
}

static void events_carry_typed_fields(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 10);
    const LogField field[] = {LOG_FIELD_REAL("loss", 2.5),
                              LOG_FIELD_TEXT("text", "a\"b\\\n\x01\xC3\xA4"),
                              LOG_FIELD_COUNT("bytes", INT64_MIN), LOG_FIELD_BOOL("best", true),
                              LOG_FIELD_TEXT("none", NULL)};
    logger_event(&f->log, 7, "eval", field, 5);
    logger_event(&f->log, 8, "end", NULL, 0);
    logger_event(&f->log, 9, NULL, NULL, 0);
    expect_metrics(
        t, f,
        "{\"step\":7,\"event\":\"eval\",\"loss\":2.5,\"text\":\"a\\\"b\\\\\\n\\u0001\xC3\xA4\","
        "\"bytes\":-9223372036854775808,\"best\":true,\"none\":null}\n"
        "{\"step\":8,\"event\":\"end\"}\n{\"step\":9}\n");
    char *said = fixture_done(t, f);
    CHECK(t, said[0] == 0);
    mem_free(said);
}

static void an_existing_file_is_continued(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 10);
    Error err;
    logger_event(&f->log, 1, "a", NULL, 0);
    LoggerArgs args = f->log.args;
    args.path = f->path;
    logger_close(&f->log);
    CHECK(t, logger_open(&f->log, &args, &err));
    logger_event(&f->log, 2, "b", NULL, 0);
    expect_metrics(t, f, "{\"step\":1,\"event\":\"a\"}\n{\"step\":2,\"event\":\"b\"}\n");
    mem_free(fixture_done(t, f));
}

static void plain_lines_come_at_the_chosen_steps(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 40);
    StepLog s = sample;
    for (s.step = 1; s.step <= 100; s.step++) {
        s.skipped = s.step == 50;
        logger_step(&f->log, &s);
    }
    char *said = fixture_done(t, f);
    static const char *const want[] = {"step 1/", "step 40/", "step 50/", "step 80/", "step 100/"};
    int lines = 0;
    for (const char *p = said; *p; p = strchr(p, '\n') + 1, lines++)
        CHECK_MSG(t, lines < 5 && strncmp(p, want[lines], strlen(want[lines])) == 0, "%.20s", p);
    CHECK(t, lines == 5 && !strchr(said, '\r'));
    mem_free(said);
}

static void a_terminal_has_one_line_redrawn(TestCtx *t) {
    Fixture *f = fixture(t, 40, 10);
    StepLog s = sample;
    logger_step(&f->log, &s);
    s.step++;
    logger_step(&f->log, &s);
    logger_say(&f->log, "eval %d", 3);
    logger_say(&f->log, "sample");
    s.step++;
    logger_step(&f->log, &s);
    char *said = fixture_done(t, f);
    CHECK_MSG(t,
              strcmp(said, "\rstep 20/100 | loss 3.1416 | 1h02m left\x1b[K"
                           "\rstep 21/100 | loss 3.1416 | 1h02m left\x1b[K"
                           "\r\x1b[Keval 3\nsample\n"
                           "\rstep 22/100 | loss 3.1416 | 1h02m left\x1b[K\n") == 0,
              "found '%s'", said);
    mem_free(said);
}

static void the_line_fits_every_width(TestCtx *t) {
    StepLog wild = sample;
    wild.step = INT64_MAX;
    wild.loss = -1e300;
    wild.lr = wild.grad_norm = -1.23456e-300;
    wild.tokens_per_s = wild.flops_per_s = 1e300;
    wild.mfu = 1e300;
    wild.eta_s = 1e11;
    size_t before = 0;
    for (int columns = 1; columns <= 400; columns++) {
        Buf a = {0}, b = {0};
        log_step_text(&a, &sample, 100, columns);
        log_step_text(&b, &wild, INT64_MAX, columns);
        CHECK_MSG(t, a.n <= (size_t)columns && b.n <= (size_t)columns, "%d columns: %zu, %zu",
                  columns, a.n, b.n);
        CHECK_MSG(t, a.n >= before && strlen(a.text) == a.n, "%d columns", columns);
        CHECK(t, columns < 11 || strncmp(a.text, "step 20/100", 11) == 0);
        before = a.n;
        buf_free(&a);
        buf_free(&b);
    }
}

static void durations_and_speeds_are_short(TestCtx *t) {
    static const struct {
        double seconds;
        const char *want;
    } row[] = {{0, "0s"},       {59.4, "59s"},      {59.6, "1m00s"},  {3599, "59m59s"},
               {3600, "1h00m"}, {86399, "23h59m"},  {86400, "1d00h"}, {1e9, "11574d01h"},
               {-1, "?"},       {(double)NAN, "?"}, {1e300, "?"},     {-0.0, "0s"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[24];
        log_duration_text(text, row[i].seconds);
        CHECK_MSG(t, strcmp(text, row[i].want) == 0, "%g s: '%s'", row[i].seconds, text);
    }
    static const struct {
        double speed;
        const char *want;
    } tokens[] = {{0, "| 0 tok/s"},         {999.4, "| 999 tok/s"},    {999.6, "| 1.00k tok/s"},
                  {12345, "| 12.3k tok/s"}, {99999, "| 100k tok/s"},   {1234567, "| 1.23M tok/s"},
                  {5e12, "| 5000G tok/s"},  {(double)NAN, "nan tok/s"}};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        StepLog s = sample;
        Buf b = {0};
        s.tokens_per_s = tokens[i].speed;
        log_step_text(&b, &s, 100, 0);
        CHECK_MSG(t, strstr(b.text, tokens[i].want), "%s in '%s'", tokens[i].want, b.text);
        buf_free(&b);
    }
}

static void a_full_disk_costs_lines_and_no_half_ones(TestCtx *t) {
    Fixture *f = fixture(t, LOGGER_PLAIN, 1000);
    struct rlimit old, low;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    logger_event(&f->log, 1, "first", NULL, 0);
    CHECK(t, getrlimit(RLIMIT_FSIZE, &old) == 0);
    low = old;
    low.rlim_cur = 40;  // the first line has 27 bytes
    CHECK(t, setrlimit(RLIMIT_FSIZE, &low) == 0);
    logger_event(&f->log, 2, "second", NULL, 0);
    logger_event(&f->log, 3, "third", NULL, 0);
    CHECK(t, setrlimit(RLIMIT_FSIZE, &old) == 0);
    expect_metrics(t, f, "{\"step\":1,\"event\":\"first\"}\n");
    CHECK(t, f->log.lost == 2);
    logger_event(&f->log, 4, "fourth", NULL, 0);
    expect_metrics(t, f, "{\"step\":1,\"event\":\"first\"}\n{\"step\":4,\"event\":\"fourth\"}\n");
    CHECK(t, f->log.lost == 0);
    signal(SIGXFSZ, handler);
    mem_free(fixture_done(t, f));
}

static void a_place_that_cannot_be_written_is_a_sentence(TestCtx *t) {
    char *dir = test_temp_dir();
    Logger l;
    Error err = {{0}};
    LoggerArgs args = {.path = dir, .out = stderr};
    CHECK(t, !logger_open(&l, &args, &err));
    CHECK_ERROR(t, err, "cannot open for appending");
    args.path = NULL;
    CHECK(t, logger_open(&l, &args, &err));
    logger_event(&l, 1, "nowhere", NULL, 0);
    logger_close(&l);
    test_remove_dir(dir);
    mem_free(dir);
}

TEST_MAIN({"a_step_is_one_line_with_all_numbers", a_step_is_one_line_with_all_numbers},
          {"numbers_that_are_not_finite_stay_json", numbers_that_are_not_finite_stay_json},
          {"events_carry_typed_fields", events_carry_typed_fields},
          {"an_existing_file_is_continued", an_existing_file_is_continued},
          {"plain_lines_come_at_the_chosen_steps", plain_lines_come_at_the_chosen_steps},
          {"a_terminal_has_one_line_redrawn", a_terminal_has_one_line_redrawn},
          {"the_line_fits_every_width", the_line_fits_every_width},
          {"durations_and_speeds_are_short", durations_and_speeds_are_short},
          {"a_full_disk_costs_lines_and_no_half_ones", a_full_disk_costs_lines_and_no_half_ones},
          {"a_place_that_cannot_be_written_is_a_sentence",
           a_place_that_cannot_be_written_is_a_sentence})
