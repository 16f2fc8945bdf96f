// cuda_emu.cpp - runs a launch: block after block, each thread a fiber, in an order that is chosen
// to be unkind. Knows barriers, warp operations and launch limits; memory and checks live
// elsewhere.
#include "test/emu/cuda_emu.h"

#include "test/emu/emu_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>

Emu emu;

namespace {

enum Order { ORDER_FORWARD, ORDER_REVERSE, ORDER_SHUFFLE };

struct Scheduler {
    Order order;
    int lanes[32], warps[EMU_MAX_WARPS];  // the order in which they are tried
    alignas(16) char slot[2][EMU_MAX_WARPS][32][EMU_SLOT];
    std::map<const void *, int> shared_limit;  // cudaFuncSetAttribute
    size_t device_shared = EMU_SHARED_LIMIT;   // for a block of any kernel
} sched;

uint64_t next_random() {
    uint64_t x = emu.random += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

void arrange(int *list, int n) {
    for (int i = 0; i < n; i++)
        list[i] = sched.order == ORDER_REVERSE ? n - 1 - i : i;
    if (sched.order != ORDER_SHUFFLE) return;
    for (int i = n - 1; i > 0; i--)
        std::swap(list[i], list[next_random() % (uint64_t)(i + 1)]);
}

struct Orders {
    Order order;
    uint64_t seed;
};

bool read_order(Orders *out) {
    const char *s = getenv("GPU_EMU_ORDER");
    *out = {ORDER_FORWARD, 1};
    if (!s || !*s || !strcmp(s, "forward")) return true;
    out->order = strcmp(s, "reverse") ? ORDER_SHUFFLE : ORDER_REVERSE;
    if (!strncmp(s, "shuffle:", 8))
        out->seed = strtoull(s + 8, nullptr, 10);
    else if (out->order == ORDER_SHUFFLE && strcmp(s, "shuffle")) {
        emu_fail("GPU_EMU_ORDER: expected forward, reverse or shuffle[:seed], found '%s'", s);
        return false;
    }
    return true;
}

void thread_body() {
    emu_fiber_arrived(&emu.current->fiber);
    emu.launch->call(emu.launch->args);
    EmuThread *t = emu.current;
    if (!t->copies.empty()) emu_fail("returns with cp.async copies that were never waited for");
    t->state = EMU_DONE;
    emu_yield();
}

void run_thread(EmuThread *t) {
    if (t->fiber.stack < 0) emu_fiber_start(&t->fiber, thread_body);
    emu.current = t;
    emu_fiber_enter(&t->fiber);
    emu.current = nullptr;
    if (t->state == EMU_DONE) emu_fiber_drop(&t->fiber);
}

bool same_place(const EmuThread *a, const EmuThread *b) {
    return a->line == b->line && a->op == b->op &&
           (a->file == b->file || !strcmp(a->file, b->file));
}

// Why thread `other` does not meet `waiting`, as a sentence.
void fail_divergent(const EmuThread *waiting, const EmuThread *other) {
    const char *did = other->state == EMU_DONE ? "has returned" : "waits elsewhere";
    char where[256] = "";
    if (other->state != EMU_DONE) {
        snprintf(where, sizeof where, ": %s at %s:%d", other->op, other->file, other->line);
    }
    emu_fail("divergent %s at %s:%d: thread %d is there, thread %d %s%s", waiting->op,
             waiting->file, waiting->line, waiting->index, other->index, did, where);
}

// Lets go of threads [first, first + n) when all of them wait at the same operation; when none can
// run any more and some wait elsewhere or have returned, that is divergence.
bool release(int first, int n, EmuState waiting) {
    const EmuThread *found = nullptr, *odd = nullptr;
    for (int i = first; i < first + n; i++) {
        EmuThread *t = &emu.thread[i];
        if (t->state == waiting && (!found || same_place(found, t)))
            found = t;
        else
            odd = t;
        if (t->state == EMU_READY) return false;
    }
    if (!found) return false;
    if (odd) {
        fail_divergent(found, odd);
        return false;
    }
    for (int i = first; i < first + n; i++)
        emu.thread[i].state = EMU_READY;
    return true;
}

void block_begin() {
    const dim3 b = emu.launch->block;
    emu_shared_begin(emu.launch->shared_bytes);
    emu_check_block();
    for (int i = 0; i < emu.n_threads; i++) {
        EmuThread *t = &emu.thread[i];
        unsigned u = (unsigned)i;
        t->index = i;
        t->idx = {u % b.x, u / b.x % b.y, u / b.x / b.y};
        t->state = EMU_READY;
        t->fiber.stack = -1;
        t->warp_epoch = t->parity = t->groups = 0;
        t->vote = false;
        t->copies.clear();
    }
}

// Runs every ready thread of a warp; in the fixed orders until the warp stands at a block barrier.
bool run_warp(int w) {
    bool progress = false, again = true;
    int n = std::min(32, emu.n_threads - 32 * w);
    while (again && !emu.failed) {
        again = false;
        for (int i = 0; i < 32 && !emu.failed; i++) {
            if (sched.lanes[i] >= n) continue;
            EmuThread *t = &emu.thread[32 * w + sched.lanes[i]];
            if (t->state != EMU_READY) continue;
            run_thread(t);
            progress = true;
        }
        if (!emu.failed) again = release(32 * w, n, EMU_AT_WARP);
        if (sched.order == ORDER_SHUFFLE) break;
    }
    return progress;
}

void run_block() {
    int n_warps = (emu.n_threads + 31) / 32;
    block_begin();
    for (;;) {
        arrange(sched.lanes, 32);
        arrange(sched.warps, n_warps);
        bool progress = false;
        for (int i = 0; i < n_warps && !emu.failed; i++)
            progress |= run_warp(sched.warps[i]);
        if (emu.failed) break;
        if (release(0, emu.n_threads, EMU_AT_BLOCK)) {
            emu_check_barrier();
            emu.any_vote = false;
            for (int i = 0; i < emu.n_threads; i++) {
                EmuThread *t = &emu.thread[i];
                emu.any_vote |= t->vote;
                t->vote = false;
                t->warp_epoch = 0;
            }
        } else if (!progress) {
            break;
        }
    }
    for (int i = 0; i < emu.n_threads; i++)
        emu_fiber_drop(&emu.thread[i].fiber);
}

bool check_limits(const EmuLaunch &l) {
    dim3 g = l.grid, b = l.block;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!threads || threads > EMU_MAX_THREADS || b.z > 64) {
        emu_fail("block of %u x %u x %u threads: expected 1 to 1024, z at most 64", b.x, b.y, b.z);
    } else if (!g.x || !g.y || !g.z || g.x > 0x7FFFFFFFu || g.y > 65535 || g.z > 65535) {
        emu_fail("grid of %u x %u x %u blocks: expected 1 to 2^31-1, 65535, 65535", g.x, g.y, g.z);
    } else if (l.shared_bytes > sched.device_shared) {
        emu_fail("%zu bytes of shared memory: at most %zu exist", l.shared_bytes,
                 sched.device_shared);
    } else if (l.shared_bytes > EMU_SHARED_DEFAULT &&
               (int)l.shared_bytes > sched.shared_limit[l.kernel]) {
        emu_fail("%zu bytes of shared memory: above %d cudaFuncSetAttribute must allow it first",
                 l.shared_bytes, EMU_SHARED_DEFAULT);
    }
    return !emu.failed;
}

uint64_t gcd(uint64_t a, uint64_t b) {
    return b ? gcd(b, a % b) : a;
}

EmuThread *meet(EmuState state, const char *op, const char *file, int line) {
    EmuThread *t = emu.current;
    t->state = state;
    t->op = op;
    t->file = file;
    t->line = line;
    return t;
}

// A warp operation needs 32 lanes, all named.
EmuThread *meet_warp(unsigned mask, const char *op, const char *file, int line) {
    EmuThread *t = meet(EMU_AT_WARP, op, file, line);
    if (mask != ~0u) emu_fail("%s at %s:%d with the partial mask %08x", op, file, line, mask);
    if ((t->index | 31) >= emu.n_threads) {
        emu_fail("%s at %s:%d in a warp of %d lanes: the block must be a multiple of 32 threads",
                 op, file, line, emu.n_threads % 32);
    }
    return t;
}

void run_launch(const EmuLaunch &l, Orders o) {
    emu.launch = &l;
    emu.current = nullptr;
    emu.block = {0, 0, 0};
    emu.n_threads = (int)(l.block.x * l.block.y * l.block.z);
    emu.random = o.seed;
    sched.order = o.order;
    uint64_t n = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
    uint64_t step = 1, at = 0;  // block i of the launch is (at + i * step) % n
    if (sched.order == ORDER_REVERSE) step = n - 1, at = n - 1;
    if (sched.order == ORDER_SHUFFLE) {
        do
            step = next_random() % n + 1;
        while (gcd(step, n) != 1);
    }
    emu_check_launch();
    for (uint64_t i = 0; i < n && !emu.failed; i++, at = (at + step) % n) {
        emu.block = {(unsigned)(at % l.grid.x), (unsigned)(at / l.grid.x % l.grid.y),
                     (unsigned)(at / l.grid.x / l.grid.y)};
        run_block();
    }
    emu_memory_verify();
    static const char *const names[] = {"forward", "reverse", "shuffle"};
    if (!emu.failed) emu_coverage_note(l, names[sched.order]);
    emu.launch = nullptr;
}

}  // namespace

void emu_launch(const EmuLaunch &launch) {
    Orders o;
    emu.failed = false;
    emu.launch = &launch;
    bool ok = read_order(&o) && check_limits(launch);
    emu.launch = nullptr;
    if (!ok) return;
    const char *args = static_cast<const char *>(launch.args);
    std::vector<char> kept(args, args + launch.args_bytes);
    emu_enqueue([=] {
        EmuLaunch l = launch;
        l.args = kept.data();
        run_launch(l, o);
    });
}

uint3 emu_thread_idx() {
    return emu.current->idx;
}
uint3 emu_block_idx() {
    return emu.block;
}
dim3 emu_block_dim() {
    return emu.launch->block;
}
dim3 emu_grid_dim() {
    return emu.launch->grid;
}
int emu_lane() {
    return emu.current->index % 32;
}

void emu_yield() {
    emu_fiber_yield(&emu.current->fiber);
}

void emu_block_sync(const char *file, int line) {
    meet(EMU_AT_BLOCK, "__syncthreads", file, line);
    emu_yield();
}

int emu_block_or(bool p, const char *file, int line) {
    emu.current->vote = p;
    meet(EMU_AT_BLOCK, "__syncthreads_or", file, line);
    emu_yield();
    return emu.any_vote;
}

void emu_warp_sync(unsigned mask, const char *file, int line) {
    EmuThread *t = meet_warp(mask, "__syncwarp", file, line);
    emu_yield();
    t->warp_epoch++;
}

// Two buffers in turn: a lane gives to the next operation only after all lanes met at this one, and
// the one after that waits until all have read.
const char *emu_exchange(const void *mine, size_t bytes, unsigned mask, const char *op,
                         const char *file, int line) {
    EmuThread *t = meet_warp(mask, op, file, line);
    auto &warp = sched.slot[t->parity ^= 1][t->index / 32];
    memcpy(warp[t->index % 32], mine, bytes);
    emu_yield();
    return warp[0];
}

unsigned emu_ballot(unsigned mask, bool p, const char *file, int line) {
    unsigned word = 0;
    const char *all = emu_exchange(&p, 1, mask, "ballot", file, line);
    for (unsigned i = 0; i < 32; i++)
        word |= (unsigned)all[i * EMU_SLOT] << i;
    return word;
}

void emu_limit_shared(size_t bytes) {
    sched.device_shared = bytes;
}

cudaError_t emu_func_set_shared(const void *kernel, int bytes) {
    if (bytes < 0 || bytes > EMU_SHARED_LIMIT) {
        emu_fail("cudaFuncSetAttribute: %d bytes of shared memory, at most %d exist", bytes,
                 EMU_SHARED_LIMIT);
    }
    sched.shared_limit[kernel] = bytes;
    return cudaSuccess;
}

void emu_fail(const char *fmt, ...) {
    char what[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    const EmuThread *t = emu.current;
    const EmuLaunch *l = emu.launch;
    int n = 0;
    if (l) {
        n = snprintf(emu.fault, sizeof emu.fault, "%s (launched at %s:%d), block (%u,%u,%u)",
                     l->name, l->file, l->line, emu.block.x, emu.block.y, emu.block.z);
        if (t) {
            n += snprintf(emu.fault + n, sizeof emu.fault - (size_t)n, " thread (%u,%u,%u)",
                          t->idx.x, t->idx.y, t->idx.z);
        }
        n += snprintf(emu.fault + n, sizeof emu.fault - (size_t)n, ": ");
    }
    snprintf(emu.fault + n, sizeof emu.fault - (size_t)n, "%s", what);
    if (!emu.catching) {
        fprintf(stderr, "CUDA emulator: %s\n", emu.fault);
        fflush(nullptr);
        _exit(1);
    }
    emu.failed = true;
    if (t) {
        emu_yield();  // for good
        __builtin_unreachable();
    }
}

void emu_catch(bool on) {
    emu_wait();
    emu.catching = on;
    emu.fault[0] = 0;
}
const char *emu_fault() {
    emu_wait();
    return emu.fault;
}
