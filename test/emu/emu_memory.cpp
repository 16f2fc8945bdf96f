// emu_memory.cpp - device and shared memory of the emulator and the runtime calls around them.
// Device memory is one range of addresses handed out once: a freed piece is never used again, so a
// pointer to it stays wrong. Everything starts as NaN, with red zones around it.
#include "test/emu/emu_internal.h"

#include <stdio.h>
#include <sys/mman.h>

namespace {

const size_t RED = 256;                  // bytes before and after every allocation
const size_t SHARED_SPACE = 1 << 20;     // addresses kept for shared memory
const unsigned short NAN_BITS = 0x7FFF;  // NaN as bf16, and twice as fp32; huge as an int

struct Allocation {
    char *p;
    size_t bytes, held;  // those that may be used, of those that it has
    bool freed;
};

struct Memory {
    EmuArena arena;
    char *next;  // first byte never handed out
    std::vector<Allocation> list;
    size_t in_use, shared_bytes;
    char *shared;
} memory;

void fill_nan(char *p, size_t n) {
    for (size_t i = 0; i + 2 <= n; i += 2)
        memcpy(p + i, &NAN_BITS, 2);
}

void arena_open() {
    size_t bytes = (size_t)64 << 30;
    while (!(memory.arena.base = emu_reserve(bytes)))
        bytes /= 2;
    memory.arena.bytes = bytes;
    memory.shared = memory.arena.base + SHARED_SPACE / 4;
    memory.next = memory.arena.base + SHARED_SPACE;
    if (emu_checking) emu_check_open(memory.arena);
}

// The allocation whose bytes or red zones hold p. The list is in order of addresses.
Allocation *find(const void *p) {
    size_t low = 0, high = memory.list.size();
    while (low < high) {
        size_t mid = (low + high) / 2;
        Allocation &a = memory.list[mid];
        if (p < a.p - RED)
            high = mid;
        else if (p >= a.p + a.held + RED)
            low = mid + 1;
        else
            return &a;
    }
    return nullptr;
}

bool red_zone_intact(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] != (char)0xA5) return false;
    }
    return true;
}

bool verify(const char *p, size_t bytes) {
    const char *end = p + bytes;
    if (!red_zone_intact(p - RED, RED))
        emu_fail("wrote before %s", emu_describe(p));
    else if (!red_zone_intact(end, RED))
        emu_fail("wrote behind %s", emu_describe(end - !!bytes));
    return !emu.failed;
}

void red_zones(char *p, size_t bytes) {
    memset(p - RED, 0xA5, RED);
    memset(p + bytes, 0xA5, RED);
}

}  // namespace

char *emu_reserve(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<char *>(p);
}

const EmuArena &emu_arena() {
    if (!memory.arena.base) arena_open();
    return memory.arena;
}

bool emu_is_shared(const void *p) {
    return (size_t)((uintptr_t)p - (uintptr_t)emu_arena().base) < SHARED_SPACE;
}

static bool within(const void *p, size_t n, size_t Allocation::*bytes) {
    const Allocation *a = find(p);
    return a && !a->freed && p >= a->p &&
           (size_t)(static_cast<const char *>(p) - a->p) + n <= a->*bytes;
}

bool emu_exists(const void *p) {
    if (emu_is_shared(p)) return p >= memory.shared && p < memory.shared + memory.shared_bytes;
    return within(p, 1, &Allocation::bytes);
}

// What may be used of it changes on the stream, and calls are checked ahead of that.
bool emu_allocated(const void *p, size_t n) {
    return within(p, n, &Allocation::held);
}

const char *emu_describe(const void *ptr) {
    static char text[160];
    const char *p = static_cast<const char *>(ptr);
    if (emu_is_shared(p)) {
        snprintf(text, sizeof text, "byte %td of shared memory (%zu bytes)", p - memory.shared,
                 memory.shared_bytes);
    } else if (const Allocation *a = find(p)) {
        snprintf(text, sizeof text, "byte %td of a %sdevice allocation of %zu bytes", p - a->p,
                 a->freed ? "freed " : "", a->bytes);
    } else {
        snprintf(text, sizeof text, "%p, which is not device memory", ptr);
    }
    return text;
}

void *emu_shared() {
    return memory.shared;
}

void emu_shared_begin(size_t bytes) {
    emu_arena();
    if (emu_checking) emu_mark_fresh(memory.shared, max(bytes, memory.shared_bytes));
    memory.shared_bytes = bytes;
    fill_nan(memory.shared, bytes);
    red_zones(memory.shared, bytes);
}

void emu_memory_verify() {
    if (!emu.failed) verify(memory.shared, memory.shared_bytes);
    for (const Allocation &a : memory.list) {
        if (!emu.failed && !a.freed) verify(a.p, a.bytes);
    }
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    emu_arena();
    char *at = memory.next + RED;
    char *next = at + (bytes + RED + 255) / 256 * 256;
    if (bytes > memory.arena.bytes || next > memory.arena.base + memory.arena.bytes) {
        return cudaErrorMemoryAllocation;
    }
    memory.next = next;
    memory.list.push_back({at, bytes, bytes, false});
    memory.in_use += bytes;
    fill_nan(at, bytes);
    red_zones(at, bytes);
    *p = at;
    return cudaSuccess;
}

void emu_undefined(void *p, size_t bytes) {
    emu_enqueue([=] {
        size_t touched = bytes;
        Allocation *a = find(p);
        if (a && a->p == p && bytes <= a->held) {
            verify(a->p, a->bytes);
            touched = max(touched, a->bytes) + RED;
            a->bytes = bytes;
            red_zones(a->p, bytes);
        }
        fill_nan(static_cast<char *>(p), bytes);
        if (emu_checking) emu_mark_fresh(p, touched);
    });
}

cudaError_t cudaFree(void *p) {
    emu_wait();
    if (!p) return cudaSuccess;
    for (Allocation &a : memory.list) {
        if (a.p != p || a.freed) continue;
        verify(a.p, a.bytes);
        a.freed = true;
        memory.in_use -= a.held;
        fill_nan(a.p, std::min(a.bytes, (size_t)4096));
        if (emu_checking) emu_mark_fresh(a.p, a.held);
        // Whole pages go back to the system; what is read from them now is not worth a promise.
        uintptr_t first = ((uintptr_t)a.p + 4095) / 4096 * 4096;
        uintptr_t last = ((uintptr_t)a.p + a.held) / 4096 * 4096;
        if (last > first) madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
        return cudaSuccess;
    }
    emu_fail("cudaFree of %s", emu_describe(p));
    return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = emu_arena().bytes;
    *available = *total - memory.in_use;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    return device ? cudaErrorInvalidValue : cudaSuccess;
}
// Few processors, so that loops over a limited grid really loop.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    *p = {};
    snprintf(p->name, sizeof p->name, "CUDA emulator");
    p->totalGlobalMem = emu_arena().bytes;
    p->sharedMemPerBlockOptin = EMU_SHARED_LIMIT;
    p->major = 9;
    p->multiProcessorCount = 3;
    return cudaSetDevice(device);
}
// A fault has ended the process, or a test waits for it.
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
        return "device not ready";
    default:
        return "invalid argument";
    }
}
