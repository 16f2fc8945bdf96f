// test_load.c - gpt/load, eval and generate as commands: the ways to name a model, and what they
// say about models that are missing, damaged or of another shape: one sentence, status 1, nothing
// on stdout.
#define _POSIX_C_SOURCE 200809L
#include "gpt/load.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#define MODEL "run/step-00000003/" CHECKPOINT_MODEL

// A run of three steps of that variant with a text beside it.
static TinyRun *trained(TestCtx *t, const char *settings) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c, settings, "train.steps=3 checkpoint.every=2 checkpoint.keep=0");
    tiny_must_train(t, r, &c, tiny_ops());
    char *text = tiny_path(r, "text.txt");
    CHECK(t, file_write_atomic(text, "hello world, hello he said", 26, &err));
    mem_free(text);
    return r;
}

// A command line; NULL ends the arguments. "@name" stands for DIR/name.
typedef struct Line {
    const char *arg[12];
} Line;

typedef struct Said {
    int status;
    Buf out, err;
} Said;

static Said run(const TinyRun *r, CommandMain *command, Line line) {
    char *path[12] = {NULL};
    const char *arg[13] = {NULL};
    Said s = {0};
    buf_add(&s.out, "", 0);
    buf_add(&s.err, "", 0);
    for (int i = 0; i < 12 && line.arg[i]; i++) {
        if (line.arg[i][0] == '@')
            arg[i] = path[i] = tiny_path(r, line.arg[i] + 1);
        else
            arg[i] = line.arg[i];
    }
    s.status = tiny_command(r, command, arg, &s.out, &s.err);
    for (int i = 0; i < 12; i++)
        mem_free(path[i]);
    return s;
}

static void said_free(Said *s) {
    buf_free(&s->out);
    buf_free(&s->err);
}

// Status 0; the caller frees what it printed.
static char *must_run(TestCtx *t, const TinyRun *r, CommandMain *command, Line line) {
    Said s = run(r, command, line);
    CHECK_MSG(t, s.status == 0, "status %d: %s", s.status, s.err.text);
    buf_free(&s.err);
    return s.out.text;
}

// One sentence on stderr with the words, the status, and nothing on stdout. Warnings may come
// first.
static void expect_failure(TestCtx *t, const TinyRun *r, CommandMain *command, Line line,
                           int status, const char *words) {
    Said s = run(r, command, line);
    const char *last = s.err.text, *next;
    while ((next = strchr(last, '\n')) && next[1]) {
        CHECK_MSG(t, strncmp(last, "train_gpt: warning: ", 20) == 0, "line '%s'", last);
        last = next + 1;
    }
    CHECK_MSG(t, s.status == status, "status %d, not %d: %s", s.status, status, s.err.text);
    CHECK_MSG(t, strncmp(last, "train_gpt: ", 11) == 0 && next, "stderr: '%s'", s.err.text);
    CHECK_MSG(t, strstr(last, words), "expected '%s' in '%s'", words, s.err.text);
    CHECK_MSG(t, s.out.n == 0, "stdout: '%s'", s.out.text);
    said_free(&s);
}

static void expect_both(TestCtx *t, const TinyRun *r, const char *model, const char *words) {
    expect_failure(t, r, eval_main, (Line){{model, "--data", "@val_0.bin"}}, 1, words);
    expect_failure(t, r, generate_main, (Line){{model, "-p", "hello", "-n", "3"}}, 1, words);
}

static void a_model_is_named_in_three_ways(TestCtx *t) {
    static const char *const names[] = {"@run", "@run/step-00000003", "@" MODEL};
    FOR_EACH_TINY(v) {
        TinyRun *r = trained(t, v->settings);
        char *eval[3], *text[3];
        int n = v == tiny_variants ? 3 : 1;
        for (int i = 0; i < n; i++) {
            eval[i] =
                must_run(t, r, eval_main, (Line){{names[i], "--data", "@val_0.bin", "--json"}});
            text[i] = must_run(t, r, generate_main,
                               (Line){{names[i], "-p", "hello", "-n", "6", "--seed", "3"}});
            CHECK_MSG(t, strcmp(eval[i], eval[0]) == 0, "%s: %s", names[i], eval[i]);
            CHECK_MSG(t, strcmp(text[i], text[0]) == 0, "%s: %s", names[i], text[i]);
        }
        CHECK_MSG(t, strstr(eval[0], "\"tokens\": 112,"), "%s", eval[0]);
        // An earlier checkpoint is another model.
        char *old = must_run(t, r, eval_main,
                             (Line){{"@run/step-00000002", "--data", "@val_0.bin", "--json"}});
        CHECK_MSG(t, strcmp(old, eval[0]) != 0, "%s", old);
        for (int i = 0; i < n; i++) {
            mem_free(eval[i]);
            mem_free(text[i]);
        }
        mem_free(old);
        tiny_close(r);
    }
}

// The loss that training reports at its end is the one that eval finds.
static void eval_agrees_with_training(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    char *path = tiny_path(r, "run/metrics.jsonl"), *metrics;
    Error err;
    tiny_run_config(r, &c, tiny_variants[4].settings, "train.steps=3 train.eval_every=3");
    tiny_must_train(t, r, &c, tiny_ops());
    char *out = must_run(t, r, eval_main, (Line){{"@run", "--data", "@val_0.bin", "--json"}});
    CHECK(t, file_read(path, 1 << 20, &metrics, NULL, &err));
    const char *at = strstr(metrics, "{\"step\":3,\"event\":\"eval\",\"val_loss\":");
    CHECK(t, at != NULL);
    if (at) {
        double want = strtod(strstr(at, "val_loss") + 10, NULL), got = strtod(out + 9, NULL);
        CHECK_MSG(t, fabs(got - want) <= 1e-5 * want, "%s, training said %.9g", out, want);
    }
    mem_free(out);
    mem_free(metrics);
    mem_free(path);
    tiny_close(r);
}

static void text_and_limits_are_counted(TestCtx *t) {
    TinyRun *r = trained(t, NULL);
    // " wo" is one token, "hello" and "he" too; 26 bytes are 15 tokens.
    char *out = must_run(t, r, eval_main, (Line){{"@run", "--data", "@text.txt", "--json"}});
    CHECK_MSG(t, strstr(out, "\"tokens\": 15, \"bytes\": 26}\n"), "%s", out);
    mem_free(out);
    out = must_run(t, r, eval_main, (Line){{"@run", "--data", "@text.txt", "--tokens", "5"}});
    CHECK_MSG(t, strstr(out, ", over 5 tokens and "), "%s", out);
    mem_free(out);
    out = must_run(t, r, eval_main,
                   (Line){{"@run", "--data", "@text.txt", "--data", "@val_0.bin", "--tokens", "21",
                           "--batch", "3"}});
    CHECK_MSG(t, strstr(out, ", over 21 tokens and "), "%s", out);
    mem_free(out);
    tiny_close(r);
}

static void overrides_change_what_is_free(TestCtx *t) {
    TinyRun *r = trained(t, NULL);
    char *a = must_run(t, r, eval_main, (Line){{"@run", "--data", "@val_0.bin"}});
    char *b = must_run(
        t, r, eval_main,
        (Line){{"@run", "train.threads=2", "generate.kv_type=bf16", "--data", "@val_0.bin"}});
    CHECK_MSG(t, strcmp(a, b) == 0, "%s%s", a, b);
    Said s = run(r, generate_main,
                 (Line){{"@run", "generate.kv_type=bf16", "-p", "hello", "-n", "3", "--json"}});
    CHECK_MSG(t,
              strstr(s.err.text, "\"cache_bytes\": 1024, \"cache_type\": \"bf16\", "
                                 "\"cache_values_per_token_layer\": 64"),
              "%s", s.err.text);
    said_free(&s);
    mem_free(a);
    mem_free(b);
    tiny_close(r);
}

#ifdef _OPENMP
static const Ops *open_tiny(ElemType act, Error *err) {
    (void)act, (void)err;
    return tiny_ops();
}

// The run was trained with one thread; here the override says three.
static void threads_are_those_of_the_override(TestCtx *t) {
    static const Device device = {"cpu", open_tiny};
    static const char *const three[] = {"train.threads=3"};
    const Program program = {&device, 1};
    TinyRun *r = trained(t, NULL);
    char *path = tiny_path(r, "run");
    Loaded l;
    Error err;
    set_threads(2);
    CHECK_MSG(t, loaded_open(&l, path, NULL, 0, &program, "cpu", &err), "%s", err.text);
    CHECK(t, omp_get_max_threads() == 2 && l.tok != NULL);
    loaded_close(&l);
    CHECK_MSG(t, loaded_open(&l, path, three, 1, &program, "cpu", &err), "%s", err.text);
    CHECK(t, omp_get_max_threads() == 3);
    loaded_close(&l);
    set_threads(1);
    mem_free(path);
    tiny_close(r);
}
#else
static void threads_are_those_of_the_override(TestCtx *t) {
    test_skip(t, "built without OpenMP");
}
#endif

static void another_shape_is_a_sentence(TestCtx *t) {
    static const struct {
        const char *setting, *words;
    } cases[] = {{"model.n_layer=1", "h.1."},
                 {"model.n_layer=3", "h.2."},
                 {"model.vocab_size=300", "wte"},
                 {"model.ffn_dim=64", "mlp.c_"},
                 {"attention.type=mqa", "attn.w"}};
    TinyRun *r = trained(t, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_failure(t, r, eval_main, (Line){{"@run", cases[i].setting, "--data", "@val_0.bin"}},
                       1, cases[i].words);
        expect_failure(t, r, generate_main, (Line){{"@run", cases[i].setting, "-p", "hello"}}, 1,
                       cases[i].words);
    }
    tiny_close(r);
}

// --- damage

static void what_is_missing_is_named(TestCtx *t) {
    TinyRun *r = trained(t, NULL);
    char *tok = tiny_path(r, "run/tokenizer.json"), *moved = tiny_path(r, "run/moved");
    expect_both(t, r, "@nowhere", "nowhere: no such run directory, checkpoint or .safetensors");
    expect_both(t, r, "@nowhere.safetensors", "nowhere.safetensors");
    expect_both(t, r, "@", "holds no checkpoint");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data", "@no.bin"}}, 1, "no.bin");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data", "@no.txt"}}, 1, "no.txt");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data", "@"}}, 1, "");
    expect_failure(t, r, generate_main, (Line){{"@run", "--prompt-file", "@no.txt"}}, 1, "no.txt");
    CHECK(t, rename(tok, moved) == 0);
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "hello"}}, 1,
                   "no tokenizer.json beside the model");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data", "@text.txt"}}, 1,
                   "text needs the model's tokenizer");
    char *out = must_run(t, r, eval_main, (Line){{"@run", "--data", "@val_0.bin", "--json"}});
    CHECK_MSG(t, strstr(out, "\"bits_per_byte\": null, \"tokens\": 112, \"bytes\": 0}"), "%s", out);
    mem_free(out);
    mem_free(tok);
    mem_free(moved);
    tiny_close(r);
}

static void usage_errors_have_status_2(TestCtx *t) {
    TinyRun *r = tiny_open();
    expect_failure(t, r, eval_main, (Line){{"@run"}}, 2, "--data PATH");
    expect_failure(t, r, eval_main, (Line){{"--data", "x"}}, 2, "eval expects a run directory");
    expect_failure(t, r, eval_main, (Line){{"@run", "--dtaa", "x"}}, 2, "did you mean --data?");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data"}}, 2, "--data expects PATH");
    expect_failure(t, r, eval_main, (Line){{"@run", "--batch", "0.5", "--data", "x"}}, 2,
                   "--batch expects an integer");
    expect_failure(t, r, eval_main, (Line){{"@run", "--data", "x", "train.thraeds=2"}}, 2,
                   "train.threads");
    expect_failure(t, r, generate_main, (Line){{"-p", "x"}}, 2, "generate expects a run");
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "x", "--stop", ""}}, 2, "--stop");
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "x", "-n", "-2"}}, 2, "--tokens");
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "x", "--samples", "0"}}, 2,
                   "--samples");
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "x", "--temperature", "nan"}}, 2,
                   "--temperature");
    expect_failure(t, r, generate_main, (Line){{"@run", "-p", "x", "generate.kv_type=fp8"}}, 2,
                   "one of auto, fp32, bf16");
    tiny_close(r);
}

static void write_file(TestCtx *t, const TinyRun *r, const char *name, const char *bytes,
                       size_t n) {
    Error err;
    char *path = tiny_path(r, name);
    CHECK_MSG(t, file_write_atomic(path, bytes, n, &err), "%s", err.text);
    mem_free(path);
}

// As a file that is named itself, and in its checkpoint. (A checkpoint's other file must be whole.)
static void damaged_files_are_sentences(TestCtx *t) {
    TinyRun *r = trained(t, NULL);
    char *path = tiny_path(r, MODEL), *whole;
    size_t n;
    Error err;
    CHECK(t, file_read(path, 1 << 24, &whole, &n, &err));
    char *bytes = mem_alloc(n + 8, 1);
    memcpy(bytes, whole, n);
    const size_t cut[] = {0, 1, 7, 8, 9, 200, n / 2, n - 4, n - 1};
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        write_file(t, r, "cut.safetensors", bytes, cut[i]);
        expect_both(t, r, "@cut.safetensors", "cut.safetensors");
    }
    write_file(t, r, "long.safetensors", bytes, n + 5);
    expect_both(t, r, "@long.safetensors", "long.safetensors");
    bytes[8] = '[';
    write_file(t, r, "head.safetensors", bytes, n);
    expect_both(t, r, "@head.safetensors", "head.safetensors");
    bytes[8] = whole[8];
    bytes[7] = 1;  // a header of 2^56 bytes
    write_file(t, r, "huge.safetensors", bytes, n);
    expect_both(t, r, "@huge.safetensors", "huge.safetensors");
    bytes[7] = whole[7];
    // One bit of a weight: the hash of the checkpoint tells.
    bytes[n - 100] ^= 1;
    write_file(t, r, MODEL, bytes, n);
    expect_both(t, r, "@run/step-00000003", "step-00000003");
    mem_free(bytes);
    mem_free(whole);
    mem_free(path);
    tiny_close(r);
}

// The newest checkpoint is damaged: the one before it is used, and a warning says so.
static void a_damaged_checkpoint_is_passed_over(TestCtx *t) {
    TinyRun *r = trained(t, NULL);
    write_file(t, r, MODEL, "short", 5);
    char *want = must_run(t, r, eval_main, (Line){{"@run/step-00000002", "--data", "@val_0.bin"}});
    Said s = run(r, eval_main, (Line){{"@run", "--data", "@val_0.bin"}});
    CHECK_MSG(t, s.status == 0 && strcmp(s.out.text, want) == 0, "status %d: %s", s.status,
              s.out.text);
    CHECK_MSG(t, strstr(s.err.text, "step-00000003"), "%s", s.err.text);
    said_free(&s);
    mem_free(want);
    // With no other one left it is an error.
    write_file(t, r, "run/step-00000002/" CHECKPOINT_MODEL, "short", 5);
    expect_both(t, r, "@run", "run");
    tiny_close(r);
}

static void weights_that_are_not_finite_are_reported(TestCtx *t) {
    static const uint32_t bad[] = {0x7FC00000u, 0x7F800000u};  // NaN, infinity
    for (int i = 0; i < 2; i++) {
        TinyRun *r = trained(t, NULL);
        char *path = tiny_path(r, MODEL), *bytes;
        size_t n;
        Error err;
        CHECK(t, file_read(path, 1 << 24, &bytes, &n, &err));
        for (size_t at = n - 4 * 2000; at < n; at += 4)  // the end of the head
            memcpy(bytes + at, &bad[i], 4);
        write_file(t, r, "bad.safetensors", bytes, n);
        // The tokenizer lies beside it.
        expect_failure(t, r, eval_main, (Line){{"@bad.safetensors", "--data", "@val_0.bin"}}, 1,
                       "not finite");
        for (size_t at = n - 4 * (size_t)TINY_VOCAB * 32; at < n; at += 4)
            memcpy(bytes + at, &bad[i], 4);
        write_file(t, r, "bad.safetensors", bytes, n);
        expect_failure(t, r, generate_main, (Line){{"@bad.safetensors", "-p", "hello"}}, 1,
                       "finite");
        mem_free(bytes);
        mem_free(path);
        tiny_close(r);
    }
}

TEST_MAIN({"a_model_is_named_in_three_ways", a_model_is_named_in_three_ways},
          {"eval_agrees_with_training", eval_agrees_with_training},
          {"text_and_limits_are_counted", text_and_limits_are_counted},
          {"overrides_change_what_is_free", overrides_change_what_is_free},
          {"another_shape_is_a_sentence", another_shape_is_a_sentence},
          {"what_is_missing_is_named", what_is_missing_is_named},
          {"usage_errors_have_status_2", usage_errors_have_status_2},
          {"damaged_files_are_sentences", damaged_files_are_sentences},
          {"a_damaged_checkpoint_is_passed_over", a_damaged_checkpoint_is_passed_over},
          {"weights_that_are_not_finite_are_reported", weights_that_are_not_finite_are_reported},
          // Last: children of a process that has computed with several threads may hang.
          {"threads_are_those_of_the_override", threads_are_those_of_the_override})
