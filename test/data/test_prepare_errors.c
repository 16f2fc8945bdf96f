// test_prepare_errors.c - what prepare refuses, what it leaves behind then, and its command line.
#define _POSIX_C_SOURCE 200809L
#include "data/prepare.h"
#include "test/prepare_scene.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void broken_inputs_are_refused_with_a_sentence(TestCtx *t) {
    static const struct {
        const char *name, *bytes, *words;
    } cases[] = {
        {"a.jsonl", "{\"text\": \"ok\"}\n\n{\"text\": oops}\n",
         "a.jsonl:3: not a JSON object with a text 'text'"},
        {"a.jsonl", "{\"txt\": \"ok\"}\n", "a.jsonl:1: the JSON object has no field 'text'"},
        {"a.jsonl", "\n  \n", "the inputs hold no text"},
        {"a.txt", "", "the inputs hold no text"},
        {".hidden", "text", "the folder holds no text files"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        PrepareScene s;
        scene_start(&s);
        scene_text(&s, cases[i].name, cases[i].bytes);
        scene_refused(t, &s, cases[i].words);
        s.o.tokenizer = "train:258";
        if (i < 2) scene_refused(t, &s, cases[i].words);
        scene_end(&s);
    }
}

static void missing_and_packed_files_are_refused_with_a_sentence(TestCtx *t) {
    static const struct {
        const char *bytes, *words;
    } cases[] = {
        {"\x1F\x8B\x08", "x: is a gzip file; unpack it first"},
        {"\xFD"
         "7zXZ",
         "x: is a xz file"},
        {"PAR1", "x: is a Parquet file"},
        {"\x88\xD8\x34\x01", "x: is a token shard already"},
    };
    PrepareScene s;
    scene_start(&s);
    char *path = path_join(s.in, "x");
    s.inputs[0] = path;
    scene_refused(t, &s, "x: cannot open (No such file");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scene_text(&s, "x", cases[i].bytes);
        scene_refused(t, &s, cases[i].words);
    }
    s.inputs[0] = "/dev/null";
    scene_refused(t, &s, "is neither a file nor a folder");
    s.o.n_inputs = 0;
    scene_refused(t, &s, "no input is named");
    mem_free(path);
    scene_end(&s);
}

static void options_that_make_no_sense_are_refused(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello");
    scene_text(&s, "b.txt", "world");
    const char *const nobody[] = {"c.txt"}, *const all[] = {"a.txt", "b.txt"};
    PrepareOptions o = s.o;
    s.o.val_fraction = 1;
    scene_refused(t, &s, "validation fraction must be");
    s.o = o, s.o.val_docs = nobody, s.o.n_val_docs = 1;
    scene_refused(t, &s, "no input file is named 'c.txt'");
    s.o.val_fraction = 0.1;
    scene_refused(t, &s, "give one of the two");
    s.o = o, s.o.val_fraction = 0.0001;
    scene_refused(t, &s, "of 2 documents, 2 fell to training and 0 to validation");
    s.o = o, s.o.shard_tokens = 0;
    scene_refused(t, &s, "a shard of 0 tokens");
    s.o = o, s.o.shard_tokens = INT64_C(1) << 31;
    scene_refused(t, &s, "expected 1 to 2147483647");
    s.o = o, s.o.separator = "";
    scene_refused(t, &s, "separator");
    s.o = o, s.o.split = "gpt3";
    scene_refused(t, &s, "the splitting 'gpt3' is not known");
    s.o = o, s.o.split = "gpt4";
    scene_refused(t, &s, "splits text as gpt2, but gpt4 was asked for");
    s.o = o, s.o.tokenizer = "train:many";
    scene_refused(t, &s, "'train:many' needs a number of ids");
    s.o = o, s.o.tokenizer = "train:256";
    scene_refused(t, &s, "'train:256' needs");
    s.o = o, s.o.tokenizer = "train:100000";
    scene_refused(t, &s, "hold pairs for");
    s.o = o, s.o.tokenizer = "/no/such.json";
    scene_refused(t, &s, "/no/such.json: cannot open");
    s.o = o, s.o.val_docs = all, s.o.n_val_docs = 2;
    scene_run(t, &s);  // validation alone is a use
    scene_check(t, &s, "val", "|hello|world");
    scene_end(&s);
}

static void a_tokenizer_without_an_end_token_is_refused(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Small no_end = small;
    Error err;
    no_end.added = "[]";
    Tokenizer *tok = small_load(no_end, &err);
    CHECK(t, tok && tokenizer_save(tok, s.tokenizer, &err));
    scene_text(&s, "a.txt", "hello");
    scene_refused(t, &s, "has no <|endoftext|>");
    tokenizer_free(tok);
    scene_end(&s);
}

static void earlier_output_is_kept_without_force(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "first");
    scene_run(t, &s);
    scene_text(&s, "a.txt", "second");
    Error err = {{0}};
    CHECK(t, !prepare_run(&s.o, &err));
    CHECK_ERROR(t, err, "already; choose another folder, or --force");
    scene_check(t, &s, "train", "|first");
    // A forced run that fails keeps it too.
    s.o.force = true;
    scene_text(&s, "b.jsonl", "oops");
    CHECK(t, !prepare_run(&s.o, &err));
    CHECK_ERROR(t, err, "b.jsonl:1");
    scene_check(t, &s, "train", "|first");
    char *names = scene_names(&s);
    CHECK_MSG(t, !strcmp(names, "prepare.json tokenizer.json train_000000.bin "), "%s", names);
    mem_free(names);
    scene_end(&s);
}

static void output_inside_an_input_folder_is_not_read(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello");
    char *inside = path_join(s.in, "out");
    s.o.out = inside;
    s.o.force = true;
    for (int i = 0; i < 2; i++) {
        scene_run(t, &s);
        CHECK(t, s.info.train.documents == 1 && s.info.train.bytes == 5);
    }
    mem_free(inside);
    scene_end(&s);
}

// A file size limit stands in for a full disk.
static void a_full_disk_leaves_a_sentence_and_nothing_else(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf text = {0};
    for (int i = 0; i < 200000; i++)
        buf_printf(&text, "%d ", i);
    scene_file(&s, "a.txt", text.text, text.n);
    struct rlimit old, less;
    void (*old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(t, getrlimit(RLIMIT_FSIZE, &old) == 0);
    less = old;
    less.rlim_cur = 500000;
    CHECK(t, setrlimit(RLIMIT_FSIZE, &less) == 0);
    Error err = {{0}};
    bool ok = prepare_run(&s.o, &err);
    CHECK(t, setrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, old_handler);
    CHECK(t, !ok && !dir_exists(s.out));
    CHECK_ERROR(t, err, "train_000000.bin: writing failed");
    buf_free(&text);
    scene_end(&s);
}

static void an_output_folder_that_cannot_be_made_is_refused(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello");
    char *below = path_join(s.tokenizer, "out");  // below a file
    s.o.out = below;
    scene_refused(t, &s, "small.json");
    mem_free(below);
    scene_end(&s);
}

static void a_broken_sidecar_is_refused_with_a_sentence(TestCtx *t) {
    static const char *const texts[] = {
        "", "{}", "{\"tokenizer\": {\"hash\": \"12\", \"split\": \"gpt2\"}}",
        "{\"tokenizer\": {\"hash\": \"0123456789abcdeg\", \"split\": \"gpt2\"}}",
        "{\"tokenizer\": {\"hash\": \"0123456789abcdef\", \"split\": \"gpt2\"}}"};
    PrepareScene s;
    scene_start(&s);
    char *path = path_join(s.in, "prepare.json");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        PrepareInfo info;
        Error err = {{0}};
        scene_text(&s, "prepare.json", texts[i]);
        CHECK(t, !prepare_info_load(&info, path, &err));
        CHECK_ERROR(t, err, "prepare.json: ");
    }
    mem_free(path);
    scene_end(&s);
}

// --- The command line

// Runs prepare_main with stdout and stderr in files; the caller frees both texts.
static int run_main(const PrepareScene *s, const char *const *args, char **out, char **err_text) {
    char *argv[32];
    int argc = 0;
    for (; args[argc]; argc++)
        argv[argc] = (char *)args[argc];
    char *paths[2] = {path_join(s->dir, "stdout"), path_join(s->dir, "stderr")};
    int keep[2];
    fflush(stdout);
    for (int k = 0; k < 2; k++) {
        keep[k] = dup(k + 1);
        int fd = open(paths[k], O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, k + 1);
        close(fd);
    }
    int status = prepare_main(argc, argv, false);
    fflush(stdout);
    for (int k = 0; k < 2; k++) {
        size_t n;
        Error err;
        dup2(keep[k], k + 1);
        close(keep[k]);
        if (!file_read(paths[k], 1 << 20, k ? err_text : out, &n, &err)) die("%s", err.text);
        mem_free(paths[k]);
    }
    return status;
}

static void check_main(TestCtx *t, const PrepareScene *s, const char *const *args, int status,
                       const char *out, const char *err_text) {
    char *got_out, *got_err;
    int got = run_main(s, args, &got_out, &got_err);
    CHECK_MSG(t, got == status, "status %d, expected %d: %s", got, status, got_err);
    CHECK_MSG(t, *out ? strstr(got_out, out) != NULL : !*got_out, "stdout '%s', expected '%s'",
              got_out, out);
    CHECK_MSG(t, *err_text ? strstr(got_err, err_text) != NULL : !*got_err,
              "stderr '%s', expected '%s'", got_err, err_text);
    mem_free(got_out);
    mem_free(got_err);
}

#define ARGS(...)                                                                                  \
    (const char *const[]) {                                                                        \
        __VA_ARGS__, NULL                                                                          \
    }

static void wrong_usage_is_status_2_with_one_line(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    check_main(t, &s, ARGS("--json"), 2, "", "prepare needs a file");
    check_main(t, &s, ARGS("x"), 2, "", "prepare needs --tokenizer");
    check_main(t, &s, ARGS("x", "--tokenizer", "a"), 2, "", "prepare needs --out");
    check_main(t, &s, ARGS("x", "--tokeniser", "a"), 2, "",
               "unknown option --tokeniser; did you mean --tokenizer?");
    check_main(t, &s, ARGS("x", "--tokenizer"), 2, "", "--tokenizer expects SPEC behind it");
    check_main(t, &s, ARGS("x", "--force=1"), 2, "", "--force takes no value");
    check_main(t, &s, ARGS("x", "--shard-tokens", "1e6"), 2, "",
               "--shard-tokens expects an integer from 1 to 9e+15, found '1e6'");
    check_main(t, &s, ARGS("x", "--val-fraction=1.5"), 2, "",
               "--val-fraction expects a number from 0 to 1, found '1.5'");
    check_main(t, &s, ARGS("x", "--seed=-1"), 2, "",
               "--seed expects an integer from 0 to 9e+15, found '-1'");
    check_main(t, &s, ARGS("x", "--tokenizer=train:1", "--out=y"), 2, "",
               "'train:1' needs a number");
    scene_end(&s);
}

static void a_run_prints_its_summary_on_stdout(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello");
    scene_text(&s, "-b.txt", "world");
    check_main(
        t, &s,
        ARGS(s.in, "--tokenizer", s.tokenizer, "--out", s.out, "--threads=2", "--val-docs", "a*"),
        0, "val        1 documents, 2 tokens, 5 bytes (2.500 bytes per token), 1 shard\n", "");
    check_main(t, &s, ARGS(s.in, "--tokenizer", s.tokenizer, "--out", s.out), 1, "",
               "--force to replace it\n");
    check_main(t, &s,
               ARGS("--force", "--json", "--tokenizer", s.tokenizer, "--out", s.out, "--", s.in), 0,
               "\"train\": {\"documents\": 2, \"tokens\": 8, \"bytes\": 10, \"shards\": 1}", "");
    check_main(t, &s, ARGS("/no/such", "--tokenizer", s.tokenizer, "--out", s.out, "--force"), 1,
               "", "train_gpt: /no/such: cannot open");
    scene_end(&s);
}

TEST_MAIN({"broken_inputs_are_refused_with_a_sentence", broken_inputs_are_refused_with_a_sentence},
          {"missing_and_packed_files_are_refused_with_a_sentence",
           missing_and_packed_files_are_refused_with_a_sentence},
          {"options_that_make_no_sense_are_refused", options_that_make_no_sense_are_refused},
          {"a_tokenizer_without_an_end_token_is_refused",
           a_tokenizer_without_an_end_token_is_refused},
          {"earlier_output_is_kept_without_force", earlier_output_is_kept_without_force},
          {"output_inside_an_input_folder_is_not_read", output_inside_an_input_folder_is_not_read},
          {"a_full_disk_leaves_a_sentence_and_nothing_else",
           a_full_disk_leaves_a_sentence_and_nothing_else},
          {"an_output_folder_that_cannot_be_made_is_refused",
           an_output_folder_that_cannot_be_made_is_refused},
          {"a_broken_sidecar_is_refused_with_a_sentence",
           a_broken_sidecar_is_refused_with_a_sentence},
          {"wrong_usage_is_status_2_with_one_line", wrong_usage_is_status_2_with_one_line},
          {"a_run_prints_its_summary_on_stdout", a_run_prints_its_summary_on_stdout})
