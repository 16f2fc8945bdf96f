// test_checkpoint_crash.c - gpt/checkpoint: whatever happens to the disk or the process during a
// save, a whole checkpoint is found afterwards, or a sentence says why not.
#define _GNU_SOURCE
#include "test/checkpoint_run.h"

#include "gpt/dirs.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
    #include <sys/ptrace.h>
#endif

// --- failing disks

static void a_full_disk_leaves_the_old_checkpoint(TestCtx *t) {
    Run *r = run_open(false);
    Error err = {{0}};
    run_must_save(t, r, 1);
    // A limit on file sizes fails a write like a full disk does: in the middle.
    struct rlimit old, low = {20000, RLIM_INFINITY};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(t, getrlimit(RLIMIT_FSIZE, &old) == 0);
    low.rlim_max = old.rlim_max;
    int done = 0;
    // 100: in the header; 9000: in the model; 12000: in the optimizer's file.
    for (rlim_t limit = 100; limit < 20000; limit += limit < 8000 ? 8900 : 3000, done++) {
        low.rlim_cur = limit;
        CHECK(t, setrlimit(RLIMIT_FSIZE, &low) == 0);
        bool ok = run_save(r, 2, &err);
        CHECK(t, setrlimit(RLIMIT_FSIZE, &old) == 0);
        if (limit > 18000) {
            CHECK_MSG(t, ok, "%s", err.text);
            break;
        }
        CHECK_MSG(t, !ok, "limit %lld", (long long)limit);
        CHECK_ERROR(t, err, "writing failed");
        CHECK_ERROR(t, err, "MB are free there), step-00000001 remains");
        run_expect_names(t, r, "latest step-00000001 ");
        run_expect_step(t, r, 1, NULL, "after the failure");
    }
    CHECK(t, done >= 3);
    signal(SIGXFSZ, handler);
    run_must_save(t, r, 2);
    run_expect_step(t, r, 2, NULL, "with space again");
    run_close(r);
}

static void a_full_file_system_is_survived(TestCtx *t) {
#ifdef __linux__
    Run *r = run_open(false);
    Error err = {{0}};
    char *mounted = r->dir;
    if (mount("none", mounted, "tmpfs", 0, "size=64k") != 0) {
        test_skip(t, "a tmpfs cannot be mounted (%s)", strerror(errno));
        run_close(r);
        return;
    }
    run_must_save(t, r, 1);
    CHECK(t, !run_save(r, 2, &err));
    CHECK_ERROR(t, err, "No space left on device");
    CHECK_ERROR(t, err, "MB are free there), step-00000001 remains");
    run_expect_names(t, r, "latest step-00000001 ");
    run_expect_step(t, r, 1, NULL, "after the failure");
    CHECK(t, umount(mounted) == 0);
    run_close(r);
#else
    test_skip(t, "mounting needs Linux");
#endif
}

static void a_place_that_takes_no_directory_is_a_sentence(TestCtx *t) {
    Run *r = run_open(false);
    Error err = {{0}};
    char *whole = r->dir;
    // A file in place of the run directory; root may write anywhere, but not into that.
    r->dir = path_join(whole, "file");
    CHECK(t, file_write_atomic(r->dir, "x", 1, &err));
    CHECK(t, !run_save(r, 1, &err));
    CHECK_ERROR(t, err, "the checkpoint step-00000001 was not written");
    CHECK_ERROR(t, err, "no earlier one exists");
    CheckpointFound f;
    CHECK(t, !checkpoint_find(r->dir, CHECKPOINT_WHOLE, &f, &err));
    CHECK_ERROR(t, err, "cannot list");
    checkpoint_found_free(&f);
    mem_free(r->dir);
    r->dir = whole;
    run_close(r);
}

static void a_directory_without_write_permission_is_a_sentence(TestCtx *t) {
    if (geteuid() == 0) {
        test_skip(t, "permissions do not bind root");
        return;
    }
    Run *r = run_open(false);
    Error err = {{0}};
    run_must_save(t, r, 1);
    CHECK(t, chmod(r->dir, 0500) == 0);
    CHECK(t, !run_save(r, 2, &err));
    CHECK_ERROR(t, err, "Permission denied");
    CHECK_ERROR(t, err, "step-00000001 remains");
    CHECK(t, chmod(r->dir, 0700) == 0);
    run_expect_step(t, r, 1, NULL, "after the failure");
    run_close(r);
}

// What stands where the checkpoint or `latest` should go is left alone, and so is the run.
static void an_obstacle_undoes_the_save(TestCtx *t) {
    Run *r = run_open(false);
    Error err = {{0}};
    run_must_save(t, r, 1);
    char *latest = run_path(r, "latest"), *inside = run_path(r, "latest/x");
    CHECK(t, unlink(latest) == 0 && dir_make(inside, &err));
    CHECK(t, !run_save(r, 2, &err));
    CHECK_ERROR(t, err, "rename failed");
    run_expect_names(t, r, "latest step-00000001 ");
    CheckpointState state = run_state(1);
    run_fill(&r->model, 77);
    CHECK(t, !checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, NULL, &err));
    run_expect_step(t, r, 1, "names no checkpoint", "the replaced one is back");
    mem_free(latest);
    mem_free(inside);
    run_close(r);
}

// --- killed processes

static void cleaning_puts_back_and_deletes(TestCtx *t) {
    Run *r = run_open(false);
    Error err;
    run_must_save(t, r, 1);
    run_must_save(t, r, 2);
    char *two = run_path(r, "step-00000002"), *old = run_path(r, ".old-step-00000002-4711");
    char *tmp = run_path(r, ".tmp-step-00000003-4711/x"), *mine = run_path(r, "notes.tmp-of-mine");
    CHECK(t, file_rename(two, old, &err) && dir_make(tmp, &err) && dir_make(mine, &err));
    run_write(t, r, "latest.tmp-4711", "step-0");
    run_expect_step(t, r, 1, "step-00000002, which does not exist", "before cleaning");
    CHECK(t, checkpoint_clean(r->dir, &err));
    run_expect_step(t, r, 2, NULL, "put back");
    run_expect_names(t, r, "latest notes.tmp-of-mine step-00000001 step-00000002 ");
    CHECK(t, dir_make(old, &err) && checkpoint_clean(r->dir, &err));
    run_expect_names(t, r, "latest notes.tmp-of-mine step-00000001 step-00000002 ");
    mem_free(two);
    mem_free(old);
    mem_free(tmp);
    mem_free(mine);
    run_close(r);
}

// Saves steps first, first+1, ... until killed.
static void save_for_ever(Run *r, int64_t first) {
    Error err;
    for (int64_t step = first;; step++) {
        if (!run_save(r, step, &err) || !checkpoint_prune(r->dir, 2, &err)) _exit(3);
    }
}

static void kill_9_at_random_moments_costs_no_checkpoint(TestCtx *t) {
    Run *r = run_open(true);
    int64_t known = 1;
    uint64_t s = 12345;
    Error err;
    run_must_save(t, r, known);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) save_for_ever(r, known + 1);
        s = s * 6364136223846793005u + 1442695040888963407u;
        usleep((useconds_t)(s >> 33) % 10000);
        int status = 0;
        CHECK(t, child > 0 && kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK_MSG(t, WIFSIGNALED(status), "the child ended by itself: %d", status);
        CHECK(t, checkpoint_clean(r->dir, &err));
        Buf notes = {0};
        int64_t step = run_found_step(t, r, &notes);
        CHECK_MSG(t, step >= known, "step %lld after %lld (%s)", (long long)step, (long long)known,
                  notes.text);
        known = step > known ? step : known;
        buf_free(&notes);
    }
    run_close(r);
}

#ifdef __linux__
    // A fork costs ten times as much under AddressSanitizer, so that build takes every fifth call.
    #if defined(__SANITIZE_ADDRESS__)
        #define SWEEP 10
    #elif defined(__has_feature)
        #if __has_feature(address_sanitizer)
            #define SWEEP 10
        #endif
    #endif
    #ifndef SWEEP
        #define SWEEP 2
    #endif

// Lets the child run to its n-th stop and kills it there; stops are entries into the kernel (odd n)
// and returns (even n). False when it ended before.
static bool kill_at(TestCtx *t, Run *r, int64_t step, int n) {
    pid_t child = fork();
    if (child == 0) {
        Error err;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(4);
        raise(SIGSTOP);
        _exit(run_save(r, step, &err) ? 0 : 3);
    }
    int status;
    bool stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    for (int i = 0; stopped && i < n; i++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) != 0) break;
        stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    }
    if (stopped) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return true;
    }
    CHECK_MSG(t, WIFEXITED(status) && WEXITSTATUS(status) == 0, "save ended with %d", status);
    return false;
}

static bool can_trace(void) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(4);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    bool can = waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
               ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return can;
}
#endif

// The sweep that a random moment only samples: killed at every system call of a save, first of one
// that replaces step 7, then of a new step 8.
static void kill_9_at_every_system_call_costs_no_checkpoint(TestCtx *t) {
#ifdef __linux__
    if (!can_trace()) {
        test_skip(t, "tracing a child is not allowed here");
        return;
    }
    Run *r = run_open(true);
    Error err;
    run_must_save(t, r, 6);
    run_must_save(t, r, 7);
    for (int64_t step = 7; step <= 8; step++) {
        int n = 1;
        for (; kill_at(t, r, step, n) && n < 2000; n += SWEEP) {
            Buf notes = {0};
            bool cleaned = checkpoint_clean(r->dir, &err);
            int64_t found = run_found_step(t, r, &notes);
            CHECK_MSG(t, cleaned && (found == 7 || found == step), "call %d: step %lld (%s)", n,
                      (long long)found, notes.text);
            buf_free(&notes);
        }
        CHECK_MSG(t, n > 80 && n < 2000, "%d calls", n);
        CHECK(t, checkpoint_clean(r->dir, &err));
    }
    run_expect_names(t, r, "latest step-00000006 step-00000007 step-00000008 ");
    run_expect_step(t, r, 8, NULL, "at last");
    run_close(r);
#else
    test_skip(t, "needs ptrace of Linux");
#endif
}

TEST_MAIN({"a_full_disk_leaves_the_old_checkpoint", a_full_disk_leaves_the_old_checkpoint},
          {"a_full_file_system_is_survived", a_full_file_system_is_survived},
          {"a_place_that_takes_no_directory_is_a_sentence",
           a_place_that_takes_no_directory_is_a_sentence},
          {"a_directory_without_write_permission_is_a_sentence",
           a_directory_without_write_permission_is_a_sentence},
          {"an_obstacle_undoes_the_save", an_obstacle_undoes_the_save},
          {"cleaning_puts_back_and_deletes", cleaning_puts_back_and_deletes},
          {"kill_9_at_random_moments_costs_no_checkpoint",
           kill_9_at_random_moments_costs_no_checkpoint},
          {"kill_9_at_every_system_call_costs_no_checkpoint",
           kill_9_at_every_system_call_costs_no_checkpoint})
