// emu_internal.h - what the files of the emulator share. One launch runs at a time.
#pragma once

#include "test/emu/cuda_emu.h"
#include "test/emu/emu_fiber.h"

#include <algorithm>
#include <functional>
#include <vector>

enum {
    EMU_MAX_THREADS = 1024,
    EMU_MAX_WARPS = EMU_MAX_THREADS / 32,
    EMU_SHARED_DEFAULT = 48 * 1024,
    EMU_SHARED_LIMIT = 227 * 1024
};

enum EmuState { EMU_READY, EMU_AT_BLOCK, EMU_AT_WARP, EMU_DONE };

struct EmuCopy {
    char *dst;
    const char *src;
    int bytes;  // read from src; the rest of the 16 is zero
    unsigned group;
};

struct EmuThread {
    int index;
    uint3 idx;
    EmuState state;
    EmuFiber fiber;
    const char *op, *file;  // where it waits
    int line;
    unsigned warp_epoch;  // __syncwarp calls since the last block barrier
    unsigned parity;      // of the exchange buffer
    unsigned groups;      // cp.async groups committed
    bool vote;            // what it gave to the __syncthreads_or it waits at
    std::vector<EmuCopy> copies;
};

struct Emu {
    const EmuLaunch *launch;  // NULL between launches
    EmuThread *current;       // NULL in the scheduler and on the host
    EmuThread thread[EMU_MAX_THREADS];
    int n_threads;
    uint3 block;
    bool any_vote;  // of the last block barrier
    bool failed, catching;
    char fault[1024];
    uint64_t random;  // state of the shuffle
};
extern Emu emu;

// Records the sentence. On a fiber it does not return; elsewhere the caller must stop what it does
// (the process ends here unless faults are caught).
void emu_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void emu_yield();

// --- The stream: work runs in order, when the host waits for it (emu_stream.cpp).
void emu_enqueue(std::function<void()> work);
void emu_wait();  // for all of it

// --- Memory.
enum EmuAccess { EMU_READ, EMU_WRITE, EMU_ATOMIC };
char *emu_reserve(size_t bytes);              // address space that costs nothing until touched
bool emu_is_shared(const void *p);            // inside the space for shared memory
void emu_shared_begin(size_t bytes);          // fresh shared memory for a block
void emu_memory_verify();                     // red zones are intact, or fail
bool emu_exists(const void *p);               // a byte of device memory in use, or of shared memory
bool emu_allocated(const void *p, size_t n);  // one device allocation holds it all
const char *emu_describe(const void *p);      // "byte 12 of shared memory (1024 bytes)", ...

// --- Checking, on when an instrumented file is linked in.
extern bool emu_checking;
// Device memory: a range of addresses, opened at the first use; shared memory is its beginning.
struct EmuArena {
    char *base;
    size_t bytes;
};
const EmuArena &emu_arena();
void emu_check_open(const EmuArena &a);
void emu_check_access(const void *p, size_t n, EmuAccess kind, const char *file, int line,
                      const void *pc);
void emu_check_launch();                       // a launch begins
void emu_check_block();                        // a block begins
void emu_check_barrier();                      // all threads of the block have met
void emu_mark_fresh(const void *p, size_t n);  // nobody has touched it
void emu_mark_init(const void *p, size_t n);
bool emu_is_init(const void *p, size_t n);
void emu_mark_copy(const void *dst, const void *src, size_t n);
void emu_mark_pending(const void *p, size_t n, bool pending);

// Notes that a launch went through in "forward", "reverse" or "shuffle" order.
void emu_coverage_note(const EmuLaunch &l, const char *order);
